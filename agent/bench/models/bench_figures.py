"""Figures of a bench, from the records of its runs. Pure."""

from collections.abc import Sequence
from datetime import datetime
from statistics import geometric_mean
from typing import Literal

from cudal2_agent.agent.bench.record_lines import RecordLines
from cudal2_agent.agent.observe.ranking import leading_step
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation, Measured, Prediction, Unmeasured
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Step, Trajectory
from cudal2_agent.contract.reward.speedup import median_us

Basis = Literal["measured", "predicted"]


class Reached(Record):
    """A device time in microseconds. `by`: the model that predicted it, or how it was measured."""

    us: float
    basis: Basis
    by: str


class Yardstick(Record):
    """What the schedule policy reaches on the same device, and the medians of the baselines where they were measured."""

    schedule: Reached | None = None
    baselines_us: dict[str, float] = {}


class TaskFigures(Record):
    """The figures of one task.

    `replies`: of the model; requests that only call tools do not count. `first`: whether the first reply held a right kernel.
    `right`: whether any did. `outcome`: of the last candidate, or why there is none. `time`: None without a right kernel, and
    where no model predicts its time. `estimated`: whether a token count is an estimate. `seconds`: waiting for the server.
    """

    name: str
    task: GemmTask
    run_id: str
    device: str
    replies: int
    first: bool
    right: bool
    outcome: str
    time: Reached | None
    yardstick: Yardstick
    prompt_tokens: int
    reply_tokens: int
    estimated: bool
    tool_calls: int
    cost: float
    seconds: float

    @property
    def over_schedule(self) -> float | None:
        """The schedule policy's time divided by the model's; None where one is measured and the other predicted, and where two
        models predict them.
        """
        time, schedule = self.time, self.yardstick.schedule
        if time is None or schedule is None or time.basis != schedule.basis:
            return None
        return schedule.us / time.us if time.basis == "measured" or time.by == schedule.by else None

    @property
    def over_autotuning(self) -> float | None:
        """The time of cuBLASLt-AutoTuning divided by the model's, both measured."""
        baseline_us = self.yardstick.baselines_us.get(AUTOTUNED)
        return baseline_us / self.time.us if baseline_us and self.time and self.time.basis == "measured" else None


class BenchConditions(Record):
    """What figures of two models must have in common to be compared."""

    tasks: str
    repairs: int
    temperature: float | None
    tools: str
    prompt_tokens: int
    reply_tokens: int
    knowledge: bool
    seed: int
    version: str


class BenchResult(Record):
    """A finished bench."""

    name: str
    model: str
    conditions: BenchConditions
    finished_at: datetime
    tasks: tuple[TaskFigures, ...]


RESULTS = RecordLines(BenchResult, "result of model-bench", "--results")


class BenchTotals(Record):
    """Sums over tasks. Ratios are geometric means over `measured`, `predicted` and `compared` tasks; None over none."""

    tasks: int
    first: int
    right: int
    measured: int
    over_schedule_measured: float | None
    predicted: int
    over_schedule_predicted: float | None
    compared: int
    over_autotuning: float | None
    prompt_tokens: int
    reply_tokens: int
    estimated: bool
    tool_calls: int
    cost: float
    seconds: float

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.reply_tokens


def reached(evaluation: Evaluation) -> Reached | None:
    """The time of a kernel; None where nothing was measured and no model predicts it."""
    match evaluation:
        case Measured():
            return Reached(us=median_us(evaluation.timing), basis="measured", by=evaluation.effort or "timed")
        case Unmeasured(prediction=prediction):
            return predicted(prediction)
        case _:
            return None


def predicted(prediction: Prediction) -> Reached | None:
    """None where the roofline stands in for a prediction."""
    return None if prediction.is_floor else Reached(us=prediction.predicted_us, basis="predicted", by=prediction.model)


def figures_of(name: str, trajectory: Trajectory, device: str, against: Yardstick) -> TaskFigures:
    """The figures of a finished run."""
    run, exchanges = trajectory.run, trajectory.exchanges
    best = leading_step(trajectory.steps, run.task, run.chip)
    right = best if best is not None and best.evaluation.passed else None
    replies = [exchange for exchange in exchanges if not exchange.calls]
    baselines_us = baselines_of(right.evaluation) if right else {}
    return TaskFigures(
        name=name,
        task=run.task,
        run_id=run.run_id,
        device=device,
        replies=len(replies),
        first=right is not None and replies[0].candidate_id == right.candidate.id,
        right=right is not None,
        outcome=_outcome(trajectory.steps, replies),
        time=reached(right.evaluation) if right else None,
        yardstick=against.model_copy(update={"baselines_us": baselines_us or against.baselines_us}),
        prompt_tokens=sum(exchange.usage.prompt_tokens for exchange in exchanges),
        reply_tokens=sum(exchange.usage.completion_tokens for exchange in exchanges),
        estimated=any(exchange.usage.counted == "estimate" for exchange in exchanges),
        tool_calls=sum(len(exchange.calls) for exchange in exchanges),
        cost=sum(exchange.cost for exchange in exchanges),
        seconds=sum(exchange.seconds for exchange in exchanges),
    )


def baselines_of(evaluation: Evaluation) -> dict[str, float]:
    """The medians of the baselines of a measurement."""
    return {timing.name: median_us(timing) for timing in evaluation.baselines} if isinstance(evaluation, Measured) else {}


def totals_of(tasks: Sequence[TaskFigures]) -> BenchTotals:
    """The figures of a bench."""
    pairs = [(one.time.basis, one.over_schedule) for one in tasks if one.time]
    measured = [ratio for basis, ratio in pairs if ratio is not None and basis == "measured"]
    predicted = [ratio for basis, ratio in pairs if ratio is not None and basis == "predicted"]
    tuned = [one.over_autotuning for one in tasks if one.over_autotuning is not None]
    return BenchTotals(
        tasks=len(tasks),
        first=sum(one.first for one in tasks),
        right=sum(one.right for one in tasks),
        measured=len(measured),
        over_schedule_measured=_mean(measured),
        predicted=len(predicted),
        over_schedule_predicted=_mean(predicted),
        compared=len(tuned),
        over_autotuning=_mean(tuned),
        prompt_tokens=sum(one.prompt_tokens for one in tasks),
        reply_tokens=sum(one.reply_tokens for one in tasks),
        estimated=any(one.estimated for one in tasks),
        tool_calls=sum(one.tool_calls for one in tasks),
        cost=sum(one.cost for one in tasks),
        seconds=sum(one.seconds for one in tasks),
    )


def _outcome(steps: Sequence[Step], replies: Sequence[Exchange]) -> str:
    """What became of the last candidate; without one, why the last reply gave none."""
    if steps:
        return steps[-1].evaluation.headline
    return replies[-1].problem if replies else "no reply"


def _mean(ratios: Sequence[float]) -> float | None:
    return geometric_mean(ratios) if ratios else None
