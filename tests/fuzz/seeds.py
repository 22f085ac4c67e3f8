"""Seeds compiled at start: kernels of both schedule families, the tests' own kernels, and the golden cases."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.launching import pack_argument, programmatic_edges
from cudal2_agent.contract.plan.plan import Arg, ResolvedLaunch, ScalarArg, TensorArg, TensorMapArg, WorkspaceArg
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import UP, ElementType, GemmTask
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.emulator.machine import TensorMap
from tests.fuzz.seed import Argument, Buffer, Launch, MapOf, Pointer, Seed
from tests.sandbox.emulator.golden.case import Case, Family, MapSpec
from tests.sandbox.emulator.golden.compiled import compile_family
from tests.sandbox.emulator.golden.families import families
from tests.sandbox.emulator.kernels.families import CHIP, FamilyKernel, sampled
from tests.sandbox.emulator.kernels.written import WRITTEN

_ENTRY = re.compile(r"^(?:\.visible\s+|\.weak\s+)?\.entry\s+(\w+)", re.MULTILINE)
_OPERANDS = ("A", "B", "D", "workspace", UP)  # the last one of gated tasks alone
_NUMBERS = 8  # parameters of golden kernels


def all_seeds(compiler: Compiler, cases_a_kernel: int = 2) -> list[Seed]:
    """All seeds that this machine can compile, in a fixed order."""
    return [
        *(family_seed(kernel, compiler) for kernel in one_of_each_trait()),
        *written_seeds(compiler),
        *(seed for family in families() for seed in golden_seeds(family, cases_a_kernel)),
    ]


# ---- products ---------------------------------------------------------------------------------------------------------------
def one_of_each_trait() -> list[FamilyKernel]:
    kernels = {(kernel.family, kernel.trait): kernel for kernel in sampled()}
    return list(kernels.values())


def family_seed(kernel: FamilyKernel, compiler: Compiler) -> Seed:
    return _product_seed(kernel.id, kernel.candidate, kernel.task, compiler)


def written_seeds(compiler: Compiler) -> Iterator[Seed]:
    for kernel in WRITTEN:
        if kernel.missing() is None:
            yield _product_seed(kernel.name, kernel.candidate(), kernel.tasks[-1], compiler)


def _product_seed(name: str, candidate: object, task: GemmTask, compiler: Compiler) -> Seed:
    compiled = compiler.compile(candidate, task.arch)
    assert isinstance(compiled, Compiled), compiled
    plan = resolve(candidate.plan, task, LIMITS[task.arch], CHIP.sms)
    rng = np.random.default_rng(0)
    read = ("A", "B", UP) if task.gated else ("A", "B")
    inputs = [rng.integers(-2, 3, task.shapes[each]).astype(np.float16).tobytes() for each in read]
    a, b, *up = (Buffer(numbers, writable=False, written=len(numbers)) for numbers in inputs)
    d = Buffer(bytes(2 * task.m * task.n), writable=True, written=0)
    workspace = Buffer(bytes(max(plan.workspace_bytes, 16)), writable=True, written=plan.zero_bytes)
    buffers = (a, b, d, workspace, *up)
    launches = [
        _launch(launched, task, dependent=edge) for launched, edge in zip(plan.launches, programmatic_edges(plan), strict=True)
    ]
    return Seed(name, Path(compiled.ptx_path).read_text(), buffers, tuple(launches))


def _launch(launched: ResolvedLaunch, task: GemmTask, *, dependent: bool) -> Launch:
    arguments = tuple(_argument(arg, task) for arg in launched.args)
    shape = (launched.grid, launched.block, launched.cluster)
    return Launch(launched.entry, *shape, launched.dynamic_smem, dependent, arguments)


def _argument(arg: Arg, task: GemmTask) -> Argument:
    match arg:
        case TensorArg(tensor=name):
            return Pointer(_OPERANDS.index(name))
        case WorkspaceArg(workspace=offset):
            return Pointer(_OPERANDS.index("workspace"), int(offset))
        case TensorMapArg(tensor_map=spec):
            rows, columns = task.shapes[spec.of]
            element = "f16" if task.element is ElementType.F16 else "bf16"
            tensor = TensorMap(element, (columns, rows), (2 * columns,), tuple(spec.box), spec.swizzle)
            return MapOf(Pointer(_OPERANDS.index(spec.of)), tensor)
        case ScalarArg():
            return pack_argument(arg, {}, lambda _: b"")


# ---- golden cases -----------------------------------------------------------------------------------------------------------
def golden_seeds(family: Family, cases_a_kernel: int) -> Iterator[Seed]:
    """Some cases of every kernel of a family, each in its own module."""
    modules = dict(_modules(compile_family(family, "compute_90a").ptx))
    by_kernel: dict[str, list[Case]] = {}
    for case in family.cases:
        by_kernel.setdefault(case.kernel, []).append(case)
    for kernel, cases in by_kernel.items():
        for case in random.Random(kernel).sample(cases, min(cases_a_kernel, len(cases))):
            yield _golden_seed(f"{family.name}/{case.name}", modules[kernel], case)


def _golden_seed(name: str, ptx: str, case: Case) -> Seed:
    given, before = case.buffers()
    numbers = np.zeros(_NUMBERS, np.int32)
    numbers[: len(case.numbers)] = case.numbers
    arguments = (Pointer(0), Pointer(1), numbers.tobytes(), *(_map(spec) for spec in case.maps))
    buffers = (
        Buffer(given.tobytes(), writable=False, written=given.nbytes),
        Buffer(before.tobytes(), writable=True, written=before.nbytes),
    )
    launched = Launch(case.kernel, case.grid, case.block, case.cluster, case.smem, False, arguments)
    return Seed(name, ptx, buffers, (launched,))


def _map(spec: MapSpec) -> MapOf:
    tensor = TensorMap(spec.element, spec.sizes, spec.strides, spec.box, spec.swizzle)
    return MapOf(Pointer(0 if spec.of == "in" else 1, spec.offset), tensor)


def _modules(ptx: str) -> Iterator[tuple[str, str]]:
    """Each entry of a module by name, with the declarations before the first entry."""
    starts = [(match.start(), match[1]) for match in _ENTRY.finditer(ptx)]
    ends = [start for start, _ in starts[1:]] + [len(ptx)]
    for (start, name), end in zip(starts, ends, strict=True):
        yield name, ptx[: starts[0][0]] + ptx[start:end]
