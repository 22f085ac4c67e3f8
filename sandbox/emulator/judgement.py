"""Whether a run had a fault besides a wrong result: the core's findings, in terms that a kernel's author can act on.

A suspect finding is a fault only if the value read matters. For a read of uninitialised memory the run is repeated under the
same interleaving with taint: old contents that reach an output, an address or a branch are a fault, whatever their values. For
a race with a read the run is repeated with another poison in its place, and outputs are compared bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cudal2_agent.contract.plan.plan import ResolvedLaunch
from cudal2_agent.contract.records.symptoms import BarrierWait
from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.detector import Detector
from cudal2_agent.sandbox.emulator.kernel import BoundKernel, Launched
from cudal2_agent.sandbox.emulator.lowering.program import Program
from cudal2_agent.sandbox.emulator.machine import Conditions, Interleaving
from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from cudal2_agent.sandbox.emulator.waits import address_in_words, instruction_at, located, waits_of
from cudal2_agent.sandbox.verification.executor import Violation

# Kinds of findings that are not faults of the kernel.
UNSUPPORTED, DEADLINE = core.unsupported, core.deadline
# In place of the first poison, a NaN: zeros in one run, small numbers in the next (as halves 1.06, as f32 0.0115).
OTHER_POISONS = (0x00, 0x3C)
_PLACES = 2  # at which warps wait, in a message; a test's symptoms tell more


class OutOfTime(Exception):
    """A run was stopped because the time of the proof is over. The message says how much of it the run took.

    `waits`: where its warps were then.
    """

    def __init__(self, message: str, waits: tuple[BarrierWait, ...] = ()) -> None:
        super().__init__(message)
        self.waits = waits


@dataclass(frozen=True)
class Judged:
    """`fault`: the first that counts, None where there is none. `benign`: suspects whose values reached no output."""

    fault: Violation | None
    benign: tuple[str, ...] = ()


def run_and_judge(
    bound: BoundKernel,
    conditions: Conditions,
    prepare: Callable[[], None],
    *,
    ctas: Sequence[Sequence[int]] = (),
) -> Judged:
    """Run once, and once more where a suspect must be judged. `prepare` puts what the kernel may write into its
    first state.

    `ctas`: as in `BoundKernel.run`.

    Raises: OutOfTime, Unsupported for a feature that the core lacks.
    """
    prepare()
    launched = bound.run(conditions, ctas=ctas)
    fault = _first(bound, launched, conditions, suspect=False)
    if fault is not None:
        return Judged(fault)
    suspect = _first(bound, launched, conditions, suspect=True)
    kinds = {finding.kind for each in launched for finding in each.outcome.findings}
    if conditions.races and (suspect is not None or any(each.program.unwatched for each in launched)):
        prepare()
        again = bound.run(replace(conditions, taint=True), ctas=ctas)
        reached = _first(bound, again, conditions, suspect=False) or _tainted_output(bound, again, conditions)
        if reached is not None:
            return Judged(_with_read(reached, suspect if Detector.UNINITIALISED_READ in kinds else None))
    if not any(_races(each) for each in launched):
        return Judged(None, tuple(sorted(kinds)))
    seen = {each.name: bound.arrays[each.name].copy() for each in bound.kernel.outputs}
    prepare()
    again = bound.run(
        replace(conditions, poison=OTHER_POISONS[conditions.seed % len(OTHER_POISONS)]),
        ctas=ctas,
        poisoned=[each.outcome.suspects for each in launched],
    )
    hard = _first(bound, again, conditions, suspect=False)
    if hard is not None or not all(np.array_equal(before, bound.arrays[name]) for name, before in seen.items()):
        return Judged(suspect)
    return Judged(None, tuple(sorted(kinds)))


def _races(launched: Launched) -> bool:
    """Whether a launch had, or may have had, other suspects than reads of uninitialised memory."""
    findings, suspects = launched.outcome.findings, launched.outcome.suspects
    known = all(finding.kind == Detector.UNINITIALISED_READ for finding in findings) and len(findings) < core.max_suspects
    return bool(suspects) or not known


def _tainted_output(bound: BoundKernel, launched: Sequence[Launched], conditions: Conditions) -> Violation | None:
    """The first element of an output that was written with old contents, and not overwritten."""
    tainted = ((output, bound.machine.memory.tainted(output.name)) for output in bound.kernel.outputs)
    output, left = next(((output, left) for output, left in tainted if left), (None, []))
    if output is None:
        return None
    offset, _, launch, instruction = left[0]
    element = ", ".join(str(int(index)) for index in np.unravel_index(offset // output.element.bytes, output.shape))
    elements = -(-sum(size for _, size, _, _ in left) // output.element.bytes)
    each = launched[bound.called.get(output.name, 0) + launch]
    parts = [
        f"old, uninitialised contents reach an output, element ({element}) of {output.name},"
        f" stored at {located(each.program, instruction)}",
        each.launch.entry,
        *([f"{elements} elements"] if elements > 1 else []),
        f"seen under {interleaving_name(conditions)}",
    ]
    return Violation(Detector.UNINITIALISED_READ, "; ".join(parts), tier="emulator")


def _with_read(reached: Violation, read: Violation | None) -> Violation:
    """What old contents reached, with the read of them. A race with a later write is reported as the cause."""
    if read is None or reached.kind != Detector.UNINITIALISED_READ:
        return reached
    if read.kind != Detector.UNINITIALISED_READ:
        return replace(read, message=f"{read.message}; {reached.message}")
    return replace(reached, message=f"{reached.message}; first {read.message}")


def _first(bound: BoundKernel, launched: Sequence[Launched], conditions: Conditions, *, suspect: bool) -> Violation | None:
    """The first fault, or the first suspect, in words. Raises: OutOfTime, Unsupported."""
    for each in launched:
        findings = {finding.kind: finding for finding in reversed(each.outcome.findings)}
        if (unknown := findings.get(UNSUPPORTED)) is not None:
            instruction = instruction_at(each.program, unknown.instruction)
            raise Unsupported(unknown.message, instruction.line, instruction.place)
        of_kind = [finding for finding in each.outcome.findings if finding.suspect == suspect and finding.kind != DEADLINE]
        if of_kind:
            finding = _cause(of_kind, bound)
            message = describe(finding, each.launch, each.program, bound, conditions)
            message += "; in the run that follows" if each.again else ""
            hang = next((one for one in each.outcome.findings if one.waiting), None)
            waits = waits_of(hang, each.program) if hang is not None else ()
            return Violation(finding.kind, message, tier="emulator", waits=waits)
        if DEADLINE in findings:
            where = _who(findings[DEADLINE], each.program)
            raise OutOfTime(
                f"the last {conditions.deadline_s:.3g} s of them in one run, under {interleaving_name(conditions)}{where}",
                waits_of(findings[DEADLINE], each.program),
            )
    return None


def _cause(findings: Sequence[core.Finding], bound: BoundKernel) -> core.Finding:
    """The first finding. For a read of uninitialised memory: the race with the later write, if there is one.

    Outputs are an exception: they are written at the end, and no read of them was meant to wait for that.
    """
    first = findings[0]
    if first.kind != Detector.UNINITIALISED_READ:
        return first
    outputs = [bound.machine.addresses[each.name] for each in bound.kernel.outputs]
    written = [range(at, at + each.bytes) for at, each in zip(outputs, bound.kernel.outputs, strict=True)]
    late = (
        finding
        for finding in findings
        if finding.kind != first.kind
        and finding.other == first.instruction
        and not any(finding.address in each for each in written)
    )
    return next(late, first)


def describe(
    finding: core.Finding, launch: ResolvedLaunch, program: Program, bound: BoundKernel, conditions: Conditions
) -> str:
    """A finding in one line: what, which instruction, against which, where, how often, and how to see it again."""
    waits = finding.kind in (Detector.DEADLOCK, Detector.ENDLESS)
    parts = [_waiting(finding, program) if waits else finding.message + _who(finding, program)]
    if not waits:
        cta = "({}, {}, {})".format(*finding.cta)
        where = f", {place}" if (place := address_in_words(finding.address, bound)) else ""
        parts.append(f"{launch.entry}, CTA {cta}, warp {finding.warp}, lanes {finding.lanes:#010x}{where}")
    if finding.count > 1:
        parts.append(f"{finding.count} times")
    parts.append(f"seen under {interleaving_name(conditions)}")
    return "; ".join(parts)


def interleaving_name(conditions: Conditions) -> str:
    if conditions.interleaving is Interleaving.RANDOM:
        return f"random interleaving {conditions.seed}"
    return f"the {conditions.interleaving.name.lower()} interleaving"


def _waiting(finding: core.Finding, program: Program) -> str:
    """Which warps wait where; those of a CTA that wait at one instruction are named together."""
    warps: dict[tuple[tuple[int, int, int], int], list[int]] = {}
    for each in finding.waiting:
        warps.setdefault((each.cta, each.instruction), []).append(each.warp)
    places = [
        f"CTA {cta} warp{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))} at {located(program, index)}"
        for (cta, index), numbers in list(warps.items())[:_PLACES]
    ]
    left = sum(len(numbers) for numbers in list(warps.values())[_PLACES:]) + finding.more_waiting
    more = f"; and {left} more" if left else ""
    return f"{finding.message}: {'; '.join(places)}{more}"


def _who(finding: core.Finding, program: Program) -> str:
    who = f", at {located(program, finding.instruction)}" if finding.instruction >= 0 else ""
    return who + (f", against {located(program, finding.other)}" if finding.other >= 0 else "")
