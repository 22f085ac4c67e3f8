"""Writing kernels as an environment of reinforcement learning: `reset` gives an observation, `step` scores an answer to it."""

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

from cudal2_agent.agent.learning.environment.answers import Answer, AnswerForms, ReadAnswer, read_answer
from cudal2_agent.agent.learning.environment.episode import Episode
from cudal2_agent.agent.learning.environment.scored_outcome import fault_of
from cudal2_agent.agent.learning.environment.together import begun, together
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.score import Basis, Score, Scored
from cudal2_agent.contract.reward.speedup import speedup_that_counts
from cudal2_agent.contract.settings.options import ReplyKind

TURNS = 4
MALFORMED, UNSCORED = "malformed", "unscored"


class StepInfo(Record):
    """What became of an answer. The fields after `message` are of its best candidate.

    `observation_id`: of the observation that was answered; answers to equal ones are a group, as for leave-one-out baselines.
    `status`: of the evaluation; `malformed` where the answer gives no candidate, `unscored` where its score was not ready.
    `message`: the fault, why the value is unknown, or why an answer or a part of it gives no candidate.
    `reward`: None where nothing was measured, or the task is unsound. `speedup`: over cuBLASLt-AutoTuning, of a module over the
    fastest baseline. Unit of times: microseconds.
    `outcomes`: of all candidates of the answer.
    """

    task: Task
    observation_id: str
    turn: int
    status: str
    message: str = ""
    candidate_id: str | None = None
    basis: Basis | None = None
    reward: float | None = None
    speedup: float | None = None
    time_us: float | None = None
    predicted_us: float | None = None
    cached: bool = False
    seconds: float = 0.0
    outcomes: tuple[Scored, ...] = ()


class StepResult(Record):
    """The next observation, and the value of an answer: None where nothing is known, which is neither bad nor 0.

    `done`: the episode has no turn left.
    """

    observation: Observation
    value: float | None
    done: bool
    info: StepInfo


@runtime_checkable
class RemembersScores(Protocol):
    """A score that tells what it knows already, without evaluating anything."""

    def known(self, task: Task, candidates: Sequence[AnyCandidate]) -> list[Scored | None]: ...


class OpenStep(NamedTuple):
    """An answer whose candidates are to be scored. `open`: those that the episode does not know."""

    read: ReadAnswer
    task: Task
    open: Sequence[AnyCandidate]


class KernelEnvironment:
    """One environment. An episode is `turns` answers for one task.

    An answer without a candidate has the value of a failure. An answer with several candidates has the value of the best. A
    candidate that was tried before in the episode has its value again.
    """

    def __init__(
        self,
        score: Score,
        tasks: Sequence[Task],
        *,
        turns: int = TURNS,
        replies: ReplyKind = "any",
        schedules: int = 4,
        timeout_s: float | None = None,
    ) -> None:
        """`replies`, `schedules`: what the text of a reply may hold. `timeout_s`: of a step; None waits for every score."""
        if not tasks or turns < 1:
            raise UsageError("an environment needs a task and a turn at least")
        self._score, self._tasks, self._turns = score, tasks, turns
        self._forms = AnswerForms(replies=replies, schedules=schedules)
        self._timeout_s = timeout_s
        self._episode: Episode | None = None

    def reset(self, chosen: Task | int = 0) -> Observation:
        """Begin an episode for a task, or for one that a seed draws from the tasks."""
        seed = chosen if isinstance(chosen, int) else 0
        task = random.Random(seed).choice(self._tasks) if isinstance(chosen, int) else chosen
        self._episode = Episode(task, self._score.chip, seed)
        return self._episode.observation

    def step(self, answer: Answer) -> StepResult:
        """Score an answer. Raises: UsageError without an episode or after its end; as `Score.score`."""
        return step_together([self], [answer], self._score, self._timeout_s)[0]

    def begin(self, answer: Answer) -> OpenStep:
        """The first half of a step: what is to be scored. Raises: UsageError without an episode or after its end."""
        observation = self._running().observation
        read = read_answer(answer, observation, self._forms)
        unknown = [one for one in read.candidates if self._running().outcome(one.id) is None]
        return OpenStep(read, observation.task, unknown)

    def end(self, turn: OpenStep, found: Mapping[str, Scored]) -> StepResult:
        """The second half of a step. `found`: outcomes by candidate, as far as they are known."""
        episode = self._running()
        for one in turn.open:
            if one.id in found:
                episode.add(one, found[one.id])
        outcomes = [outcome for one in turn.read.candidates if (outcome := episode.outcome(one.id)) is not None]
        answered = episode.observation
        episode.end_turn()
        best = max(outcomes, key=_standing, default=None)
        info = _info(turn, answered, best).model_copy(update={"outcomes": tuple(outcomes)})
        value = best.value if best else (None if turn.read.candidates else FLOOR)
        return StepResult(observation=episode.observation, value=value, done=answered.round >= self._turns, info=info)

    def _running(self) -> Episode:
        if self._episode is None:
            raise UsageError("the environment has no episode; call reset")
        if self._episode.observation.round > self._turns:
            raise UsageError(f"the episode is over after {self._turns} turns; call reset")
        return self._episode


