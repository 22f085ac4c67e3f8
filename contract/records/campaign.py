"""The record of a campaign's result for one task: what was found, what it was compared with, and what it cost."""

from datetime import datetime

from cudal2_agent.contract.base import Record, RunId
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.diagnosis import Finding
from cudal2_agent.contract.records.profile import Difference
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.speedup import Speedup


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


class HostCost(Record):
    """What a search took of the host. Resident memory is sampled; pages that processes share count in each of them.

    `cpu_s`: processor seconds of the search's process and of all below it, compilers included. `peak_mib`: maximum of their
    resident memory. `campaign_mib`: maximum of that of the whole campaign on this machine meanwhile.
    """

    cpu_s: float
    peak_mib: float
    campaign_mib: float


class Explanation(Record):
    """What bounds a winner by counters of Nsight Compute, and how cuBLASLt's kernel of the same race differs.

    `findings`: heaviest first. `counters`, `library_counters`: of the longest launch, under the short names of the metric set.
    `library`: names of cuBLASLt's kernels, or why they were not counted. `differences`: from cuBLASLt's kernel to the winner.
    """

    tool: str
    environment: str
    findings: tuple[Finding, ...]
    counters: dict[str, float]
    library: str = ""
    library_counters: dict[str, float] = {}
    differences: tuple[Difference, ...] = ()


class ShapeResult(Record):
    """One row of a campaign: one task, in one environment.

    `best`: with programmatic launch allowed; `best_without`: with plain launches only. Either is None where no kernel was
    measured. `baselines_us`: median of each baseline of the final race. `autotuned`: the algorithm that AutoTuning ran there in
    the words of `TunedBaseline.detail`; None in older rows. `witness`: what the emulator said of the winner.
    `gpu_seconds`: time in which the GPU worked for this task; `seconds`: wall-clock time. `host`: None in older rows, and where
    the system does not tell. `explained`: None where no counters were read. `reason`: why the search ended, or why there is no
    result.
    """

    task: GemmTask
    run_id: RunId | None
    environment: str | None
    best: Winner | None = None
    best_without: Winner | None = None
    baselines_us: dict[str, float] = {}
    autotuned: str | None = None
    floor_us: float
    witness: str = ""
    candidates: int = 0
    gpu_seconds: float = 0.0
    seconds: float = 0.0
    host: HostCost | None = None
    explained: Explanation | None = None
    reason: str = ""
    commit: str = ""
    finished_at: datetime
