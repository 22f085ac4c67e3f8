"""Renders records as text for a model; `failures.py` does the failures. All untrusted text is fenced.

Each function returns a complete section; `history.py` has those on earlier kernels. `composition.py` chooses the sections of a
prompt and their lengths.
"""

from collections.abc import Iterator, Sequence

from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import (
    FULL_SIZE,
    NEGLIGIBLE_US,
    NOT_COVERED,
    REDUCED,
    Evaluation,
    LaunchTime,
    Measured,
    Prediction,
    TestResult,
    Unmeasured,
    Witness,
)
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.contract.records.profile import Difference, Profile
from cudal2_agent.contract.records.trajectory import Newest
from cudal2_agent.contract.reward.speedup import median_us, speedup_over
from cudal2_agent.policies.chat.prompts.quoting import fenced, inline
from cudal2_agent.policies.chat.tokens import shorten

_TERMS = 4  # of a predicted time that are shown
# How parts and terms combine; the prompt says it once, beside the best kernel's.
_HOW_PARTS_COMBINE = (
    "Parts follow one another and add up, of all launches. The fitted factor is on their sum. 'alone' is over a whole launch: "
    "its resources work at once, and it takes at least the largest. What a main loop has beyond it are waits."
)
_NEWEST_FINDINGS, _NEWEST_DIFFERENCES = 2, 4  # about the newest kernel that are shown
_OPCODES = 8  # most frequent opcodes of a kernel that are shown
# Opcodes that tell of products, waiting, order or spilled registers, however few there are.
_TELLING = frozenset(
    ["ATOM", "ATOMG", "BAR", "CCTL", "ERRBAR", "HGMMA", "HMMA", "LDL", "MEMBAR", "RED", "REDG", "STL", "UCGABAR_WAIT"]
)


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
        lines += [*evaluation.notes, *_modelled(evaluation)]
        lines += _in_part(evaluation.witness.tests if isinstance(evaluation.witness, Witness) else ())
    elif isinstance(evaluation, Unmeasured):
        proof = evaluation.headline if evaluation.executed else f"not executed: {evaluation.reason or 'there is no GPU here'}"
        lines = [f"compiled; {proof}", *_in_part(evaluation.tests), *_predicted(evaluation.prediction)]
    if not evaluation.failed:
        lines += resource_lines(evaluation.inspection)
    return fenced(shorten("\n".join(lines), tokens))


def diagnosis_text(
    diagnosis: Diagnosis,
    profile: Profile | None,
    differences: Sequence[Difference],
    tokens: int,
    evaluation: Evaluation | None = None,
) -> str:
    """Bottlenecks, heaviest first, with their counters and how these differ from the next fastest kernel's.

    `evaluation`: of the candidate diagnosed. Where no rule finds a bottleneck, its predicted terms and its instructions speak.
    """
    basis = {"static": "from the compiled code alone", "timed": "from code and times", "counters": "from hardware counters"}
    fraction = diagnosis.roofline_fraction
    reached = f"; {fraction:.0%} of the roofline" if fraction is not None else ""
    lines = [f"basis: {basis[diagnosis.basis]}{reached}"]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += [f"{number}. {finding.bottleneck} (up to {finding.weight:.0%} of the time): {finding.evidence}"]
        lines += [f"   what usually helps: {finding.remedy}"]
    if not diagnosis.findings:
        lines += ["no rule finds a bottleneck", *(_known(evaluation) if evaluation else ())]
    lines += (line for difference in differences for line in _difference(difference))
    lines += _counters(profile) if profile else []
    return fenced(shorten("\n".join(lines), tokens))


def newest_text(newest: Newest, time: str) -> str:
    """The heaviest findings about the newest kernel, and the counters that differ most from the best kernel's.

    `time`: its measured time, which counters do not tell: they are of one launch alone.
    """
    lines = [", ".join(part for part in (f"candidate {newest.candidate_id[:8]}", time) if part)]
    lines += ["counters and durations below are of a launch alone; the time that counts is that of launches back to back"]
    for finding in newest.diagnosis.findings[:_NEWEST_FINDINGS]:
        lines.append(f"{finding.bottleneck} (up to {finding.weight:.0%} of the time): {finding.evidence}")
    for one in newest.differences[:_NEWEST_DIFFERENCES]:
        lines.append(f"{one.quantity} {one.after:.4g}, of the best {one.before:.4g} {one.unit}".rstrip() + f": {one.meaning}")
    return fenced("\n".join(lines))


def terms_text(terms: Sequence[tuple[str, float]]) -> str:
    """The largest terms of a prediction in microseconds, largest first; empty where its model has none."""
    return ", ".join(f"{name} {term_us:.2f}" for name, term_us in terms[:_TERMS])


def resources_text(inspection: Inspection, tokens: int) -> str:
    """What the compiled kernels use, with the compiler's warnings."""
    return fenced(shorten("\n".join(resource_lines(inspection)), tokens))


