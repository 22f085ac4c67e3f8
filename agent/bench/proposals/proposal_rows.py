"""The row of a task, with all that was measured, and files of rows."""

from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from cudal2_agent.agent.bench.record_lines import PACKED, RecordLines
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.task import GemmTask

Basis = Literal["measured", "predicted"]


class JudgedCandidate(Record):
    """One candidate, screened once for all arms. `screened`, `raced`, `confirmed`: paired ratios over cuBLASLt-AutoTuning.

    `confirmed`: of a second race among those that the first one chose; None where it was not in it.
    `status`: of the screen, or of the build where that failed. `race_status`: None where it did not race. `gpu_s`: seconds in
    which the GPU verified and timed it for the screen.
    """

    candidate_id: str
    schedule: dict[str, ScheduleValue] | None
    status: str
    fault: str = ""
    screened: float | None = None
    screened_us: float | None = None
    race_status: str | None = None
    raced: float | None = None
    raced_us: float | None = None
    confirmed: float | None = None
    predicted_us: float | None = None
    build_s: float = 0.0
    gpu_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it has a fault, be it one that only the race has found."""
        return not {self.status, self.race_status} <= {"measured", "unmeasured", None}


class ArmProposals(Record):
    """What an arm proposed: candidate ids by round, and the seconds that it took for each round.

    `note`: what identifies the arm beside its name, such as the hash of its weights. `error`: why it ended early.
    """

    name: str
    note: str = ""
    rounds: tuple[tuple[str, ...], ...]
    propose_s: tuple[float, ...]
    error: str = ""

    @property
    def candidates(self) -> tuple[str, ...]:
        return tuple(one for proposed in self.rounds for one in proposed)


class BenchSize(Record):
    """`count`: candidates of a round. `budget`: candidates of an arm; with more than `count`, arms see their measured times."""

    count: int = 8
    budget: int = 8

    @property
    def searches(self) -> bool:
        return self.budget > self.count


class ProposalRow(Record):
    """One task. `known`: ids of the schedules that led earlier runs of it.

    `environment`: None where nothing was measured. `prepare_s`: seconds of the GPU before the first candidate: operands,
    AutoTuning. `race_s`: of the races. `seconds`: wall-clock time of the task, without what was prepared beside another one.
    """

    format: Literal["cudal2-proposals-1"] = "cudal2-proposals-1"
    task: GemmTask
    chip: str
    environment: str | None
    basis: Basis
    size: BenchSize
    seed: int
    arms: tuple[ArmProposals, ...]
    candidates: tuple[JudgedCandidate, ...]
    known: tuple[str, ...]
    prepare_s: float
    race_s: float
    seconds: float
    commit: str = ""
    finished_at: datetime

    @cached_property
    def by_id(self) -> dict[str, JudgedCandidate]:
        return {one.candidate_id: one for one in self.candidates}

    def covers(self, task: GemmTask, arms: Iterable[tuple[str, str]], size: BenchSize, seed: int, basis: Basis) -> bool:
        """Whether it answers for a task and arms, each a name and a note."""
        same = (self.task, self.size, self.seed, self.basis) == (task, size, seed, basis)
        return same and set(arms) <= {(one.name, one.note) for one in self.arms}


_ROWS = RecordLines(ProposalRow, "row of `prior evaluate`", "--out")
read_rows, append_row = _ROWS.read, _ROWS.append


def checked_out(path: Path) -> Path:
    """A file that rows can be appended to. Raises: UsageError."""
    if path.suffix == PACKED:
        raise UsageError(f"--out {path}: rows are appended unpacked; name a file such as {path.stem}")
    return path
