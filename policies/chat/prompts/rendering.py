"""Renders records as text for a model; no other module does. All untrusted text is fenced.

Each function returns a complete section; `history.py` has those on earlier kernels. `composition.py` chooses the sections of a
prompt and their lengths.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

from contract.diagnosis import Diagnosis
from contract.evaluation import (
    CompileFailed,
    Crashed,
    Evaluation,
    Measured,
    Prediction,
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
from policies.chat.prompts.fitting import shorten, shorten_log
from policies.chat.prompts.quoting import fenced, inline

_AROUND = 2  # lines of source shown before and after a line that broke a rule
_TERMS = 4  # of a predicted time that are shown
_OPCODES = 8  # most frequent opcodes of a kernel that are shown
# Opcodes that tell of products, waiting, order or spilled registers, however few there are.
_TELLING = frozenset(
    ["ATOM", "ATOMG", "BAR", "CCTL", "ERRBAR", "HGMMA", "HMMA", "LDL", "MEMBAR", "RED", "REDG", "STL", "UCGABAR_WAIT"]
)
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
        proof = evaluation.headline if evaluation.executed else f"not executed: {evaluation.reason or 'there is no GPU here'}"
        lines = [f"compiled; {proof}", *_predicted(evaluation.prediction)]
    if not evaluation.failed:
        lines += _resources(evaluation.inspection)
    return fenced(shorten("\n".join(lines), tokens))


def diagnosis_text(
    diagnosis: Diagnosis,
    profile: Profile | None,
    differences: Sequence[Difference],
    tokens: int,
    evaluation: Evaluation | None = None,
) -> str:
    """Bottlenecks, heaviest first, with their counters and the changes since the previous leader.

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


def terms_text(terms: Sequence[tuple[str, float]]) -> str:
    """The largest terms of a prediction in microseconds, largest first; empty where its model has none."""
    return ", ".join(f"{name} {term_us:.2f}" for name, term_us in terms[:_TERMS])


def resources_text(inspection: Inspection, tokens: int) -> str:
    """What the compiled kernels use, with the compiler's warnings."""
    return fenced(shorten("\n".join(_resources(inspection)), tokens))


def chunk_text(hit: Hit, mark: str = "") -> str:
    """A chunk of the knowledge base with its location, and the mark by which a reply cites it, if it has one."""
    chunk = hit.chunk
    place = inline(f"{chunk.release} {chunk.path}:{chunk.start_line}-{chunk.end_line} {chunk.symbol}")
    return fenced(f"{mark} from {place}\n{chunk.text}".lstrip())


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


def _predicted(prediction: Prediction) -> Iterator[str]:
    """What is known of the time of a kernel that was not measured."""
    if prediction.is_floor:
        yield f"no time is known, neither measured nor predicted; the roofline is {prediction.floor_us:.2f} us"
        return
    yield f"predicted {prediction.predicted_us:.2f} us by {prediction.model}, not measured"
    yield from _terms(prediction)


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
    change = f"{difference.before:.4g} to {difference.after:.4g} {difference.unit}".rstrip()
    yield f"since the leader before: {difference.quantity} {change}: {difference.meaning}"


def _counters(profile: Profile) -> Iterator[str]:
    for launch in profile.launches:
        counted = ", ".join(f"{name}={value:.5g}" for name, value in launch.metrics.items())
        yield f"counters of {launch.entry}: {counted}"
