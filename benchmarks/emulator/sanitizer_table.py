"""The result of `benchmarks.emulator.sanitizer` as a record, and as a table beside the verdicts of GPU and emulator."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.harness import table
from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.records.evaluation import Environment
from tests.sandbox.emulator.corpus import RECORDED_FAULTS
from tests.sandbox.emulator.corpus.fault import Fault

LaunchOutcome = Literal["reported", "crashed", "timed out", "nothing", "failed"]
PLAIN = "none"  # the launch without a tool
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
CELL_CHARS = 60
AGREEMENT = Path("benchmarks/results/emulator_agreement_2026-11-22.md")  # verdicts of GPU and emulator


class SanitizerRow(Record):
    """One launch under one tool. `outcome`: a report of the tool takes precedence over how the launch ended.

    `failed`: the tool itself failed, or the launch was not possible. `said`: the first reports, or the reason of the end.
    """

    kernel: str
    tool: str
    outcome: LaunchOutcome
    errors: int = 0
    warnings: int = 0
    said: tuple[str, ...] = ()
    seconds: float


class SanitizerResult(Record):
    """A run over all kernels. `options`: of each tool. `not_run`: launches for which no time was left."""

    command: str
    commit: str
    date: str
    sanitizer: str
    options: dict[str, str]
    environment: Environment
    seconds: float = 0.0
    rows: tuple[SanitizerRow, ...] = ()
    not_run: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of GPU and emulator on a fault, in the words of `emulator_agreement`."""

    gpu: str
    emulator: str


Detection = Literal["reported", "noticed", "nothing"]  # noticed: a crash or a hang without a report


@dataclass(frozen=True)
class FaultComparison:
    """One fault, as all tools see it. `rows`: by tool. `alarms`: what a tool also reports of the right kernel."""

    fault: Fault
    rows: Mapping[str, SanitizerRow]
    alarms: Mapping[str, frozenset[str]]
    verdicts: Verdicts

    def found_by(self, tool: str) -> bool:
        """Whether the tool reports something of the fault that it does not report of the right kernel."""
        row = self.rows.get(tool)
        if row is None or row.outcome != "reported":
            return False
        return tool not in self.alarms or not kinds(row) <= self.alarms[tool]

    @property
    def sanitizer(self) -> Detection:
        """What the four tools together find."""
        if any(self.found_by(tool) for tool in TOOLS):
            return "reported"
        return "noticed" if any(row.outcome in ("crashed", "timed out") for row in self.rows.values()) else "nothing"

    @property
    def gpu(self) -> Detection:
        return _finding(self.verdicts.gpu)

    @property
    def emulator(self) -> Detection:
        return _finding(self.verdicts.emulator)


def _finding(verdict: str) -> Detection:
    if verdict.startswith(("crashed", "timed out")):
        return "noticed"
    return "reported" if verdict.startswith("wrong") else "nothing"


def kinds(row: SanitizerRow) -> frozenset[str]:
    """The reports of a row, without addresses and sizes."""
    return frozenset(re.sub(r"\b(0x)?[0-9a-f]*\d[0-9a-f,]*\b", "", said) for said in row.said)


def right_name(fault: Fault) -> str:
    """The name of the right kernel that a fault patches: by its schedule, since its text changes with the family."""
    schedule = digest(fault.schedule.model_dump(mode="json", exclude_defaults=True), 8)
    return f"right-{fault.schedule.family}-{fault.task.shape}-{fault.task.layout}-{schedule}"


def agreement(table: str) -> dict[str, Verdicts]:
    """Verdicts by fault, read from the table of `emulator_agreement`."""
    ids = {fault.id for fault in RECORDED_FAULTS}
    cells = (match.groups() for match in re.finditer(r"^\| (\S+) \| (.+) \| (.+) \|$", table, re.MULTILINE))
    return {name: Verdicts(gpu, emulator) for name, gpu, emulator in cells if name in ids}


def compare(result: SanitizerResult, verdicts: Mapping[str, Verdicts]) -> list[FaultComparison]:
    """Every recorded fault of the corpus. Raises: SystemExit if the verdicts of GPU and emulator are missing for some."""
    if missing := [fault.id for fault in RECORDED_FAULTS if fault.id not in verdicts]:
        raise SystemExit(f"the table of emulator_agreement has no verdict on {', '.join(missing)}; run it again")
    rows: dict[str, dict[str, SanitizerRow]] = {}
    for row in result.rows:
        rows.setdefault(row.kernel, {})[row.tool] = row
    alarms = {
        name: {tool: kinds(row) for tool, row in of.items() if row.outcome == "reported"}
        for name, of in rows.items()
        if name.startswith("right-")
    }
    return [
        FaultComparison(fault, rows.get(fault.id, {}), alarms.get(right_name(fault), {}), verdicts[fault.id])
        for fault in RECORDED_FAULTS
    ]


