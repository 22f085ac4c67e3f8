"""Writes a library as a folder for C++ programs: kernels, one header, their entries and plans as C++, an example with CMake.

The header is the launcher that `import cudal2` uses, as one file. Building it needs neither a CUDA toolkit nor this project.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from cudal2.launcher.driver_types import TENSOR_MAP_TYPES
from cudal2.launcher.loaded_kernel import BuiltKernel
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.launching import pack_argument
from cudal2_agent.contract.plan.plan import (
    Arg,
    ResolvedLaunch,
    ResolvedPlan,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    TensorPartArg,
    WorkspaceArg,
)
from cudal2_agent.contract.plan.tensor_view import map_layout
from cudal2_agent.contract.records.library import LibraryEntry, LibraryManifest
from cudal2_agent.contract.records.module_task import WORKSPACE
from cudal2_agent.contract.records.named_buffer import Buffer
from cudal2_agent.contract.records.task import BIAS, GemmTask
from cudal2_agent.contract.whole_file import new_folder

HEADER = "cudal2.hpp"
CUBIN_FOLDER = "cubins"
_PARTS = ("driver.hpp", "kernel.hpp", "library.hpp")
_OWN_LINE = re.compile(r'^#(pragma once|include ".*")\n+', re.MULTILINE)
_SYSTEM_INCLUDE = re.compile(r"^#include (<.*>)\n", re.MULTILINE)
NamedKernel = tuple[LibraryEntry, BuiltKernel, str]  # with the file of its machine code
_OPERAND = {"A": "kA", "B": "kB", "D": "kD", WORKSPACE: "kWorkspace", BIAS: "kThird"}
_ZERO = {False: "kNever", True: "kEveryRun", "restored": "kRestored"}


class CppExport(Record):
    """What was written. Equal machine code is one file. Unit: bytes of all cubins."""

    entries: int
    cubins: int
    cubin_bytes: int


def export_cpp(kernels: Sequence[tuple[LibraryEntry, BuiltKernel]], manifest: LibraryManifest, folder: Path) -> CppExport:
    """Write the folder, which appears whole or not at all and must be new or empty.

    Raises: UsageError where no kernel is without an activation, or where the folder is in use or cannot be written.
    """
    named = named_kernels(kernels, f"{CUBIN_FOLDER}/")
    if not named:
        raise UsageError(f"library {manifest.name} has no kernel to export")
    texts = {
        HEADER: header_text(),
        "entries.cpp": entries_text(named, manifest.chip),
        "example.cpp": _template("example.cpp"),
        "CMakeLists.txt": _template("cmake_lists.txt"),
        "README.md": Template(_template("folder_readme.md")).substitute(readme_values(manifest, named)),
    }
    with new_folder(folder) as staging:
        write_files(staging, {name: text.encode() for name, text in texts.items()})
        write_files(staging, {name: kernel.cubin for _, kernel, name in named})
    return counts_of(named)


def named_kernels(kernels: Sequence[tuple[LibraryEntry, BuiltKernel]], prefix: str) -> list[NamedKernel]:
    """Kernels in a fixed order, each with the file of its machine code, which is named by its hash.

    Those with an activation are left out: no caller of the exported code can ask for one.
    """
    plain = (each for each in kernels if each[0].task.activation is None)
    ordered = sorted(plain, key=lambda each: (each[0].task.shape, each[0].id))
    return [(entry, kernel, f"{prefix}{hashlib.sha256(kernel.cubin).hexdigest()}.cubin") for entry, kernel in ordered]


def counts_of(named: Sequence[NamedKernel]) -> CppExport:
    cubins = {name: len(kernel.cubin) for _, kernel, name in named}
    return CppExport(entries=len(named), cubins=len(cubins), cubin_bytes=sum(cubins.values()))


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Files by their path within a folder."""
    for name, content in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def header_text() -> str:
    """The launcher as one header: its parts in order, with their includes at the top."""
    parts = [files("cudal2.launcher").joinpath("native", name).read_text(encoding="utf-8") for name in _PARTS]
    includes = sorted({found for part in parts for found in _SYSTEM_INCLUDE.findall(part)})
    bodies = (_SYSTEM_INCLUDE.sub("", _OWN_LINE.sub("", part)).strip() for part in parts)
    top = "// Kernels of cudal2-agent for C++. Needs C++17, and at run time the CUDA driver. Apache-2.0.\n#pragma once\n"
    return "\n".join([top, *(f"#include {each}" for each in includes), "", "\n\n".join(bodies), ""])


