"""Protocols: what the agent requires of a policy, a sandbox and a store, and what tools of a model may ask for."""

from collections.abc import Iterator, Sequence
from threading import Event
from typing import Protocol, runtime_checkable

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import Environment, Evaluation, Prediction
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step, Trajectory
from cudal2_agent.contract.settings.options import Effort


class Policy(Protocol):
    """Writes candidates. It may propose fewer than requested, or none, when it has nothing new.

    `reads_code`: whether it uses the sources of earlier candidates, so that observations must contain them.
    `exhausted`: why it proposes nothing more in this process; empty otherwise.
    """

    name: str
    reads_code: bool
    exhausted: str

    def propose(self, observation: Observation, count: int) -> list[Candidate]: ...


class Sandbox(Protocol):
    """Compiles, proves and times candidates.

    `can_execute`: whether a backend runs code for the task's arch. `can_measure`: whether that backend is a GPU.
    `waited_s`: seconds so far in which requests did not use the GPU: another process did, or code was inspected.
    `queued_s`: seconds so far in which a worker elsewhere was waited for and none worked; no part of `waited_s`.
    `builds_cutlass`: whether there are nvcc and the headers of CuTe and CUTLASS.
    """

    @property
    def chip(self) -> Chip: ...
    @property
    def can_execute(self) -> bool: ...
    @property
    def can_measure(self) -> bool: ...
    @property
    def environment(self) -> Environment | None: ...
    @property
    def waited_s(self) -> float: ...
    @property
    def queued_s(self) -> float: ...
    @property
    def builds_cutlass(self) -> bool: ...

    def build(
        self, candidates: Sequence[AnyCandidate], task: Task, cancel: Event | None = None
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        """Check, compile and inspect in parallel. Yields (position, outcome) as each candidate finishes.

        Once another thread sets `cancel`, the builds that are going on end, and the iterator with them.
        """
        ...

    def evaluate(self, built: Built, task: Task, effort: Effort) -> Evaluation:
        """Verify and time a built candidate. `quick` compares it with cuBLASLt-AutoTuning only."""
        ...

    def screen(self, built: Sequence[Built], task: Task) -> Iterator[tuple[int, Evaluation]]:
        """Briefly verify and time candidates of trusted writers, against cuBLASLt-AutoTuning. Yields as each finishes.

        A screened time ranks candidates; it never decides a winner.
        """
        ...

    def race(self, built: Sequence[Built], task: Task) -> list[Evaluation]:
        """Verify candidates in full, then time them together with the baselines in the same rounds, with and without
        programmatic launch. Slower candidates leave once their interval is wholly behind. One evaluation for each, in order.
        """
        ...

    def verify(self, built: Built, task: Task) -> Evaluation:
        """Verify a built candidate without timing it: `Unmeasured` where it holds."""
        ...

    def predict(self, built: Built, task: Task) -> Prediction:
        """The predicted time of a built candidate, which is not executed."""
        ...

    def witness(self, built: Built, task: Task, seconds: float | None = None) -> Evaluation:
        """The verdict of the emulator on a candidate that passed on a GPU; `Unmeasured` where it passes or cannot be executed.

        `seconds`: time limit of the proof, if it is less than that of the settings.
        A missing or failing emulator raises nothing: `reason` of the record names the cause.
        """
        ...

    def profile(self, built: Built, task: Task) -> Profile:
        """Collect hardware counters of a verified candidate in a separate process.

        Raises: ProfilerUnavailable where this machine cannot profile, ProfileFailed where this candidate cannot be profiled.
        """
        ...

    def artifact(self, built: Built) -> bytes | None:
        """The compiled code of a candidate: a cubin, or a host candidate's library. None where the cache has lost it."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class MeasuresAhead(Protocol):
    """A sandbox so far away that what it builds is measured before that is asked: one answer then brings both."""

    def build_to_measure(
        self, candidates: Sequence[AnyCandidate], task: Task, cancel: Event | None = None, *, counters: bool
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        """As `Sandbox.build`. The caller will screen candidates of trusted writers, evaluate others, and have these proved
        and, with `counters`, profiled."""
        ...


class Predict(Protocol):
    def __call__(self, candidate: AnyCandidate, task: Task, inspection: Inspection) -> Prediction: ...


class ExchangeLog(Protocol):
    """The exchanges of one run with chat servers. An exchange is durable when `record` returns."""

    def record(self, exchange: Exchange) -> None: ...
    def recorded(self) -> list[Exchange]: ...


class TrajectoryStore(Protocol):
    """Keeps every run, observation, step and exchange.

    `record_step` is idempotent by (run_id, index), `record_exchange` by (run_id, round, sample, turn).
    """

    def start_run(self, run: RunRecord) -> None: ...
    def update_run(self, run: RunRecord) -> None: ...
    def record_observation(self, run_id: str, observation: Observation) -> str: ...
    def observation(self, observation_id: str) -> Observation: ...
    def record_step(self, step: Step) -> None: ...
    def run(self, run_id: str) -> RunRecord: ...
    def runs(self) -> list[RunRecord]: ...
    def steps(self, run_id: str) -> list[Step]: ...
    def trajectory(self, run_id: str) -> Trajectory: ...
    def record_exchange(self, run_id: str, exchange: Exchange) -> None: ...
    def exchanges(self, run_id: str) -> list[Exchange]: ...


class Workbench(Protocol):
    """Tools over one task, safe to call from several threads. `seconds`: what a call may take, waiting included.

    Raises: TimeoutError where a call takes longer; MachineError, WorkerError where this machine fails.
    """

    def compile(self, candidate: Candidate, seconds: float) -> Built | Evaluation:
        """The built candidate, or the evaluation that says why there is none."""
        ...

    def verify(self, candidate: Candidate, seconds: float) -> Evaluation:
        """The emulator's verdict: `Unmeasured` where the candidate is right, or could not be run, with the reason."""
        ...

    def predict(self, candidate: Candidate, seconds: float) -> Prediction | Evaluation:
        """The predicted time, or the evaluation of a candidate that cannot be built or is wrong."""
        ...

    def search(self, words: str, seconds: float) -> list[Hit]:
        """Hits of the knowledge base, best first; none without one."""
        ...
