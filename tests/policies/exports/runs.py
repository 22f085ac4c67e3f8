"""Runs for tests of the exports: kernels with a plan, rounds with observations, and replies of a model."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.diagnosis import Diagnosis, Finding
from cudal2_agent.contract.records.evaluation import Evaluation, Measured
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Attempt, Observation, Step, Trajectory
from cudal2_agent.contract.reward.reward import reward
from cudal2_agent.policies.chat.prompts.composition import Prompts
from tests.doubles import CHIP, NOW, measured, run_record
from tests.policies.chat.exchanges import exchange

PROMPTS = Prompts(8000, [("cudal2/mma.cuh", "__device__ void mma();\n")])
PLAN = '{"arch": "sm_90a", "launches": [{"entry": "gemm", "grid": [1, 1, 1], "block": [32, 1, 1], "args": [%s]}]}'
ARGS = '{"tensor": "D", "access": "write"}'
DIAGNOSIS = Diagnosis(
    basis="timed", findings=(Finding(bottleneck="tail-wave", evidence="2 waves", remedy="use whole waves", weight=0.25),)
)


def source(number: int, extra: str = "") -> str:
    return f'/* cudal2: {PLAN % ARGS} */\n// kernel {number}\n{extra}extern "C" __global__ void gemm(__half* d) {{}}\n'


def kernel(number: int, policy: str = "schedule", extra: str = "") -> Candidate:
    schedule = {"family": "mma_sync", "block_m": 64 + number, "stages": 3} if policy == "schedule" else None
    return Candidate.from_source(source(number, extra), Origin(policy=policy, schedule=schedule))


def attempt(step: Step) -> Attempt:
    evaluation = step.evaluation
    speedup = 10.0 / evaluation.time_us if isinstance(evaluation, Measured) else None
    return Attempt(
        candidate_id=step.candidate.id,
        policy=step.candidate.origin.policy,
        schedule=step.candidate.origin.schedule,
        status=evaluation.status,
        time_us=evaluation.time_us,
        speedup=speedup,
        reward=step.reward,
    )


class RunOfTests:
    """Adds steps round by round. Kernels are numbered; rewards follow from the evaluations."""

    def __init__(self, shape: tuple[int, int, int] = (256, 256, 256), run_id: str = "run-1", **changes: object) -> None:
        m, n, k = shape
        self.task = GemmTask(m=m, n=n, k=k)
        self.run = run_record(run_id, task=self.task, **changes)
        self.observations: dict[str, Observation] = {}
        self.steps: list[Step] = []
        self.exchanges: list[Exchange] = []

    def round(self, number: int, **changes: object) -> Observation:
        """The observation of a round, over all steps so far."""
        timed = [step for step in self.steps if isinstance(step.evaluation, Measured)]
        best = min(timed, key=lambda step: step.evaluation.time_us or 0.0, default=None)
        fields: dict[str, object] = {
            "task": self.task,
            "chip": CHIP,
            "round": number,
            "seed": 0,
            "attempts": tuple(attempt(step) for step in self.steps),
            "best": best.candidate if best else None,
            "best_evaluation": best.evaluation if best else None,
            "diagnosis": DIAGNOSIS if best else None,
            "diagnosed": best.candidate.id if best else None,
        }
        observation = Observation.model_validate({**fields, **changes})
        self.observations[observation.id] = observation
        return observation

    def add(self, observation: Observation, candidate: Candidate, evaluation: Evaluation, **changes: object) -> Step:
        index = len(self.steps)
        fields = {
            "run_id": self.run.run_id,
            "index": index,
            "round": observation.round,
            "observation_id": observation.id,
            "candidate": candidate,
            "evaluation": evaluation,
            "reward": reward(evaluation, self.task, CHIP, candidate.origin),
            "created_at": NOW + timedelta(seconds=index),
        }
        self.steps.append(Step.model_validate({**fields, **changes}))
        return self.steps[-1]

    def ask(self, observation: Observation, candidate: Candidate, reply: str, **changes: object) -> Exchange:
        place = (observation.round, len(self.exchanges), 0)
        self.exchanges.append(exchange(place, candidate_id=candidate.id, reply=reply, **changes))
        return self.exchanges[-1]

    @property
    def trajectory(self) -> Trajectory:
        return Trajectory(
            run=self.run, observations=self.observations, steps=tuple(self.steps), exchanges=tuple(self.exchanges)
        )


def searched(
    shape: tuple[int, int, int] = (256, 256, 256), run_id: str = "run-1", times_us: Sequence[float] = (5.0, 8.0, 12.0, 20.0)
) -> Trajectory:
    """Two rounds of the schedule policy with these times, of which 10 us is the baseline's."""
    run = RunOfTests(shape, run_id)
    for number in (1, 2):
        observation = run.round(number)
        for position, time_us in enumerate(times_us):
            run.add(observation, kernel(10 * number + position), measured(time_us * (1.0 if number == 1 else 0.9)))
    return run.trajectory


def many(runs: int) -> Iterator[Trajectory]:
    return (searched((64 * (n + 1), 128, 256), f"run-{n}") for n in range(runs))