def readme_values(manifest: LibraryManifest, named: Sequence[NamedKernel]) -> dict[str, str]:
    """What a page about exported kernels tells. `rows`: a row of a table per entry."""
    entries = [entry for entry, _, _ in named]
    rows = "\n".join(
        f"| {entry.task.shape}{' + bias' if entry.task.bias else ''} | {entry.task.layout} | {entry.task.element}"
        f" | {entry.task.accumulate}"
        f" | {entry.evaluation.time_us:.2f} | {entry.evaluation.speedup.ratio:.3f}"
        f" ({entry.evaluation.speedup.low:.3f} to {entry.evaluation.speedup.high:.3f}) |"
        for entry in entries
    )
    return {
        "name": manifest.name,
        "chip": manifest.chip,
        "arch": manifest.arch,
        "product": manifest.product,
        "created": str(manifest.created),
        "licences": ", ".join(sorted({entry.licence for entry in entries})),
        "rows": rows,
    }


def _template(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def entries_text(kernels: Sequence[NamedKernel], chip: str) -> str:
    """The file `entries.cpp`."""
    functions = "\n".join(f"Entry entry{index}() {{\n  return {_entry(*each)};\n}}\n" for index, each in enumerate(kernels))
    names = ", ".join(f"entry{index}" for index in range(len(kernels)))
    return f"""// The kernels of this folder and their launch plans. Written by cudal2-agent library export.
#include "cudal2.hpp"

namespace cudal2 {{
namespace {{

{functions}
}}  // namespace

const char* const kExportedChip = {json.dumps(chip)};

std::vector<Entry> exported_entries() {{
  std::vector<Entry> found;
  for (Entry (*const each)() : {{{names}}}) found.push_back(each());
  return found;
}}

}}  // namespace cudal2
"""


def product_text(task: GemmTask) -> str:
    """A `Product`."""
    layout, element, accumulator = (value.value.upper() for value in (task.layout, task.element, task.accumulate))
    bias = ", true" if task.bias else ""
    return f"{{{task.m}, {task.n}, {task.k}, Layout::k{layout}, Element::k{element}, Accumulator::k{accumulator}{bias}}}"


def _entry(entry: LibraryEntry, kernel: BuiltKernel, cubin: str) -> str:
    speedup = entry.evaluation.speedup
    numbers = f"{entry.evaluation.time_us!r}, {speedup.ratio!r}, {speedup.low!r}"
    return f'{{{product_text(entry.task)}, "{entry.id}", "{cubin}", {numbers},\n          {_plan(kernel.plan, kernel.task)}}}'


def _plan(plan: ResolvedPlan, task: GemmTask) -> str:
    buffers = {buffer.name: buffer for buffer in task.buffers}
    launches = ",\n           ".join(_launch(launch, buffers) for launch in plan.launches)
    memory = f"{plan.workspace_bytes}, Zero::{_ZERO[plan.zero]}, {plan.zero_bytes}"
    return f"{{{{{launches}}}, {memory}, {plan.sms}}}"


def _launch(launch: ResolvedLaunch, buffers: Mapping[str, Buffer]) -> str:
    grid, block, cluster = (f"Dim{{{x}, {y}, {z}}}" for x, y, z in (launch.grid, launch.block, launch.cluster))
    arguments = ", ".join(_argument(arg, buffers) for arg in launch.args)
    programmatic = str(launch.programmatic).lower()
    return f'Launch{{"{launch.entry}", {grid}, {block}, {cluster}, {launch.dynamic_smem}, {programmatic}, {{{arguments}}}}}'


def _argument(arg: Arg, buffers: Mapping[str, Buffer]) -> str:
    match arg:
        case TensorArg(tensor=name):
            return f"pointer({_OPERAND[name]})"
        case TensorPartArg():
            raise TypeError("a plan of a matrix product points to whole operands")
        case TensorMapArg(tensor_map=spec):
            offset, element, *sizes = map_layout(spec, buffers)
            lists = ", ".join(f"{{{', '.join(map(str, numbers))}}}" for numbers in (*sizes, spec.box))
            view = f"{{{TENSOR_MAP_TYPES[element]}, {lists}, {spec.swizzle}, {spec.l2}}}"
            return f"tensor_map({_OPERAND[spec.of]}, {offset}, {view})"
        case WorkspaceArg(workspace=offset):
            return f"pointer(kWorkspace, {offset})"
        case ScalarArg():
            value = pack_argument(arg, {}, lambda _: b"")
            return f"scalar({int.from_bytes(value, 'little')}u, {len(value)})"