class EnvironmentBatch:
    """Environments that are stepped together: the candidates of all are scored in one call for each task."""

    def __init__(
        self,
        score: Score,
        tasks: Sequence[Task],
        count: int,
        *,
        turns: int = TURNS,
        replies: ReplyKind = "any",
        schedules: int = 4,
        timeout_s: float | None = None,
    ) -> None:
        """Options as for `KernelEnvironment`. `timeout_s`: of a step of all."""
        self._score, self._timeout_s = score, timeout_s
        self._environments = [
            KernelEnvironment(score, tasks, turns=turns, replies=replies, schedules=schedules) for _ in range(count)
        ]

    def reset(self, chosen: Sequence[Task | int]) -> list[Observation]:
        """Begin an episode in each. Equal tasks, or equal seeds, make a group."""
        return [one.reset(task) for one, task in zip(self._environments, chosen, strict=True)]

    def step(self, answers: Sequence[Answer]) -> list[StepResult]:
        """Score an answer of each. What is not ready in time is `unscored`. Raises: as `KernelEnvironment.step`."""
        return step_together(self._environments, answers, self._score, self._timeout_s)


def step_together(
    environments: Sequence[KernelEnvironment], answers: Sequence[Answer], score: Score, timeout_s: float | None
) -> list[StepResult]:
    """A step of each environment. All of them use `score`."""
    turns = [one.begin(answer) for one, answer in zip(environments, answers, strict=True)]
    tasks, wanted = {turn.task.id: turn.task for turn in turns}, dict[str, dict[str, AnyCandidate]]()
    for turn in turns:
        wanted.setdefault(turn.task.id, {}).update((one.id, one) for one in turn.open)
    found = _scored(score, [(tasks[key], list(each.values())) for key, each in wanted.items() if each], timeout_s)
    return [one.end(turn, found.get(turn.task.id, {})) for one, turn in zip(environments, turns, strict=True)]


def _scored(
    score: Score, wanted: Sequence[tuple[Task, Sequence[AnyCandidate]]], timeout_s: float | None
) -> dict[str, dict[str, Scored]]:
    """Outcomes by the task's id and candidate. What takes longer goes on in the background, and a score that keeps keeps it."""
    calls = [partial(score.score, task, candidates) for task, candidates in wanted]
    if timeout_s is None:
        answers: list[Sequence[Scored | None]] = list(together(calls))
    else:
        futures = begun(calls)
        wait(futures, timeout_s)
        answers = [
            future.result() if future.done() else _known(score, task, candidates)
            for future, (task, candidates) in zip(futures, wanted, strict=True)
        ]
    return {
        task.id: {outcome.candidate_id: outcome for outcome in answer if outcome is not None}
        for (task, _), answer in zip(wanted, answers, strict=True)
    }


def _known(score: Score, task: Task, candidates: Sequence[AnyCandidate]) -> Sequence[Scored | None]:
    return score.known(task, candidates) if isinstance(score, RemembersScores) else ()


def _standing(outcome: Scored) -> tuple[bool, float]:
    return outcome.value is not None, outcome.value or 0.0


def _info(turn: OpenStep, answered: Observation, best: Scored | None) -> StepInfo:
    given = turn.read
    info = StepInfo(
        task=turn.task,
        observation_id=answered.id,
        turn=answered.round,
        status=UNSCORED if given.candidates else MALFORMED,
        message=given.problem or ("its score was not ready in time" if given.candidates else ""),
    )
    if best is None:
        return info if given.candidates else info.model_copy(update={"basis": "failed", "reward": FLOOR})
    evaluation = best.evaluation
    found = {
        "status": evaluation.status,
        "message": fault_of(best, turn.task) or given.problem,
        "candidate_id": best.candidate_id,
        "basis": best.basis,
        "reward": best.value if best.basis in ("measured", "failed") else None,
        "speedup": speedup_that_counts(evaluation),
        "time_us": evaluation.time_us,
        "predicted_us": evaluation.predicted_us,
        "cached": best.cached,
        "seconds": best.seconds,
    }
    return info.model_copy(update=found)
