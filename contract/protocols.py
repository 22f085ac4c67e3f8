"""The borders between parts: what the agent asks of a policy, a sandbox and a store."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from contract.build import Built
from contract.candidate import AnyCandidate, Candidate
from contract.chip import Chip
from contract.evaluation import Environment, Evaluation, Prediction
from contract.exchange import Exchange
from contract.inspection import Inspection
from contract.options import Effort
from contract.profile import Profile
from contract.task import GemmTask
from contract.trajectory import Observation, RunRecord, Step, Trajectory


class Policy(Protocol):
    """Writes candidates. Proposes fewer than asked, or none, when it has nothing new to offer.

    `reads_code`: whether it wants the sources of earlier candidates in the observation, exemplars and failures.
    `exhausted`: why it will propose no more in this process; empty while it goes on.
    """

    name: str
    reads_code: bool
    exhausted: str

    def propose(self, observation: Observation, count: int) -> list[Candidate]: ...


class Sandbox(Protocol):
    """Compiles, proves and times candidates.

    `can_execute`: whether a backend runs code for the task's arch; `can_measure`: whether that is a GPU, which has times.
    """

    @property
    def chip(self) -> Chip: ...
    @property
    def can_execute(self) -> bool: ...
    @property
    def can_measure(self) -> bool: ...
    @property
    def environment(self) -> Environment | None: ...

    def build(self, candidates: Sequence[AnyCandidate], task: GemmTask) -> Iterator[tuple[int, Built | Evaluation]]:
        """Check, compile and inspect in parallel; yields (position, outcome) as each finishes."""
        ...

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        """Verify and time a built candidate; `quick` pairs it with the autotuned baseline only."""
        ...

    def witness(self, built: Built, task: GemmTask) -> Evaluation:
        """What the emulator says of a candidate that a GPU found right: `Unmeasured` where it holds, or was not executed.

        Never raises because the emulator is missing or fails: the record's `reason` says so.
        """
        ...

    def profile(self, built: Built, task: GemmTask) -> Profile:
        """Count what the hardware does while a verified candidate runs, in a process of its own.

        Raises: ProfilerUnavailable where nothing can be profiled here, ProfileFailed where this candidate cannot.
        """
        ...

    def close(self) -> None: ...


class Predict(Protocol):
    def __call__(self, candidate: AnyCandidate, task: GemmTask, inspection: Inspection) -> Prediction: ...


class ExchangeLog(Protocol):
    """One run's exchanges with chat servers; what `record` was given is durable when it returns."""

    def record(self, exchange: Exchange) -> None: ...
    def recorded(self) -> list[Exchange]: ...


class TrajectoryStore(Protocol):
    """Keeps every run, observation, step and exchange.

    `record_step` is idempotent by (run_id, index), `record_exchange` by (run_id, round, sample, turn).
    """

    def start_run(self, run: RunRecord) -> None: ...
    def update_run(self, run: RunRecord) -> None: ...
    def record_observation(self, observation: Observation) -> str: ...
    def observation(self, observation_id: str) -> Observation: ...
    def record_step(self, step: Step) -> None: ...
    def run(self, run_id: str) -> RunRecord: ...
    def runs(self) -> list[RunRecord]: ...
    def steps(self, run_id: str) -> list[Step]: ...
    def trajectory(self, run_id: str) -> Trajectory: ...
    def record_exchange(self, run_id: str, exchange: Exchange) -> None: ...
    def exchanges(self, run_id: str) -> list[Exchange]: ...
