"""What an export took and what it left out, counted."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.trajectory import RunRecord

Reason = Literal[
    "measured_again",
    "unseen",
    "unwritable",
    "withheld",
    "unverified",
    "below_speedup",
    "within_margin",
    "unpaired",
    "no_contrast",
    "other_environment",
    "duplicates",
    "leaked",
]
# Why an export leaves something out: one sentence each, for notices and the card.
REASONS: Mapping[Reason, str] = {
    "measured_again": "steps whose candidate was measured again later in its run",
    "unseen": "candidates of later rounds whose record lacks what the policy saw, as after the import of a sweep",
    "unwritable": "candidates that cannot be written as a reply",
    "withheld": "samples without a reward, where the format needs one",
    "unverified": "samples that are not verified",
    "below_speedup": "samples below the least speedup",
    "within_margin": "samples within the margin of what parts good from bad",
    "unpaired": "samples without another answer to their prompt whose reward differs by the margin",
    "no_contrast": "samples whose run had no verified kernels of two score buckets to show",
    "other_environment": "samples whose exemplars were measured in another environment",
    "duplicates": "rows with the same text as an earlier row",
    "leaked": "rows for training that name a test shape",
}


@dataclass
class ExportCounts:
    """Counts of one export while it runs; `ExportSummary` says what they mean."""

    runs: int = 0
    steps: int = 0
    left_out: Counter[Reason] = field(default_factory=Counter)
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
    of candidates in the rows with each. `left_out`: numbers by reason, without zeros.
    """

    format: str
    target: str | None
    runs: int
    steps: int
    rows: dict[str, int]
    shapes: dict[str, int]
    left_out: dict[Reason, int]
    policies: dict[str, int]
    environments: dict[str, int]
    licences: dict[str, int]
    versions: dict[str, tuple[str, ...]]


class NothingToWrite(Exception):
    """Leaves the folder or the file of an export that has no row, so that it does not appear."""


def summed(counts: ExportCounts, format: str, target: str | None) -> ExportSummary:
    held = vars(counts) | {
        "rows": dict(counts.rows),
        "left_out": {reason: counts.left_out[reason] for reason in REASONS if counts.left_out[reason]},
        "shapes": {split: len(shapes) for split, shapes in counts.shapes.items()},
        "versions": {package: tuple(sorted(found)) for package, found in sorted(counts.versions.items())},
    }
    tallies = {name: dict(sorted(held[name].items())) for name in ("policies", "environments", "licences")}
    return ExportSummary(format=format, target=target, **held | tallies)
