"""What an export took and what it left out, counted."""

from collections import Counter
from dataclasses import dataclass, field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.trajectory import RunRecord


@dataclass
class ExportCounts:
    """Counts of one export while it runs; `ExportSummary` says what they mean."""

    runs: int = 0
    steps: int = 0
    measured_again: int = 0
    unwritable: int = 0
    withheld: int = 0
    duplicates: int = 0
    leaked: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    shapes: dict[str, set[str]] = field(default_factory=dict)
    policies: Counter[str] = field(default_factory=Counter)
    environments: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    versions: dict[str, set[str]] = field(default_factory=dict)

    def add_run(self, run: RunRecord, steps: int, split: str) -> None:
        self.runs += 1
        self.steps += steps
        self.policies[run.policy] += steps
        self.shapes.setdefault(split, set()).add(run.task.shape)
        for package, version in run.versions.items():
            self.versions.setdefault(package, set()).add(version)


class ExportSummary(Record):
    """What an export wrote.

    `target`: file or folder, None for stdout. `rows` and `shapes`: numbers by split. `environments` and `licences`: number
    of candidates in the rows with each.
    Left out: `measured_again`, steps whose candidate has a later evaluation in its run; `unwritable`, candidates that no reply
    gives; `withheld`, samples without a reward, in formats that need one; `duplicates`, rows whose text was written before;
    `leaked`, rows for training that name a test shape.
    """

    format: str
    target: str | None
    runs: int
    steps: int
    rows: dict[str, int]
    shapes: dict[str, int]
    measured_again: int
    unwritable: int
    withheld: int
    duplicates: int
    leaked: int
    policies: dict[str, int]
    environments: dict[str, int]
    licences: dict[str, int]
    versions: dict[str, tuple[str, ...]]


def summed(counts: ExportCounts, format: str, target: str | None) -> ExportSummary:
    held = vars(counts) | {
        "rows": dict(counts.rows),
        "shapes": {split: len(shapes) for split, shapes in counts.shapes.items()},
        "versions": {package: tuple(sorted(found)) for package, found in sorted(counts.versions.items())},
    }
    tallies = {name: dict(sorted(held[name].items())) for name in ("policies", "environments", "licences")}
    return ExportSummary(format=format, target=target, **held | tallies)
