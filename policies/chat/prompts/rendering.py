"""Renders records as text for a model; no other module does. All untrusted text is fenced.

Each function returns a complete section. `composition.py` chooses the sections of a prompt and their lengths.
Stored runs contain these words in their prompts, and a replay matches prompts by hash: keep the words.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import assert_never

from contract.candidate import ScheduleValue, axes_in_use
from contract.diagnosis import Diagnosis
from contract.evaluation import (
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Rejected,
    TestResult,
    TimedOut,
    Unmeasured,
    Wrong,
)
from contract.inspection import Inspection
from contract.knowledge import Hit
from contract.profile import Difference, Profile
from contract.speedup import median_us, speedup_over
from contract.trajectory import Attempt, Exemplar
from policies.chat.prompts.fitting import shorten, shorten_log
from policies.chat.prompts.quoting import fenced, inline

_AROUND = 2  # lines of source shown before and after a line that broke a rule
_DIFF_LINES = 3000  # of both sources together; a longer comparison takes too long
_HANG = "likely: a wait that nothing completes (mbarrier phase or bytes, a barrier that not all reach), or an endless loop"
# What each verification tier proves. The sandbox defines the names.
_TIERS = {
    "exact": "inputs whose sums are exact, so that D must be bit-exact",
    "accuracy": "random inputs against float64, within a bound for K and the accumulator, and against cuBLAS's own error",
    "special": "cancellation, large, subnormal and non-finite values",
    "guards": "canaries around buffers, inputs unchanged, every output written",
    "freshness": "fresh data in repeated runs: nothing may be kept from run to run",
    "repeatability": "bitwise equal results for equal inputs",
    "witness": "an emulator that sees races, missing waits, stale reads and accesses out of bounds that a GPU may hide",
    "programmatic": "a late producer and an early consumer around a kernel with programmatic launch",
}


def source_text(source: str, tokens: int) -> str:
    """A kernel file, shortened in its middle to a number of tokens."""
    return fenced(shorten(source, tokens), "cuda")


def failure_text(evaluation: Evaluation, source: str, tokens: int) -> str:
    """Where and why a candidate failed, with the first errors of the log and the lines of source concerned."""
    match evaluation:
        case Rejected():
            said = f"rejected before compilation, rule {evaluation.rule}: {evaluation.message}"
            lines = [said, *_around(source, evaluation.line)]
        case CompileFailed():
            lines = ["the compiler refused it:", shorten_log(evaluation.log or evaluation.message, tokens)]
        case Crashed():
            lines = [f"crashed in stage {evaluation.stage}: {evaluation.message}", *_resources(evaluation.inspection)]
        case TimedOut():
            said = f"did not end in stage {evaluation.stage}: stopped after {evaluation.limit_s:g} s"
            lines = [said, _HANG if evaluation.stage != "compile" else "", *_resources(evaluation.inspection)]
        case Wrong():
            lines = [*_wrong(evaluation.test), _passed(evaluation.tests), *_resources(evaluation.inspection)]
        case Unmeasured() | Measured():
            lines = ["it did not fail"]
        case _:
            assert_never(evaluation)
    return fenced(shorten("\n".join(line for line in lines if line), tokens))


def result_text(evaluation: Evaluation, tokens: int) -> str:
    """The result of a verified candidate: times, baselines, resources."""
    lines: list[str] = []
    if isinstance(evaluation, Measured):
        lines = [f"measured: {median_us(evaluation.timing):.2f} us (median of {len(evaluation.timing.samples_us)} rounds)"]
        for timing in evaluation.baselines:
            ratio = speedup_over(evaluation, timing.name)
            versus = f", the kernel's speedup {ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else ""
            lines.append(f"{timing.name}: {median_us(timing):.2f} us{versus}")
        lines += evaluation.notes
    elif isinstance(evaluation, Unmeasured):
        by, prediction = evaluation.verified_by, evaluation.prediction
        not_executed = f"not executed: {evaluation.reason or 'there is no GPU here'}"
        proof = (
            not_executed if by == "nothing" else f"executed and verified by {'an emulator' if by == 'emulator' else 'a GPU'}"
        )
        predicted = f"predicted {prediction.predicted_us:.2f} us by {prediction.model}"
        lines = [f"compiled; {proof}; {'no time is known' if prediction.is_floor else predicted}"]
    if not evaluation.failed:
        lines += _resources(evaluation.inspection)
    return fenced(shorten("\n".join(lines), tokens))


def diagnosis_text(diagnosis: Diagnosis, profile: Profile | None, differences: Sequence[Difference], tokens: int) -> str:
    """Bottlenecks, heaviest first, with their counters and the changes since the previous leader."""
    basis = {"static": "from the compiled code alone", "timed": "from code and times", "counters": "from hardware counters"}
    fraction = diagnosis.roofline_fraction
    reached = f"; {fraction:.0%} of the roofline" if fraction is not None else ""
    lines = [f"basis: {basis[diagnosis.basis]}{reached}"]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += [f"{number}. {finding.bottleneck} (up to {finding.weight:.0%} of the time): {finding.evidence}"]
        lines += [f"   what usually helps: {finding.remedy}"]
    if not diagnosis.findings:
        lines.append("no bottleneck stands out")
    lines += (line for difference in differences for line in _difference(difference))
    lines += _counters(profile) if profile else []
    return fenced(shorten("\n".join(lines), tokens))


def tried_text(attempts: Sequence[Attempt]) -> list[str]:
    """One line per attempt: attempts with a time, fastest first, then attempts without one, latest first."""
    passed = [attempt for attempt in attempts if _time_us(attempt) is not None]
    failed = [attempt for attempt in attempts if _time_us(attempt) is None]
    ordered = [*sorted(passed, key=lambda attempt: (attempt.time_us is None, _time_us(attempt))), *reversed(failed)]
    return list(dict.fromkeys(_attempt(attempt) for attempt in ordered))


def exemplar_text(exemplar: Exemplar, shown: Sequence[tuple[str, str]]) -> str:
    """An exemplar with its score. It is shown as a diff against a source in `shown`, (name, source), if that is short."""
    note = exemplar.candidate.origin.note
    about = f"candidate {exemplar.candidate.id[:8]}, {_score(exemplar.attempt)}" + (f"\nidea: {inline(note)}" if note else "")
    whole = fenced(exemplar.candidate.source, "cuda")
    short = min(_differences_from(exemplar.candidate.source, shown), key=len, default=whole)
    return f"{fenced(about)}\n{short if 2 * len(short) < len(whole) else whole}"


def resources_text(inspection: Inspection, tokens: int) -> str:
    """What the compiled kernels use, with the compiler's warnings."""
    return fenced(shorten("\n".join(_resources(inspection)), tokens))


