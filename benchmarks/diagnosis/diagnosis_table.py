"""The result of `benchmarks.diagnosis` as a record and as tables."""

import math
import statistics
from collections.abc import Iterator, Sequence

from benchmarks.harness import shown, table
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.diagnosis import Bottleneck, Finding
from cudal2_agent.contract.records.evaluation import Environment
from cudal2_agent.contract.records.profile import Profile

IMPROVED = 1.02  # speed ratio from which a candidate counts as faster
SHOWN = 3  # findings in the table


class Trial(Record):
    """The kernel with the fix by hand. `ratio`: its speed over that of the faulty kernel; None where not measured."""

    status: str
    message: str = ""
    ratio: float | None


class DiagnosisRow(Record):
    """One faulty kernel. `rank`: place of the expected bottleneck among the findings; None where it is absent.

    `fixed`: of kernels that are written by hand. `repeat`: speed of the faulty kernel after the fixed one was measured, over
    its speed before that, which shows the noise.
    """

    name: str
    fault: str
    shape: str
    by_hand: bool
    expected: tuple[Bottleneck, ...]
    also: tuple[Bottleneck, ...]
    status: str
    message: str = ""
    time_us: float | None
    speedup: float | None
    basis: str = ""
    findings: tuple[Finding, ...] = ()
    rank: int | None = None
    profile: Profile | None = None
    seconds: float = 0.0
    fixed: Trial | None = None
    repeat: float | None = None


class DiagnosisResult(Record):
    benchmark: str = "diagnosis"
    commit: str
    date: str
    environment: Environment | None
    seconds: float
    rows: tuple[DiagnosisRow, ...]


def render(result: DiagnosisResult) -> str:
    gpu = result.environment.gpu if result.environment else "no GPU"
    head = f"# How often the diagnosis is right\n\n{gpu}, {result.date}, commit {result.commit}, {result.seconds:.0f} s.\n"
    parts = (_diagnoses(result.rows), _by_hand(result.rows), _summary(result.rows))
    return "\n".join([head, *(line for part in parts for line in part)])


def _diagnoses(rows: Sequence[DiagnosisRow]) -> Iterator[str]:
    yield "## What was found\n"
    head = ("kernel", "fault", "shape", "time, us", "over AutoTuning", "expected", "place", "findings (weight)")
    yield from table(head, map(_diagnosis_cells, rows))
    yield "\nEvidence of the finding with the largest weight:\n"
    yield from (f"- {row.name}: {one.bottleneck}: {one.evidence}" for row in rows for one in row.findings[:1])
    yield ""


def _diagnosis_cells(row: DiagnosisRow) -> tuple[object, ...]:
    found = ", ".join(f"{one.bottleneck} ({one.weight:.2f})" for one in row.findings[:SHOWN]) or row.message or "none"
    speed = row.status if row.speedup is None else f"{row.speedup:.3f}x"
    place = "absent" if row.rank is None else row.rank
    return row.name, row.fault, row.shape, shown(row.time_us, ".2f"), speed, " or ".join(row.expected), place, found


def _by_hand(rows: Sequence[DiagnosisRow]) -> Iterator[str]:
    yield "## The fix by hand\n"
    fixed = [(row, row.fixed) for row in rows if row.fixed is not None]
    cells = (
        (row.name, f"{one.ratio:.2f}x" if one.ratio else f"{one.status} {one.message}", shown(row.repeat, ".3f"))
        for row, one in fixed
    )
    yield from table(("kernel", "over the faulty one", "faulty one again"), cells)
    yield ""


def _summary(rows: Sequence[DiagnosisRow]) -> Iterator[str]:
    known = [row for row in rows if row.status == "measured"]
    yield "## In short\n"
    yield (
        f"- Of {len(known)} kernels the constructed fault had the largest weight in {_count(known, 1)}, "
        f"among the first two in {_count(known, 2)}, found at all in {_count(known, math.inf)}."
    )
    ratios = [row.fixed.ratio for row in known if row.fixed and row.fixed.ratio]
    if ratios:
        faster = sum(ratio > IMPROVED for ratio in ratios)
        yield f"- The fix by hand gains more than 2 % on {faster} of {len(ratios)} kernels."
    noise = [abs(math.log(row.repeat)) for row in known if row.repeat]
    if noise:
        yield f"- A faulty kernel measured again differed by {100 * statistics.median(noise):.1f} % (median)."
    yield ""


def _count(rows: Sequence[DiagnosisRow], place: float) -> int:
    return sum(row.rank is not None and row.rank <= place for row in rows)