def chunk_text(hit: Hit, mark: str = "") -> str:
    """A chunk of the knowledge base with its location, and the mark by which a reply cites it, if it has one."""
    return fenced(f"{mark} from {place_text(hit)}\n{hit.chunk.text}".lstrip())


def place_text(hit: Hit) -> str:
    """Where a chunk stands, on one line."""
    chunk = hit.chunk
    return inline(f"{chunk.release} {chunk.path}:{chunk.start_line}-{chunk.end_line} {chunk.symbol}")


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


def _predicted(prediction: Prediction) -> Iterator[str]:
    """What is known of the time of a kernel that was not measured."""
    if prediction.is_floor:
        yield f"no time is known, neither measured nor predicted; the roofline is {prediction.floor_us:.2f} us"
        return
    yield f"predicted {prediction.predicted_us:.2f} us by {prediction.model}, not measured"
    yield from course_lines(prediction, prediction.predicted_us)


def _modelled(measured: Measured) -> Iterator[str]:
    """The parts of a measured time, as the timing model predicts them, and what they leave."""
    if measured.modelled is not None:
        yield f"predicted beside it: {measured.modelled.predicted_us:.2f} us by {measured.modelled.model}"
        yield from course_lines(measured.modelled, measured.time_us)


def course_lines(prediction: Prediction, time_us: float) -> Iterator[str]:
    """The predicted parts of each launch with its terms, and what they leave of a time, measured or predicted."""
    if not prediction.launches:
        yield from _terms(prediction)
        return
    yield "parts of the predicted time, us, by the timing model:"
    for launch in prediction.launches:
        terms = sorted(launch.terms.items(), key=lambda term: -term[1])
        waves = f" in {launch.waves} waves" if launch.waves > 1 else ""
        yield f"- {launch.entry}{waves}: {launch.said}; alone: {terms_text(terms)}"
    explained = prediction.correction * prediction.replayed_us
    left = remainder_text(time_us - explained)
    yield f"- all: {prediction.replayed_us:.2f} us{factor_text(prediction.correction)}{left}"
    yield _HOW_PARTS_COMBINE


def launches_text(launches: Sequence[LaunchTime]) -> str:
    """The parts of a time, launch by launch, in a line."""
    if len(launches) == 1:
        return launches[0].said
    return "; ".join(f"{launch.entry} {launch.time_us:.2f} ({launch.said})" for launch in launches)


def factor_text(correction: float) -> str:
    return f", x {correction:.3f} by the fitted factor" if correction != 1.0 else ""


def remainder_text(left_us: float) -> str:
    """What a time has beyond its predicted parts; empty where it is nothing."""
    return f"; {left_us:+.2f} us unexplained" if abs(left_us) >= NEGLIGIBLE_US else ""


def _in_part(tests: Sequence[TestResult]) -> Iterator[str]:
    """What the emulator ran and did not run of a large task, in its own words."""
    for test in tests:
        if test.name in (REDUCED, FULL_SIZE, NOT_COVERED) and test.message:
            yield f"what was run: {test.message}"


def _terms(prediction: Prediction) -> Iterator[str]:
    if prediction.terms:
        yield f"largest terms, in us that each resource would need alone: {terms_text(prediction.largest_terms)}"


def _known(evaluation: Evaluation) -> Iterator[str]:
    """What a model can conclude from where no rule does: the predicted terms and the instructions."""
    if isinstance(evaluation, Unmeasured):
        yield from _terms(evaluation.prediction)
    if (inspection := evaluation.inspection) is not None:
        yield from _instructions(inspection)


def _instructions(inspection: Inspection) -> Iterator[str]:
    """The most frequent opcodes, and the few that tell of waiting, order and spilling."""
    counted = sorted(inspection.opcodes.items(), key=lambda pair: (-pair[1], pair[0]))
    kept = [*counted[:_OPCODES], *(pair for pair in counted[_OPCODES:] if pair[0] in _TELLING)]
    if kept:
        left = sum(count for _, count in counted) - sum(count for _, count in kept)
        rest = f", {left} others" if left else ""
        listed = ", ".join(f"{count} {opcode}" for opcode, count in kept)
        yield f"instructions in the code ({inspection.opcode_source.upper()}): {listed}{rest}"


def _difference(difference: Difference) -> Iterator[str]:
    values = f"{difference.after:.4g}, of the next fastest profiled kernel {difference.before:.4g} {difference.unit}".rstrip()
    yield f"{difference.quantity} {values}: {difference.meaning}"


def _counters(profile: Profile) -> Iterator[str]:
    for launch in profile.launches:
        counted = ", ".join(f"{name}={value:.5g}" for name, value in launch.metrics.items() if value)
        none = sum(not value for value in launch.metrics.values())
        yield f"counters of {launch.entry}: {counted}" + (f", {none} others 0" if none else "")
