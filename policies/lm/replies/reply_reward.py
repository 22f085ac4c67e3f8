"""The reward of a sampled reply: the value of its candidate by a `Score`, and a smaller part for validity.

    reward = value + VALIDITY_WEIGHT · validity

`value` is the floor for a reply without a candidate and for a candidate that fails. Every reply with a candidate has the same
validity, 1. So the second part orders failed replies among themselves and never changes which candidate is better.
`StepSeconds` counts where a step's time goes: `sample`, `read`, `build` and `measure`; the rest is the update of weights.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.score import JointScore, Scored, TaskCandidates
from cudal2_agent.policies.lm.replies.reply_readers import ReplyReaders, TaskPlace, TaskReplies

VALIDITY_WEIGHT = 0.5
KEPT_SCORES = 100_000


class StepSeconds:
    """Wall-clock seconds by part since they were last taken."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin_s = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - begin_s)

    def add(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds

    def taken(self, steps: int) -> dict[str, float]:
        """Seconds per step as `sample_s` and so on; the next ones begin at 0."""
        spent, self._spent = self._spent, {}
        return {f"{name}_s": seconds / max(steps, 1) for name, seconds in spent.items()}


class ScoredCandidates:
    """The scores of candidates, each asked for once. A worker that dies is asked again; then its error is raised.

    `executed_s`: seconds so far in which candidates were verified and timed.
    """

    def __init__(self, score: JointScore, emit: Emit) -> None:
        self.score, self._emit = score, emit
        self.executed_s = 0.0
        self._known: OrderedDict[tuple[str, str], Scored] = OrderedDict()

    def of(self, task: GemmTask, candidates: Sequence[Candidate]) -> dict[str, Scored]:
        """The scores by candidate id. Raises: WorkerError, MachineError."""
        [found] = self.of_groups([TaskCandidates(task=task, candidates=tuple(candidates))])
        return found

    def of_groups(self, groups: Sequence[TaskCandidates]) -> list[dict[str, Scored]]:
        """The scores of several tasks' candidates, which are built together. Raises: WorkerError, MachineError."""
        new = [one for group in groups if (one := self._new(group)).candidates]
        for group, outcomes in zip(new, self._asked(new), strict=True) if new else ():
            for scored in outcomes:
                self._known[group.task.id, scored.candidate_id] = scored
                self.executed_s += scored.executed_s
        found = [{one.id: self._known[group.task.id, one.id] for one in group.candidates} for group in groups]
        while len(self._known) > KEPT_SCORES:
            self._known.popitem(last=False)
        return found

    def _new(self, group: TaskCandidates) -> TaskCandidates:
        """Each candidate that has no score yet, once."""
        new = {one.id: one for one in group.candidates if (group.task.id, one.id) not in self._known}
        return TaskCandidates(task=group.task, candidates=tuple(new.values()))

    def _asked(self, groups: list[TaskCandidates]) -> list[list[Scored]]:
        try:
            return self.score.score_groups(groups)
        except WorkerError as exc:
            count = sum(len(group.candidates) for group in groups)
            self._emit(Notice(message=f"a reward worker died ({exc}); its {count} candidates are evaluated again"))
        try:
            return self.score.score_groups(groups)
        except WorkerError as exc:
            shapes = ", ".join(dict.fromkeys(group.task.shape for group in groups))
            raise WorkerError(
                f"the reward worker died twice on {shapes} ({exc}); nothing of this step was learned: "
                "mend the sandbox and continue with --resume",
                log=exc.log,
            ) from exc


class ReplyReward:
    """A reward function as TRL calls it: with the columns `task` and `chip` of the examples as JSON, one per reply.

    `settle`: called before candidates are evaluated, so that the trainer's own kernels do not disturb their times.
    `readers`: read the replies; this process by default. `after`: the tasks to be expected after those of a call.
    """

    __name__ = "schedule"

    def __init__(
        self,
        scores: ScoredCandidates,
        settle: Callable[[], None],
        readers: ReplyReaders | None = None,
        after: Callable[[Sequence[TaskPlace]], Sequence[TaskPlace]] = lambda _: (),
        seconds: StepSeconds | None = None,
    ) -> None:
        self._scores, self._settle, self._after = scores, settle, after
        self._readers, self._seconds = readers or ReplyReaders(0), seconds or StepSeconds()

    def __call__(
        self,
        completions: Sequence[Any],
        task: Sequence[str],
        chip: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """None where nothing is known of a candidate; TRL then leaves the reply out of its group."""
        self._settle()
        texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
        rewards: list[float | None] = [None] * len(texts)
        valid = verified = 0
        members: dict[TaskPlace, list[int]] = {}
        for index, place in enumerate(map(TaskPlace, task, chip)):
            members.setdefault(place, []).append(index)
        with self._seconds.part("read"):
            asked = [TaskReplies(place, tuple(texts[index] for index in indices)) for place, indices in members.items()]
            replies = self._readers.read(asked)
        scores = self._scored(list(members), [[one.candidate for one in of_task if one.candidate] for of_task in replies])
        for indices, of_task, known in zip(members.values(), replies, scores, strict=True):
            for index, reply in zip(indices, of_task, strict=True):
                scored = known[reply.candidate.id] if reply.candidate is not None else None
                rewards[index] = _reward(scored, reply.validity)
                valid += scored is not None
                verified += scored is not None and scored.basis in ("measured", "predicted")
        if log_metric is not None:
            log_metric("valid", valid / len(texts))
            log_metric("verified", verified / len(texts))
        self._readers.expect(self._after(list(members)))  # while weights are updated and the next replies are sampled
        return rewards

    def _scored(self, places: Sequence[TaskPlace], written: Sequence[Sequence[Candidate]]) -> list[dict[str, Scored]]:
        """The scores of each task's candidates. What is not execution is waiting for builds."""
        tasks = [GemmTask.model_validate_json(place.task) for place in places]
        groups = [TaskCandidates(task=one, candidates=tuple(given)) for one, given in zip(tasks, written, strict=True)]
        begin_s, before_s = time.monotonic(), self._scores.executed_s
        found = self._scores.of_groups(groups)
        executed_s = self._scores.executed_s - before_s
        self._seconds.add("measure", executed_s)
        self._seconds.add("build", max(time.monotonic() - begin_s - executed_s, 0.0))
        return found


def _reward(scored: Scored | None, validity: float) -> float | None:
    value = FLOOR if scored is None else scored.value
    return None if value is None else value + VALIDITY_WEIGHT * validity