def render(result: SanitizerResult, verdicts: Mapping[str, Verdicts]) -> str:
    compared = compare(result, verdicts)
    where = f"{result.environment.gpu}, driver {result.environment.driver}, compute-sanitizer {result.sanitizer}"
    return "\n".join(
        (
            "# Seeded faults under compute-sanitizer",
            "",
            f"`{result.command}`, commit {result.commit}; {result.date}, {result.seconds:.0f} s; {where}.",
            "",
            "One launch of each kernel under each tool. A report counts unless the same tool says the same of the right "
            "kernel that the fault is a patch of; a crash or a hang without a report is counted apart. Plans are resolved for "
            "the number of SMs at which the fault shows; the GPU's verification and the emulator took all SMs of the chip.",
            "",
            *_missing(result),
            *_summary(result, compared),
            "",
            "## Faults",
            "",
            *table(
                ("fault", "why it is one", "without a tool", *TOOLS, "GPU's verification", "emulator"), map(_cells, compared)
            ),
            "",
            "## Right kernels",
            "",
            *table(("kernel", *TOOLS), _right(result)),
            "",
            "## Options",
            "",
            *(f"- {tool}: `{options}`" for tool, options in result.options.items()),
            "",
        )
    )


def _missing(result: SanitizerResult) -> list[str]:
    if not result.not_run:
        return []
    return [f"Not run, for want of time ({len(result.not_run)}): {'; '.join(result.not_run)}.", ""]


def _summary(result: SanitizerResult, compared: Sequence[FaultComparison]) -> Iterator[str]:
    """Counts by tool: reported faults, faults with only a crash or a hang, right kernels with a report."""
    ways: list[tuple[str, Callable[[FaultComparison], Detection]]] = [
        ("any of the four", lambda one: one.sanitizer),
        ("GPU's verification", lambda one: one.gpu),
        ("emulator", lambda one: one.emulator),
    ]
    right = [row for row in result.rows if row.kernel.startswith("right-")]
    lines: list[tuple[object, ...]] = []
    for tool in (PLAIN, *TOOLS):
        rows = [one.rows[tool] for one in compared if tool in one.rows]
        noticed = sum(row.outcome in ("crashed", "timed out") for row in rows)
        watched = [row for row in right if row.tool == tool]
        alarms = sum(row.outcome == "reported" for row in watched)
        name = "without a tool" if tool == PLAIN else tool
        lines.append((name, sum(one.found_by(tool) for one in compared), noticed, f"{alarms} of {len(watched)}"))
    for name, finding in ways:
        counts = [sum(finding(one) == kind for one in compared) for kind in ("reported", "noticed")]
        lines.append((name, *counts, ""))
    return table((f"of {len(compared)} faults", "reported", "crash or hang only", "right kernels with a report"), lines)


def _cells(one: FaultComparison) -> tuple[str, ...]:
    cells = [_cell(one.rows.get(tool), not one.found_by(tool)) for tool in (PLAIN, *TOOLS)]
    return one.fault.id, one.fault.why, *cells, one.verdicts.gpu, one.verdicts.emulator


def _cell(row: SanitizerRow | None, as_right: bool) -> str:
    if row is None:
        return "not run"
    if row.outcome == "nothing":
        return ""
    said = row.said[0][:CELL_CHARS].replace("|", "/") if row.said else ""
    if row.outcome == "reported":
        counted = ", ".join(_counted(n, word) for n, word in ((row.errors, "error"), (row.warnings, "warning")) if n)
        return f"{'as of the right kernel: ' if as_right else ''}{counted}: {said}"
    return f"{row.outcome}: {said}" if said else row.outcome


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _right(result: SanitizerResult) -> list[tuple[str, ...]]:
    rows = {(row.kernel, row.tool): row for row in result.rows if row.kernel.startswith("right-")}
    names = dict.fromkeys(name for name, _ in rows)
    return [(name, *(_cell(rows.get((name, tool)), False) for tool in TOOLS)) for name in names]
