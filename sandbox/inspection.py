"""Inspection: what the compiled code says of itself, and the rules that only compiled code can show to be broken.

Covered: entries and parameters against the plan; launch bounds, registers and shared memory against the chip; accumulator
width of every tensor-core instruction in PTX and SASS; clocks, outside calls, traps and lasting state, whatever macros hid.
Not covered: accumulators of tcgen05 (in a run-time descriptor) and of arithmetic outside tensor cores: verification sees those.
"""

from collections.abc import Iterator
from pathlib import Path

from contract.candidate import AnyCandidate, Candidate
from contract.chip import ChipLimits
from contract.evaluation import Rejected
from contract.inspection import Inspection, KernelResources
from contract.plan import Arg, ResolvedLaunch, ResolvedPlan, ScalarArg, TensorMapArg
from contract.task import AccumulatorType, GemmTask
from sandbox import ptx, sass
from sandbox.cache import sha256_of
from sandbox.compiler import Compiled
from sandbox.occupancy import occupancy
from sandbox.ptx import Entry, Ptx
from sandbox.ptxas_log import Resources, parse_resources, parse_warnings

MAX_PTX_BYTES = 16 * 2**20
_POINTER_BYTES, _TENSOR_MAP_BYTES = 8, 128
_SCALAR_BYTES = {"i32": 4, "u32": 4, "i64": 8, "f32": 4}


def inspect(
    compiled: Compiled, candidate: AnyCandidate, plan: ResolvedPlan | None, task: GemmTask, limits: ChipLimits
) -> Inspection | Rejected:
    """Inspect compiled code; the first broken rule rejects it. `plan` is None for a host candidate, which brings its own.

    Raises: WorkerError where nvdisasm can't be started.
    """
    ptx_path, cubin_path = Path(compiled.ptx_path), Path(compiled.cubin_path)
    if ptx_path.stat().st_size > MAX_PTX_BYTES:
        return Rejected(rule="code-size", message=f"the kernel compiles to more than {MAX_PTX_BYTES} bytes of PTX")
    code, machine_code = Ptx(ptx_path.read_text(errors="replace")), sass.disassemble(cubin_path)
    kernels = _kernels(code, parse_resources(compiled.log), plan, limits)
    broken = next(_broken_rules(code, machine_code, candidate, plan, kernels, task, limits), None)
    if broken is not None:
        return broken
    return Inspection(
        cubin_sha256=sha256_of(Path(compiled.artifact_path)),
        compile_seconds=compiled.seconds,
        kernels=kernels,
        opcodes=machine_code.opcodes if machine_code else code.opcodes,
        opcode_source="sass" if machine_code else "ptx",
        mma=code.mma + (machine_code.mma if machine_code else ()),
        accumulators=tuple(sorted(_accumulators(code, machine_code))),
        warnings=parse_warnings(compiled.log),
    )


def _broken_rules(
    code: Ptx,
    machine_code: sass.Sass | None,
    candidate: AnyCandidate,
    plan: ResolvedPlan | None,
    kernels: tuple[KernelResources, ...],
    task: GemmTask,
    limits: ChipLimits,
) -> Iterator[Rejected]:
    for launch in plan.launches if plan else ():
        yield from _launch_rules(launch, code.entries.get(launch.entry))
    for kernel in kernels:
        yield from _resource_rules(kernel, limits)
    if isinstance(candidate, Candidate):
        yield from _code_rules(code, machine_code)
    if task.accumulate is AccumulatorType.F32:
        yield from _accumulator_rules(code, machine_code)


def _launch_rules(launch: ResolvedLaunch, entry: Entry | None) -> Iterator[Rejected]:
    """A launch against the header of its entry: what the driver would refuse, or worse, would not check."""
    if entry is None:
        yield Rejected(rule="entry-missing", message=f'the compiled code has no kernel {launch.entry}; is it extern "C"?')
        return
    wanted = tuple(_argument_bytes(arg) for arg in launch.args)
    if wanted != entry.parameter_bytes:
        message = f"{launch.entry} takes parameters of {entry.parameter_bytes} bytes, the plan passes {wanted}"
        yield Rejected(rule="entry-parameters", message=message)
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if entry.required_block not in (None, launch.block) or threads > (entry.max_threads or threads):
        message = f"{launch.entry} is built for at most {entry.max_threads} threads, the plan launches {launch.block}"
        yield Rejected(rule="launch-bounds", message=message)
    if entry.required_cluster not in (None, launch.cluster):
        message = f"{launch.entry} is built for cluster {entry.required_cluster}, the plan launches {launch.cluster}"
        yield Rejected(rule="launch-bounds", message=message)


