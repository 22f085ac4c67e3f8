"""Entries of a library and their launch plans as C++ data for `cudal2/launcher/native/library.hpp`."""

import json
from collections.abc import Sequence

from cudal2.launcher.loaded_kernel import BuiltKernel
from cudal2_agent.contract.plan.launching import pack_argument
from cudal2_agent.contract.plan.plan import (
    Arg,
    ResolvedLaunch,
    ResolvedPlan,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    WorkspaceArg,
    operand_shape,
)
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import ElementType, GemmTask

NamedKernel = tuple[LibraryEntry, BuiltKernel, str]  # with the file of its machine code
_ZERO = {False: "kNever", True: "kEveryRun", "restored": "kRestored"}


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
    return f"{{{task.m}, {task.n}, {task.k}, Layout::k{layout}, Element::k{element}, Accumulator::k{accumulator}}}"


def _entry(entry: LibraryEntry, kernel: BuiltKernel, cubin: str) -> str:
    speedup = entry.evaluation.speedup
    numbers = f"{entry.evaluation.time_us!r}, {speedup.ratio!r}, {speedup.low!r}"
    return f'{{{product_text(entry.task)}, "{entry.id}", "{cubin}", {numbers},\n          {_plan(kernel.plan, kernel.task)}}}'


def _plan(plan: ResolvedPlan, task: GemmTask) -> str:
    shapes = ", ".join(
        f"{{{{{rows}, {columns}}}}}" for rows, columns in (operand_shape(task, name) for name in ("A", "B", "D"))
    )
    launches = ",\n           ".join(map(_launch, plan.launches))
    bfloat16 = str(task.element is ElementType.BF16).lower()
    memory = f"{plan.workspace_bytes}, Zero::{_ZERO[plan.zero]}, {plan.zero_bytes}"
    return f"{{{bfloat16}, {{{{{shapes}}}}}, {{{launches}}}, {memory}, {plan.sms}}}"


def _launch(launch: ResolvedLaunch) -> str:
    grid, block, cluster = (f"Dim{{{x}, {y}, {z}}}" for x, y, z in (launch.grid, launch.block, launch.cluster))
    arguments = ", ".join(map(_argument, launch.args))
    programmatic = str(launch.programmatic).lower()
    return f'Launch{{"{launch.entry}", {grid}, {block}, {cluster}, {launch.dynamic_smem}, {programmatic}, {{{arguments}}}}}'


def _argument(arg: Arg) -> str:
    match arg:
        case TensorArg(tensor=name):
            return f"pointer(k{name})"
        case TensorMapArg(tensor_map=spec):
            return f"tensor_map(k{spec.of}, {spec.box[0]}, {spec.box[1]}, {spec.swizzle}, {spec.l2})"
        case WorkspaceArg(workspace=offset):
            return f"workspace({offset})"
        case ScalarArg():
            value = pack_argument(arg, {}, lambda _: b"")
            return f"scalar({int.from_bytes(value, 'little')}u, {len(value)})"
