"""The record of a campaign's result for one task: what was found, what it was compared with, and what it cost."""

from datetime import datetime

from contract.base import Record
from contract.candidate import ScheduleValue
from contract.speedup import Speedup
from contract.task import GemmTask


class Winner(Record):
    """The best kernel of a race, as it was launched: with or without programmatic launch.

    `speedup`: over cuBLASLt-AutoTuning, paired in the same rounds. `worst_error`: the largest error of the accuracy tests,
    divided by its bound; `library_error`: that of cuBLAS on the same data. None where the test does not record it.
    """

    candidate_id: str
    step_index: int
    schedule: dict[str, ScheduleValue] | None
    programmatic: bool
    time_us: float
    speedup: Speedup
    worst_error: float | None = None
    library_error: float | None = None


class ShapeResult(Record):
    """One row of a campaign: one task, in one environment.

    `best`: with programmatic launch allowed; `best_without`: with plain launches only. Either is None where no kernel was
    measured. `baselines_us`: median of each baseline of the final race. `witness`: what the emulator said of the winner.
    `gpu_seconds`: time in which the GPU worked for this task; `seconds`: wall-clock time. `reason`: why the search ended, or
    why there is no result.
    """

    task: GemmTask
    run_id: str | None
    environment: str | None
    best: Winner | None = None
    best_without: Winner | None = None
    baselines_us: dict[str, float] = {}
    floor_us: float
    witness: str = ""
    candidates: int = 0
    gpu_seconds: float = 0.0
    seconds: float = 0.0
    reason: str = ""
    commit: str = ""
    finished_at: datetime
