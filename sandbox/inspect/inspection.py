"""Inspection: facts of the compiled code, and the rules that only compiled code can break visibly.

Covered: entries and parameters against the plan; launch bounds, registers and shared memory against the chip; accumulator
width of every tensor-core instruction in PTX and SASS; for a module, number formats and roundings; special registers and
opcodes by allow-lists; outside calls, traps and lasting state in PTX, SASS and the cubin's sections. Code that cannot be read
is refused.
Not covered: accumulators of tcgen05 (in a run-time descriptor) and of arithmetic outside tensor cores; verification tests
those. Without nvdisasm the SASS is not judged, and a warning says so.
"""

from collections.abc import Iterator
from pathlib import Path

from cudal2_agent.contract.plan.chip import ChipLimits
from cudal2_agent.contract.plan.launching import argument_bytes
from cudal2_agent.contract.plan.plan import ResolvedLaunch, ResolvedPlan
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.inspection import Inspection, KernelResources
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.task import AccumulatorType
from cudal2_agent.sandbox.building.cache import CompileCache, sha256_of
from cudal2_agent.sandbox.building.compiler import Compiled
from cudal2_agent.sandbox.inspect.arithmetic import module_rules
from cudal2_agent.sandbox.inspect.code import Entry
from cudal2_agent.sandbox.inspect.facts import CodeFacts, facts_of
from cudal2_agent.sandbox.inspect.resources import Resources, occupancy, parse_resources, parse_warnings

PUT_OFF = "SASS was not judged yet; it is before the kernel is verified in full"
NOT_JUDGED = "SASS was not judged: there is no nvdisasm that can read it; PTX alone was"


def inspect(
    compiled: Compiled,
    candidate: AnyCandidate,
    plan: ResolvedPlan | None,
    task: Task,
    limits: ChipLimits,
    cache: CompileCache | None = None,
    *,
    machine_code: bool = True,
) -> Inspection | Rejected:
    """Inspect compiled code; the first broken rule rejects it. `plan` is None for a host candidate, which launches by
    itself. `cache`: where the facts of the code are kept. `machine_code`: whether to judge SASS now, which takes most of the
    time.

    Raises: WorkerError where nvdisasm cannot be started, MachineError where the cache is not writable.
    """
    facts = facts_of(compiled, task.arch, device=isinstance(candidate, Candidate), cache=cache, machine_code=machine_code)
    if isinstance(facts, Rejected):
        return facts
    kernels = _kernels(facts, parse_resources(compiled.log), plan, limits)
    broken = next(_broken_rules(facts, plan, kernels, task, limits), None)
    return broken or _described(compiled, facts, kernels, NOT_JUDGED if machine_code else PUT_OFF)


def _described(compiled: Compiled, facts: CodeFacts, kernels: tuple[KernelResources, ...], why_not: str) -> Inspection:
    return Inspection(
        cubin_sha256=sha256_of(Path(compiled.artifact_path)),
        compile_seconds=compiled.seconds,
        kernels=kernels,
        opcodes=facts.opcodes,
        opcode_source="sass" if facts.judged_sass else "ptx",
        mma=facts.mma,
        accumulators=facts.accumulators,
        warnings=parse_warnings(compiled.log) + (() if facts.judged_sass else (why_not,)),
    )


def _broken_rules(
    facts: CodeFacts, plan: ResolvedPlan | None, kernels: tuple[KernelResources, ...], task: Task, limits: ChipLimits
) -> Iterator[Rejected]:
    for launch in plan.launches if plan else ():
        yield from _launch_rules(launch, facts.entries.get(launch.entry))
    for kernel in kernels:
        yield from _resource_rules(kernel, limits)
    if facts.fault is not None:
        yield facts.fault
    if isinstance(task, ModuleTask) or task.accumulate is AccumulatorType.F32:
        yield from _accumulator_rules(facts)
    if isinstance(task, ModuleTask):
        yield from module_rules(facts.mma, facts.narrowing, task)


def _launch_rules(launch: ResolvedLaunch, entry: Entry | None) -> Iterator[Rejected]:
    """A launch against the header of its entry: what the driver refuses, and what it does not check."""
    if entry is None:
        yield Rejected(rule="entry-missing", message=f'the compiled code has no kernel {launch.entry}; is it extern "C"?')
        return
    wanted = tuple(argument_bytes(arg) for arg in launch.args)
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


def _accumulator_rules(facts: CodeFacts) -> Iterator[Rejected]:
    for name in facts.half:
        yield Rejected(rule="accumulator-width", message=f"{name} accumulates in f16; the task asks for f32")


def _kernels(
    facts: CodeFacts, resources: dict[str, Resources], plan: ResolvedPlan | None, limits: ChipLimits
) -> tuple[KernelResources, ...]:
    """Resources of every launch; for a host candidate of every entry, with unknown dynamic shared memory."""
    if plan is None:
        launches = [(entry.name, entry.max_threads or 0, 0) for entry in facts.entries.values()]
    else:
        launches = [(each.entry, each.block[0] * each.block[1] * each.block[2], each.dynamic_smem) for each in plan.launches]
    used = (_kernel(*launch, resources.get(launch[0], Resources()), limits) for launch in dict.fromkeys(launches))
    return tuple(used)


def _kernel(entry: str, threads: int, dynamic_smem: int, used: Resources, limits: ChipLimits) -> KernelResources:
    held = occupancy(threads, used.registers, used.static_smem_bytes + dynamic_smem, limits) if threads else None
    return KernelResources(
        entry=entry,
        **vars(used),
        dynamic_smem_bytes=dynamic_smem,
        threads=threads,
        ctas_per_sm=held.ctas_per_sm if held else 0,
        occupancy=held.fraction if held else 0.0,
        occupancy_limiter=held.limiter if held else "unknown",
    )
