"""Inspection: facts of the compiled code, and the rules that only compiled code can break visibly.

Covered: entries and parameters against the plan; launch bounds, registers and shared memory against the chip; accumulator
width of every tensor-core instruction in PTX and SASS; special registers and opcodes by allow-lists; outside calls, traps
and lasting state in PTX, SASS and the cubin's sections. Code that cannot be read is refused.
Not covered: accumulators of tcgen05 (in a run-time descriptor) and of arithmetic outside tensor cores; verification tests
those. Without nvdisasm the SASS is not judged, and a warning says so.
"""

from collections.abc import Iterator
from pathlib import Path

from contract.candidate import AnyCandidate, Candidate
from contract.chip import ChipLimits
from contract.evaluation import Rejected
from contract.inspection import Inspection, KernelResources
from contract.plan import Arg, ResolvedLaunch, ResolvedPlan, ScalarArg, TensorMapArg
from contract.task import AccumulatorType, Arch, GemmTask
from sandbox.building.cache import sha256_of
from sandbox.building.compiler import Compiled
from sandbox.emulator.ptx.lexer import MAX_CHARS
from sandbox.emulator.ptx.module import PtxError, Unsupported
from sandbox.inspect import code, elf, opcodes, sass
from sandbox.inspect.addresses import Misuse, misuses
from sandbox.inspect.code import Code, Entry
from sandbox.inspect.constant_bank import BANKS
from sandbox.inspect.cubin import cubin_rules
from sandbox.inspect.occupancy import occupancy
from sandbox.inspect.ptxas_log import Resources, parse_resources, parse_warnings
from sandbox.inspect.special_registers import refused_rule

NOT_JUDGED = "SASS was not judged: there is no nvdisasm that can read it; PTX alone was"
_POINTER_BYTES, _TENSOR_MAP_BYTES = 8, 128
_SCALAR_BYTES = {"i32": 4, "u32": 4, "i64": 8, "f32": 4}
_WHY_SPECIAL = {
    "device-clock": "a kernel that can read the time or count launches can tell when it is being timed",
    "special-register": "kernels may read sizes, places, lanes and masks only",
}


def inspect(
    compiled: Compiled, candidate: AnyCandidate, plan: ResolvedPlan | None, task: GemmTask, limits: ChipLimits
) -> Inspection | Rejected:
    """Inspect compiled code; the first broken rule rejects it. `plan` is None for a host candidate, which launches by
    itself.

    Raises: WorkerError where nvdisasm cannot be started.
    """
    ptx_path, cubin_path = Path(compiled.ptx_path), Path(compiled.cubin_path)
    if ptx_path.stat().st_size > MAX_CHARS:
        return Rejected(rule="code-size", message=f"the kernel compiles to more than {MAX_CHARS} bytes of PTX")
    try:
        variables = _variables(cubin_path) if isinstance(candidate, Candidate) else ()
        ptx = code.read(ptx_path.read_bytes().decode(errors="replace"))
        machine_code = sass.disassemble(cubin_path)
    except _Refused as exc:
        return exc.rejected
    except elf.ElfError as exc:
        return Rejected(rule="code-object", message=f"the compiled code cannot be read: {exc}")
    except (PtxError, Unsupported) as exc:
        return Rejected(rule="ptx-unreadable", message=f"the compiled code cannot be judged: {exc}")
    except sass.SassUnreadable as exc:
        return Rejected(rule="sass-unreadable", message=f"the compiled code cannot be judged: {exc}")
    kernels = _kernels(ptx, parse_resources(compiled.log), plan, limits)
    broken = next(_broken_rules(ptx, machine_code, variables, candidate, plan, kernels, task, limits), None)
    return broken or _described(compiled, ptx, machine_code, kernels)


def _described(
    compiled: Compiled, ptx: Code, machine_code: sass.Sass | None, kernels: tuple[KernelResources, ...]
) -> Inspection:
    return Inspection(
        cubin_sha256=sha256_of(Path(compiled.artifact_path)),
        compile_seconds=compiled.seconds,
        kernels=kernels,
        opcodes=machine_code.opcodes if machine_code else ptx.opcodes,
        opcode_source="sass" if machine_code else "ptx",
        mma=ptx.mma + (machine_code.mma if machine_code else ()),
        accumulators=tuple(sorted(_accumulators(ptx, machine_code))),
        warnings=parse_warnings(compiled.log) + (() if machine_code else (NOT_JUDGED,)),
    )


class _Refused(Exception):
    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.message)
        self.rejected = rejected


def _variables(cubin_path: Path) -> tuple[elf.ModuleVariable, ...]:
    """The module variables of a cubin that breaks no rule on cubins. Raises: ElfError, _Refused."""
    cubin = elf.read(cubin_path.read_bytes())
    broken = next(cubin_rules(cubin), None)
    if broken is not None:
        raise _Refused(broken)
    return elf.variables_of(cubin)


