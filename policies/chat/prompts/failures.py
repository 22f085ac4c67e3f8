"""Renders a failure as text for a model: where and why a candidate failed, and what points at the cause.

`composition.py` chooses which of these sections a prompt has, and their lengths. All untrusted text is fenced.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import assert_never

from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import (
    NOT_COVERED,
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
from cudal2_agent.contract.records.symptoms import BarrierWait, Lines, Symptoms, WrongPlaces
from cudal2_agent.policies.chat.prompts.quoting import fenced
from cudal2_agent.policies.chat.prompts.rendering import resource_lines
from cudal2_agent.policies.chat.tokens import shorten, shorten_log

_AROUND = 2  # lines of source shown before and after a line that broke a rule
_NEAR = 1  # before and after a line that a fault names
_NAMED_LINES = 8
_DIFF_LINES = 3000  # of both sources together; a longer comparison takes too long
_LONGEST_DIFF = 0.5  # of the proven source; beyond it the source itself is shown
_NAMED = re.compile(r"(?<!from )\bkernel\.cu:(\d+)")  # the outermost call of what was inlined is left out
_SLOW = "a wait that nothing completes, or more work than fits in that time: an emulator pays for every poll of a waiting warp"
_HANG = "likely: a wait that nothing completes (mbarrier phase or bytes, a barrier that not all reach), or an endless loop"
# What each verification tier proves. The sandbox defines the names.
_TIERS = {
    "exact": "whole numbers, whose sums are exact, so that a matrix product must be bit-exact and a module nearly so",
    "accuracy": "random inputs against float64, within a bound that the number format and cuBLAS's or PyTorch's own error set",
    "special": "cancellation, large, subnormal and non-finite values",
    "guards": "canaries around buffers, inputs unchanged, every output written",
    "freshness": "fresh data in repeated runs: nothing may be kept from run to run",
    "repeatability": "bitwise equal results for equal inputs",
    "witness": "an emulator that sees races, missing waits, stale reads and accesses out of bounds that a GPU may hide",
    "programmatic": "a late producer and an early consumer around a kernel with programmatic launch",
}


def failure_text(evaluation: Evaluation, source: str, tokens: int) -> str:
    """Where and why a candidate failed, with the first errors of the log and the lines of source concerned."""
    match evaluation:
        case Rejected():
            said = f"rejected before compilation, rule {evaluation.rule}: {evaluation.message}"
            lines = [said, *_around(source, evaluation.line)]
        case CompileFailed():
            lines = ["the compiler refused it:", shorten_log(evaluation.log or evaluation.message, tokens)]
        case Crashed():
            said = f"crashed in stage {evaluation.stage}: {evaluation.message}"
            lines = [said, *_emulated(evaluation.emulated, source), *resource_lines(evaluation.inspection)]
        case TimedOut():
            said = f"did not end in stage {evaluation.stage}: stopped after {evaluation.limit_s:g} s"
            seen = [*_symptoms(evaluation.symptoms)]
            hint = _SLOW if evaluation.message else _HANG if evaluation.stage != "compile" else ""
            found = [*seen, *_named(source, seen), *_emulated(evaluation.emulated, source)]
            lines = [said, evaluation.message, hint, *found, *resource_lines(evaluation.inspection)]
        case Wrong():
            seen = [*_wrong(evaluation.test), *_symptoms(evaluation.test.symptoms)]
            found = [*seen, *_named(source, seen), *_emulated(evaluation.emulated, source)]
            lines = [*found, _passed(evaluation.tests), *resource_lines(evaluation.inspection)]
        case Unmeasured() | Measured():
            lines = ["it did not fail"]
        case _:
            assert_never(evaluation)
    return fenced(shorten("\n".join(line for line in lines if line), tokens))


def _emulated(test: TestResult | None, source: str) -> Iterator[str]:
    """What the emulator found where a GPU refused the kernel, which is nearer to the cause as a rule."""
    if test is None:
        return
    seen = [f"in the same kernel an emulator finds, in test {test.tier}/{test.name}: {test.message}", *_symptoms(test.symptoms)]
    yield from (*seen, *_named(source, seen))


def proven_text(failed: str, proven: AnyCandidate, tokens: int) -> str:
    """A proven kernel beside a failed source: the differences where they are few, else the proven source."""
    head = f"Candidate {proven.id[:8]} was verified."
    before, after = proven.source.splitlines(), failed.splitlines()
    if len(before) + len(after) <= _DIFF_LINES:
        changed = difflib.unified_diff(
            before, after, f"candidate {proven.id[:8]}, proven", "the failed kernel", n=1, lineterm=""
        )
        difference = "\n".join(changed)
        if len(difference) <= _LONGEST_DIFF * len(proven.source):
            return f"{head} The failed kernel differs from it by:\n\n{fenced(shorten(difference, tokens), 'diff')}"
    return f"{head} Its source:\n\n{fenced(shorten(proven.source, tokens), 'cuda')}"


def _around(source: str, line: int | None) -> Iterator[str]:
    """The numbered lines around a line of a source, which is marked."""
    if line is None:
        return
    lines = source.split("\n")
    for number in range(max(line - _AROUND, 1), min(line + _AROUND, len(lines)) + 1):
        yield f"{'>' if number == line else ' '}{number:>5} | {lines[number - 1][:300]}"


def _named(source: str, said: Sequence[str]) -> Iterator[str]:
    """The source lines that a text names, each with its neighbours."""
    lines = source.split("\n")
    numbers = [int(match) for text in said for match in _NAMED.findall(text)]
    marked = [number for number in dict.fromkeys(numbers) if 1 <= number <= len(lines)][:_NAMED_LINES]
    shown = {near for number in marked for near in range(number - _NEAR, number + _NEAR + 1) if 1 <= near <= len(lines)}
    last = 0
    for number in sorted(shown):
        if number != last + 1:
            yield "lines of kernel.cu named above:" if not last else "  ..."
        yield f"{'>' if number in marked else ' '}{number:>5} | {lines[number - 1][:200]}"
        last = number


def _wrong(test: TestResult) -> list[str]:
    lines = [f"wrong result in test {test.tier}/{test.name}: {test.message}"]
    if test.tier in _TIERS:
        lines.append(f"the test: {_TIERS[test.tier]}")
    if 0 < test.worst < float("inf"):
        lines.append(f"largest error: {test.worst:.3g} times its bound")
    return lines


def _symptoms(symptoms: Symptoms | None) -> Iterator[str]:
    """What was observed, in words; nothing for records without it."""
    if symptoms is None:
        return
    if symptoms.places is not None:
        yield f"where, on whole numbers in fresh buffers: {_places(symptoms.places)}"
    if symptoms.values:
        yield f"wrong outputs there: {'; '.join(symptoms.values)}" if symptoms.places else "; ".join(symptoms.values)
    if symptoms.sources:
        yield "what outputs are made of, by one-hot probes (D[m,n] should be the sum over k of A row m times B column n):"
        yield from (f"- {source}" for source in symptoms.sources)
    if symptoms.waits:
        yield "who waits where:"
        yield from (f"- {_wait(wait)}" for wait in symptoms.waits)


def _places(places: WrongPlaces) -> str:
    share = f"{places.wrong} of {places.outputs} outputs are wrong"
    parts = [share, _lines("rows", places.rows), _lines("columns", places.columns)]
    if places.tile is not None:
        first = ", ".join(f"({row}, {column})" for row, column in places.first_tiles)
        of = f"{places.wrong_tiles} of {places.tiles} tiles of {places.tile[0]}x{places.tile[1]}"
        parts.append(f"whole tiles are wrong and the others right: {of}, at (row, column) of tiles {first}")
    return "; ".join(parts)


def _lines(name: str, lines: Lines) -> str:
    if lines.all:
        return f"all {lines.of} {name}"
    if lines.modulus is not None:
        residues = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in lines.residues)
        return f"{name} {residues} of every {lines.modulus}, from {lines.first} to {lines.last}"
    edge = f", the last {name} only" if lines.last == lines.of - 1 and lines.count == lines.last - lines.first + 1 else ""
    dense = "" if lines.count == lines.last - lines.first + 1 else f" ({lines.count} of them)"
    return f"{name} {lines.first}-{lines.last}{dense} of {lines.of}{edge}"


def _wait(wait: BarrierWait) -> str:
    who = f"{wait.warps} at {wait.at}"
    if wait.kind == "none":
        return f"{who}: no barrier is known to be waited for; a loop on memory, or asynchronous work"
    state = [f"{wait.barrier}"]
    if wait.phase is not None:
        state.append(f"{wait.phase} phases are complete and phase {wait.phase} (parity {wait.phase % 2}) is open")
    if wait.arrived is not None and wait.expected is not None:
        what = "arrivals" if wait.kind == "mbarrier" else "threads"
        missing = wait.expected - wait.arrived
        state.append(f"{wait.arrived} of {wait.expected} {what} came" + (f", {missing} missing" if missing else ""))
    if wait.missing_bytes > 0:
        state.append(f"{wait.missing_bytes} of {wait.announced} announced bytes have not come")
    elif wait.missing_bytes < 0:
        state.append(f"{-wait.missing_bytes} bytes more came than the {wait.announced} announced")
    return f"{who}, which waits for the {'; '.join([*state, *wait.history])}"


def _passed(tests: Sequence[TestResult]) -> str:
    names = [f"{test.tier}/{test.name}" for test in tests if test.passed and test.name != NOT_COVERED]
    return f"passed before: {', '.join(names)}" if names else "no test passed before"
