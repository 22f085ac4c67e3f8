"""The result of `benchmarks.diagnosis` as a record and as tables."""

import math
import statistics
from collections.abc import Sequence

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.diagnosis import Bottleneck, Finding
from cudal2_agent.contract.records.evaluation import Environment
from cudal2_agent.contract.records.profile import Profile

IMPROVED = 1.02  # speed ratio from which a candidate counts as faster
SHOWN = 3  # findings in the table
KINDS = ("by hand", "heaviest", "next", "heaviest, by prior", "control", "control, by prior")


class Trial(Record):
    """A remedied or control candidate. `ratio`: its speed over that of the faulty kernel; None where not measured."""

    kind: str
    bottleneck: Bottleneck | None
    changes: dict[str, str]
    status: str
    message: str = ""
    ratio: float | None


class DiagnosisRow(Record):
    """One faulty kernel. `rank`: place of the expected bottleneck among the findings; None where it is absent.

    `repeat`: speed after the remedies were measured over speed before them, which shows the noise.
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
    trials: tuple[Trial, ...] = ()
    repeat: float | None = None


class DiagnosisResult(Record):
    benchmark: str = "diagnosis"
    commit: str
    date: str
    environment: Environment | None
    seconds: float
    rows: tuple[DiagnosisRow, ...]


def ratios(trials: Sequence[Trial], kind: str) -> list[float]:
    return [trial.ratio for trial in trials if trial.kind == kind and trial.ratio is not None]


def render(result: DiagnosisResult) -> str:
    gpu = result.environment.gpu if result.environment else "no GPU"
    head = f"# How often the diagnosis is right\n\n{gpu}, {result.date}, commit {result.commit}, {result.seconds:.0f} s.\n"
    parts = [head, _diagnoses(result.rows), _by_hand(result.rows), _schedules(result.rows), _summary(result.rows)]
    return "\n".join(parts)


def _diagnoses(rows: Sequence[DiagnosisRow]) -> str:
    lines = [
        "## What was found\n",
        "| kernel | fault | shape | time, us | over AutoTuning | expected | place | findings (weight) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = ", ".join(f"{one.bottleneck} ({one.weight:.2f})" for one in row.findings[:SHOWN]) or row.message or "none"
        place = "absent" if row.rank is None else str(row.rank)
        time_us = "" if row.time_us is None else f"{row.time_us:.2f}"
        speed = row.status if row.speedup is None else f"{row.speedup:.3f}x"
        expected = " or ".join(row.expected)
        lines.append(f"| {row.name} | {row.fault} | {row.shape} | {time_us} | {speed} | {expected} | {place} | {found} |")
    evidence = [f"- {row.name}: {one.bottleneck}: {one.evidence}" for row in rows for one in row.findings[:1]]
    return "\n".join([*lines, "\nEvidence of the finding with the largest weight:\n", *evidence, ""])


def _by_hand(rows: Sequence[DiagnosisRow]) -> str:
    lines = ["## The remedy applied by hand\n", "| kernel | over the faulty one | faulty one again |", "|---|---|---|"]
    for row in rows:
        if row.by_hand and row.trials:
            trial = row.trials[0]
            shown = f"{trial.ratio:.2f}x" if trial.ratio else f"{trial.status} {trial.message}"
            lines.append(f"| {row.name} | {shown} | {_shown(row.repeat)} |")
    return "\n".join([*lines, ""])


def _schedules(rows: Sequence[DiagnosisRow]) -> str:
    kinds = KINDS[1:]
    lines = [
        "## The remedy applied by steering\n",
        "Best and median of at most three neighbours, over the faulty schedule.\n",
        "| kernel | " + " | ".join(kinds) + " | faulty one again |",
        "|---|" + "---|" * (len(kinds) + 1),
    ]
    for row in rows:
        if row.by_hand or not row.trials:
            continue
        cells = []
        for kind in kinds:
            name = next((trial.bottleneck for trial in row.trials if trial.kind == kind and trial.bottleneck), "")
            found = ratios(row.trials, kind)
            figures = f"{max(found):.2f}x, {statistics.median(found):.2f}x" if found else "-"
            cells.append(f"{figures} {name}".strip())
        lines.append(f"| {row.name} | " + " | ".join(cells) + f" | {_shown(row.repeat)} |")
    return "\n".join([*lines, ""])


def _summary(rows: Sequence[DiagnosisRow]) -> str:
    known = [row for row in rows if row.status == "measured"]
    lines = [
        "## In short\n",
        f"- Of {len(known)} kernels the constructed fault had the largest weight in {_count(known, 1)}, "
        f"among the first two in {_count(known, 2)}, found at all in {_count(known, math.inf)}.",
    ]
    for kind in KINDS:
        found = [(row, ratios(row.trials, kind)) for row in known if ratios(row.trials, kind)]
        every = [ratio for _, one in found for ratio in one]
        if not every:
            continue
        faster, cases = sum(ratio > IMPROVED for ratio in every), sum(max(one) > IMPROVED for _, one in found)
        mean = math.exp(statistics.fmean(math.log(statistics.median(one)) for _, one in found))
        lines.append(
            f"- {kind}: {faster} of {len(every)} candidates more than 2 % faster, in {cases} of {len(found)} kernels at least "
            f"one; geometric mean of the medians {mean:.3f}x."
        )
    noise = [abs(math.log(row.repeat)) for row in known if row.repeat]
    if noise:
        lines.append(f"- A faulty kernel measured again differed by {100 * statistics.median(noise):.1f} % (median).")
    return "\n".join([*lines, ""])


def _count(rows: Sequence[DiagnosisRow], place: float) -> int:
    return sum(row.rank is not None and row.rank <= place for row in rows)


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}x"