def chunk_text(hit: Hit) -> str:
    """A chunk of the knowledge base with its location."""
    chunk = hit.chunk
    place = inline(f"{chunk.release} {chunk.path}:{chunk.start_line}-{chunk.end_line} {chunk.symbol}")
    return fenced(f"from {place}\n{chunk.text}")


def _around(source: str, line: int | None) -> Iterator[str]:
    """The numbered lines around a line of a source, which is marked."""
    if line is None:
        return
    lines = source.split("\n")
    for number in range(max(line - _AROUND, 1), min(line + _AROUND, len(lines)) + 1):
        yield f"{'>' if number == line else ' '}{number:>5} | {lines[number - 1][:300]}"


def _wrong(test: TestResult) -> list[str]:
    lines = [f"wrong result in test {test.tier}/{test.name}: {test.message}"]
    if test.tier in _TIERS:
        lines.append(f"the test: {_TIERS[test.tier]}")
    if 0 < test.worst < float("inf"):
        lines.append(f"largest error: {test.worst:.3g} times its bound")
    return lines


def _passed(tests: Sequence[TestResult]) -> str:
    names = [f"{test.tier}/{test.name}" for test in tests if test.passed]
    return f"passed before: {', '.join(names)}" if names else "no test passed before"


def _resources(inspection: Inspection | None) -> Iterator[str]:
    if inspection is None:
        return
    for kernel in inspection.kernels:
        spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
        smem = kernel.static_smem_bytes + kernel.dynamic_smem_bytes
        yield (
            f"{kernel.entry}: {kernel.registers} registers, {spilled} bytes spilled, {smem} bytes of smem, "
            f"{kernel.threads} threads, {kernel.ctas_per_sm} CTAs an SM (limited by {kernel.occupancy_limiter})"
        )
    yield from (f"compiler: {warning}" for warning in inspection.warnings[:5])


def _difference(difference: Difference) -> Iterator[str]:
    change = f"{difference.before:.4g} to {difference.after:.4g} {difference.unit}".rstrip()
    yield f"since the leader before: {difference.quantity} {change}: {difference.meaning}"


def _counters(profile: Profile) -> Iterator[str]:
    for launch in profile.launches:
        counted = ", ".join(f"{name}={value:.5g}" for name, value in launch.metrics.items())
        yield f"counters of {launch.entry}: {counted}"


def _time_us(attempt: Attempt) -> float | None:
    return attempt.time_us if attempt.time_us is not None else attempt.modelled_us


def _score(attempt: Attempt) -> str:
    """The time, marked as measured or predicted; the status of an attempt without a time."""
    if attempt.time_us is not None:
        versus = f", speedup {attempt.speedup:.3f} over cuBLASLt-AutoTuning" if attempt.speedup is not None else ""
        return f"{attempt.time_us:.2f} us{versus}"
    if attempt.modelled_us is not None:
        return f"{attempt.modelled_us:.2f} us predicted, not measured"
    if attempt.predicted_us is not None:
        return "built, not executed"
    return f"{attempt.status.replace('_', ' ')} ({inline(attempt.message, 120)})" if attempt.message else attempt.status


def _attempt(attempt: Attempt) -> str:
    return f"{attempt.candidate_id[:8]} {inline(attempt.policy, 30)}: {_schedule(attempt.schedule or {})}{_score(attempt)}"


def _schedule(schedule: dict[str, ScheduleValue]) -> str:
    said = " ".join(axes_in_use(schedule))
    return f"{said}: " if said else ""


def _differences_from(source: str, shown: Sequence[tuple[str, str]]) -> Iterator[str]:
    lines = source.splitlines()
    for name, other in shown:
        before = other.splitlines()
        if len(lines) + len(before) <= _DIFF_LINES:
            changed = difflib.unified_diff(before, lines, name, "this one", n=1, lineterm="")
            yield f"As {name}, but:\n{fenced(chr(10).join(changed), 'diff')}"
