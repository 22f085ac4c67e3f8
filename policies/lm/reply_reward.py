"""The reward of a sampled reply: the value of its candidate by a `Score`, and a smaller part for validity.

    reward = value + VALIDITY_WEIGHT · validity

`value` is the floor for a reply without a candidate and for a candidate that fails. Every reply with a candidate has the same
validity, 1. So the second part orders failed replies among themselves and never changes which candidate is better.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from contract.candidate import Candidate
from contract.chip import Chip
from contract.errors import WorkerError
from contract.events import Emit, Notice
from contract.reward import FLOOR
from contract.score import Score, Scored
from contract.task import GemmTask
from policies.lm.reply_reading import read_schedule
from policies.schedule.named_schedules import TaskSchedules

VALIDITY_WEIGHT = 0.5
KEPT_TASKS = 64  # whose schedules stay in memory, about 16 MB each
KEPT_SCORES = 100_000

schedules_of = lru_cache(maxsize=KEPT_TASKS)(TaskSchedules)


class ScoredCandidates:
    """The scores of candidates, each asked for once. A worker that dies is asked again; then its error is raised."""

    def __init__(self, score: Score, emit: Emit) -> None:
        self.score, self._emit = score, emit
        self._known: OrderedDict[tuple[str, str], Scored] = OrderedDict()

    def of(self, task: GemmTask, candidates: Sequence[Candidate]) -> dict[str, Scored]:
        """The scores by candidate id. Raises: WorkerError, MachineError."""
        new = {one.id: one for one in candidates if (task.id, one.id) not in self._known}
        for scored in self._asked(task, list(new.values())) if new else ():
            self._known[task.id, scored.candidate_id] = scored
        found = {one.id: self._known[task.id, one.id] for one in candidates}
        while len(self._known) > KEPT_SCORES:
            self._known.popitem(last=False)
        return found

    def _asked(self, task: GemmTask, candidates: list[Candidate]) -> list[Scored]:
        try:
            return self.score.score(task, candidates)
        except WorkerError as exc:
            self._emit(Notice(message=f"a reward worker died ({exc}); its {len(candidates)} candidates are evaluated again"))
        try:
            return self.score.score(task, candidates)
        except WorkerError as exc:
            raise WorkerError(
                f"the reward worker died twice on {task.shape} ({exc}); nothing of this step was learned: "
                "mend the sandbox and continue with --resume",
                log=exc.log,
            ) from exc


class ReplyReward:
    """A reward function as TRL calls it: with the columns `task` and `chip` of the examples as JSON, one per reply.

    `settle`: called before candidates are evaluated, so that the trainer's own kernels do not disturb their times.
    """

    __name__ = "schedule"

    def __init__(self, scores: ScoredCandidates, settle: Callable[[], None]) -> None:
        self._scores, self._settle = scores, settle

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
        for place in dict.fromkeys(zip(task, chip, strict=True)):
            members = [index for index, one in enumerate(zip(task, chip, strict=True)) if one == place]
            schedules = schedules_of(GemmTask.model_validate_json(place[0]), Chip.model_validate_json(place[1]))
            replies = {index: read_schedule(texts[index], schedules) for index in members}
            written = [reply.candidate for reply in replies.values() if reply.candidate is not None]
            scores = self._scores.of(schedules.task, written)
            for index, reply in replies.items():
                scored = scores[reply.candidate.id] if reply.candidate is not None else None
                rewards[index] = _reward(scored, reply.validity)
                valid += scored is not None
                verified += scored is not None and scored.basis in ("measured", "predicted")
        if log_metric is not None:
            log_metric("valid", valid / len(texts))
            log_metric("verified", verified / len(texts))
        return rewards


def _reward(scored: Scored | None, validity: float) -> float | None:
    value = FLOOR if scored is None else scored.value
    return None if value is None else value + VALIDITY_WEIGHT * validity