def _broken_rules(
    ptx: Code,
    machine_code: sass.Sass | None,
    variables: tuple[elf.ModuleVariable, ...],
    candidate: AnyCandidate,
    plan: ResolvedPlan | None,
    kernels: tuple[KernelResources, ...],
    task: GemmTask,
    limits: ChipLimits,
) -> Iterator[Rejected]:
    for launch in plan.launches if plan else ():
        yield from _launch_rules(launch, ptx.entries.get(launch.entry))
    for kernel in kernels:
        yield from _resource_rules(kernel, limits)
    if isinstance(candidate, Candidate):
        yield from _code_rules(ptx)
        yield from _state_rules(ptx, variables)
        if machine_code is not None:
            yield from _sass_rules(machine_code, task.arch)
    if task.accumulate is AccumulatorType.F32:
        yield from _accumulator_rules(ptx, machine_code)


def _launch_rules(launch: ResolvedLaunch, entry: Entry | None) -> Iterator[Rejected]:
    """A launch against the header of its entry: what the driver refuses, and what it does not check."""
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


def _code_rules(ptx: Code) -> Iterator[Rejected]:
    yield from _special_register_rules(ptx.special_registers)
    for name in ptx.outside_calls:
        yield Rejected(rule="device-call", message=f"{name[:80]}: device code may not print, allocate, assert or launch")
    for name in ptx.traps:
        yield Rejected(rule="device-trap", message=f"{name}: a kernel ends by returning; remove the trap")


def _special_register_rules(names: tuple[str, ...]) -> Iterator[Rejected]:
    for name in names:
        rule = refused_rule(name)
        if rule is not None:
            yield Rejected(rule=rule, message=f"{name}: {_WHY_SPECIAL[rule]}")


def _state_rules(ptx: Code, variables: tuple[elf.ModuleVariable, ...]) -> Iterator[Rejected]:
    """Memory of the module: PTX must use the address of every variable for reading only."""
    for misuse in misuses(ptx.module):
        yield _misused(misuse)
    for variable in variables:
        if variable.name not in ptx.module.variables:
            message = (
                f"variable {variable.name[:80]} in device memory could be written; use shared memory or the plan's workspace"
            )
            yield Rejected(rule="device-state", message=message)


def _misused(misuse: Misuse) -> Rejected:
    where = f"PTX line {misuse.instruction.line}, {misuse.instruction.text[:80]!r}"
    if misuse.space == "param":
        message = (
            f"{misuse.origin[:80]}: a kernel may only read inside its own parameters, at places that the code fixes; {where}"
        )
        return Rejected(rule="launch-data", message=message)
    message = (
        f"variable {misuse.origin[:80]} in device memory could be written; "
        f"use __constant__, shared memory or the plan's workspace; {where}"
    )
    return Rejected(rule="device-state", message=message)


def _sass_rules(machine_code: sass.Sass, arch: Arch) -> Iterator[Rejected]:
    yield from _special_register_rules(machine_code.special_registers)
    for line in machine_code.unread:
        yield Rejected(rule="opcode", message=f"{line!r} is not a machine instruction of a known form")
    for word in machine_code.opcodes:
        refused = opcodes.refusal(word)
        if refused is not None and (word != "BPT" or machine_code.traps):
            yield Rejected(rule=refused[0], message=f"{word}: {refused[1]}")
    for offset, indexed in machine_code.constants:
        if offset is None or not BANKS[arch].allows(offset, indexed=indexed):
            place = "an unknown place" if offset is None else f"{offset:#x}{' and a register' if indexed else ''}"
            message = f"the code reads constant bank 0 at {place}, where the driver keeps data of the launch"
            yield Rejected(rule="launch-data", message=message)


def _accumulator_rules(ptx: Code, machine_code: sass.Sass | None) -> Iterator[Rejected]:
    for name in _mma_with(AccumulatorType.F16, ptx, machine_code):
        yield Rejected(rule="accumulator-width", message=f"{name} accumulates in f16; the task asks for f32")


def _mma_with(kind: AccumulatorType, ptx: Code, machine_code: sass.Sass | None) -> Iterator[str]:
    yield from (name for name in ptx.mma if kind in code.accumulators(name))
    yield from (name for name in (machine_code.mma if machine_code else ()) if kind in sass.accumulators(name))


def _accumulators(ptx: Code, machine_code: sass.Sass | None) -> set[AccumulatorType]:
    return {kind for kind in AccumulatorType if next(_mma_with(kind, ptx, machine_code), None)}


def _argument_bytes(arg: Arg) -> int:
    match arg:
        case TensorMapArg():
            return _TENSOR_MAP_BYTES
        case ScalarArg():
            return _SCALAR_BYTES[arg.type]
        case _:
            return _POINTER_BYTES


def _kernels(
    ptx: Code, resources: dict[str, Resources], plan: ResolvedPlan | None, limits: ChipLimits
) -> tuple[KernelResources, ...]:
    """Resources of every launch; for a host candidate of every entry, with unknown dynamic shared memory."""
    if plan is None:
        launches = [(entry.name, entry.max_threads or 0, 0) for entry in ptx.entries.values()]
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