def _resource_rules(kernel: KernelResources, limits: ChipLimits) -> Iterator[Rejected]:
    smem = kernel.static_smem_bytes + kernel.dynamic_smem_bytes
    if smem > limits.max_smem_per_block_bytes:
        message = f"{kernel.entry}: {smem} bytes of shared memory; the chip allows {limits.max_smem_per_block_bytes}"
        yield Rejected(rule="smem-limit", message=message)
    elif kernel.threads and not kernel.ctas_per_sm:
        message = (
            f"{kernel.entry}: {kernel.threads} threads of {kernel.registers} registers exceed an SM's {limits.registers_per_sm}"
        )
        yield Rejected(rule="register-limit", message=message)


def _code_rules(code: Ptx, machine_code: sass.Sass | None) -> Iterator[Rejected]:
    for name in (*code.clocks(), *(machine_code.clocks if machine_code else ())):
        yield Rejected(rule="device-clock", message=f"{name}: a kernel that can read the time can tell when it is being timed")
    for name in code.outside_calls():
        yield Rejected(rule="device-call", message=f"{name}: device code may not print, allocate, assert or launch")
    for name in code.traps():
        yield Rejected(rule="device-trap", message=f"{name}: a kernel ends by returning; remove the trap")
    for name in code.state():
        message = f"variable {name} in device memory could be written; use __constant__, shared memory or the plan's workspace"
        yield Rejected(rule="device-state", message=message)


def _accumulator_rules(code: Ptx, machine_code: sass.Sass | None) -> Iterator[Rejected]:
    for name in _mma_with(AccumulatorType.F16, code, machine_code):
        yield Rejected(rule="accumulator-width", message=f"{name} accumulates in f16; the task asks for f32")


def _mma_with(kind: AccumulatorType, code: Ptx, machine_code: sass.Sass | None) -> Iterator[str]:
    yield from (name for name in code.mma if kind in ptx.accumulators(name))
    yield from (name for name in (machine_code.mma if machine_code else ()) if kind in sass.accumulators(name))


def _accumulators(code: Ptx, machine_code: sass.Sass | None) -> set[AccumulatorType]:
    return {kind for kind in AccumulatorType if next(_mma_with(kind, code, machine_code), None)}


def _argument_bytes(arg: Arg) -> int:
    match arg:
        case TensorMapArg():
            return _TENSOR_MAP_BYTES
        case ScalarArg():
            return _SCALAR_BYTES[arg.type]
        case _:
            return _POINTER_BYTES


def _kernels(
    code: Ptx, resources: dict[str, Resources], plan: ResolvedPlan | None, limits: ChipLimits
) -> tuple[KernelResources, ...]:
    """Resources of every launch; for a host candidate of every entry, its dynamic shared memory unknown."""
    if plan is None:
        launches = [(entry.name, entry.max_threads or 0, 0) for entry in code.entries.values()]
    else:
        launches = [(each.entry, each.block[0] * each.block[1] * each.block[2], each.dynamic_smem) for each in plan.launches]
    used = (_kernel(*launch, resources.get(launch[0], Resources()), limits) for launch in dict.fromkeys(launches))
    return tuple(used)


def _kernel(entry: str, threads: int, dynamic_smem: int, used: Resources, limits: ChipLimits) -> KernelResources:
    held = occupancy(threads, used.registers, used.static_smem_bytes + dynamic_smem, limits) if threads else None
    return KernelResources(
        entry=entry,
        registers=used.registers,
        spill_store_bytes=used.spill_store_bytes,
        spill_load_bytes=used.spill_load_bytes,
        stack_bytes=used.stack_bytes,
        static_smem_bytes=used.static_smem_bytes,
        dynamic_smem_bytes=dynamic_smem,
        threads=threads,
        ctas_per_sm=held.ctas_per_sm if held else 0,
        occupancy=held.fraction if held else 0.0,
        occupancy_limiter=held.limiter if held else "unknown",
    )
