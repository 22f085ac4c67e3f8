"""Renders records as text for a model; `failures.py` does the failures. All untrusted text is fenced.

Each function returns a complete section. `composition.py` chooses the sections of a prompt and their lengths.
Stored runs contain these words in their prompts, and a replay matches prompts by hash: keep the words.
"""

import difflib
from collections.abc import Iterator, Sequence

from contract.candidate import ScheduleValue, axes_in_use
from contract.diagnosis import Diagnosis
from contract.evaluation import Evaluation, Measured, Unmeasured
from contract.inspection import Inspection
from contract.knowledge import Hit
from contract.profile import Difference, Profile
from contract.speedup import median_us, speedup_over
from contract.trajectory import Attempt, Exemplar
from policies.chat.prompts.fitting import shorten
from policies.chat.prompts.quoting import fenced, inline

_DIFF_LINES = 3000  # of both sources together; a longer comparison takes too long


def source_text(source: str, tokens: int) -> str:
    """A kernel file, shortened in its middle to a number of tokens."""
    return fenced(shorten(source, tokens), "cuda")


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
        lines += resource_lines(evaluation.inspection)
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


def chunk_text(hit: Hit) -> str:
    """A chunk of the knowledge base with its location."""
    chunk = hit.chunk
    place = inline(f"{chunk.release} {chunk.path}:{chunk.start_line}-{chunk.end_line} {chunk.symbol}")
    return fenced(f"from {place}\n{chunk.text}")


def resource_lines(inspection: Inspection | None) -> Iterator[str]:
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
