"""Tasks and candidates as definitions, workloads and solutions."""

import re
import uuid
from collections.abc import Mapping

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.task import AccumulatorType, ElementType, GemmTask, Layout
from cudal2_agent.policies.exports.flashinfer.bench_records import (
    BenchAxis,
    BenchBuild,
    BenchDefinition,
    BenchInput,
    BenchSolution,
    BenchSource,
    BenchTensor,
    BenchType,
    BenchWorkload,
)
from cudal2_agent.policies.exports.flashinfer.host_launcher import (
    DEVICE,
    ENTRY_POINT,
    KERNEL,
    LAUNCHER,
    OUTPUT,
    arch_list,
    device_text,
    launcher_text,
    lost_flags,
)

AUTHOR = "cudal2-agent"
OP = "gemm"
_DTYPE: dict[ElementType, BenchType] = {ElementType.F16: "float16", ElementType.BF16: "bfloat16"}
_PRODUCT = {Layout.NN: "A, B", Layout.TN: "A, B.T", Layout.NT: "A.T, B"}
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]", re.MULTILINE)


def definition_of(task: GemmTask) -> BenchDefinition:
    """The GEMM of a task for every M: N and K belong to the weights and are constant, as in flashinfer-bench's own GEMMs."""
    dtype = _DTYPE[task.element]
    a_shape = ("K", "M") if task.layout.transposes_a else ("M", "K")
    b_shape = ("N", "K") if task.layout.transposes_b else ("K", "N")
    kind = f"{task.element} elements, {task.accumulate} accumulation, layout {task.layout}"
    return BenchDefinition(
        name=f"{OP}_{task.layout}_{task.element}_{task.accumulate}_n{task.n}_k{task.k}",
        axes={"M": _axis(None), "N": _axis(task.n), "K": _axis(task.k)},
        inputs={"A": BenchTensor(shape=a_shape, dtype=dtype), "B": BenchTensor(shape=b_shape, dtype=dtype)},
        outputs={OUTPUT: BenchTensor(shape=("M", "N"), dtype=dtype)},
        reference=f"import torch\n\n\ndef run(A, B):\n    return torch.matmul({_PRODUCT[task.layout]})\n",
        tags=(f"element:{task.element}", f"accumulate:{task.accumulate}", f"layout:{task.layout}"),
        description=f"Matrix product: {kind}.{_half_note(task)}",
    )


def _half_note(task: GemmTask) -> str:
    if task.accumulate is AccumulatorType.F32:
        return ""
    return " Sums in f16 differ from the reference by more than sums in f32 do; judge them with a wider tolerance."


def _axis(value: int | None) -> BenchAxis:
    return BenchAxis(type="var") if value is None else BenchAxis(type="const", value=value)


def workload_of(task: GemmTask) -> BenchWorkload:
    """The M of a task, with random inputs. Equal tasks on other chips and in other timing modes are one workload."""
    identity = digest([definition_of(task).name, task.m], length=32)
    return BenchWorkload(axes={"M": task.m}, inputs={"A": BenchInput(), "B": BenchInput()}, uuid=str(uuid.UUID(hex=identity)))


def solution_of(task: GemmTask, chip: Chip, candidate: AnyCandidate, headers: Mapping[str, str]) -> BenchSolution | None:
    """A candidate with a host launcher for a task and a chip; None where none can be written."""
    if not isinstance(candidate, Candidate) or not candidate.source:
        return None
    try:
        launcher = launcher_text(candidate, task, chip)
    except PlanError:
        return None
    definition = definition_of(task).name
    chip_name = re.sub(r"[^a-z0-9]+", "-", chip.name.lower())
    texts = {
        LAUNCHER: launcher,
        DEVICE: device_text(candidate, task.arch),
        KERNEL: candidate.source,
        **_included(candidate.source, headers),
    }
    return BenchSolution(
        name=f"{definition}_m{task.m}_{chip_name}_{task.arch}_{candidate.id}",
        definition=definition,
        author=f"{AUTHOR} ({candidate.origin.policy})",
        spec=BenchBuild(target_hardware=("cuda", chip.name, task.arch.value), entry_point=ENTRY_POINT),
        sources=tuple(BenchSource(path=path, content=text) for path, text in texts.items()),
        description=_description(candidate, task, chip, headers),
    )


def _included(source: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a source includes, directly or through others, in order of their names."""
    found: dict[str, str] = {}
    waiting = _INCLUDE.findall(source)
    while waiting:
        name = waiting.pop()
        if name in headers and name not in found:
            found[name] = headers[name]
            waiting += _INCLUDE.findall(headers[name])
    return dict(sorted(found.items()))


def _description(candidate: Candidate, task: GemmTask, chip: Chip, headers: Mapping[str, str]) -> str:
    """How the kernel was measured, and what differs where flashinfer-bench builds it."""
    parts = [
        f"{candidate.label}. Verified and timed by {AUTHOR} for M = {task.m} on {chip.name}; it refuses other shapes.",
        f"It was compiled by {candidate.compiler}; flashinfer-bench compiles it by nvcc with TVM-FFI's flags, so that the"
        f" machine code and the time may differ. Set TVM_FFI_CUDA_ARCH_LIST={arch_list(task.arch)} for {task.arch}.",
    ]
    if lost := lost_flags(candidate):
        parts.append(f"It was measured with flags that flashinfer-bench cannot pass: {' '.join(lost)}.")
    if missing := sorted(_missing(candidate.source, headers)):
        parts.append(f"It includes headers that are not part of this solution: {', '.join(missing)}.")
    return " ".join(parts)


def _missing(source: str, headers: Mapping[str, str]) -> set[str]:
    """The headers of CUTLASS, and of this project where they were not given."""
    return {
        name for name in _INCLUDE.findall(source) if name.startswith(("cute/", "cutlass/", "cudal2/")) and name not in headers
    }
