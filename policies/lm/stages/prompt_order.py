"""The prompts of a group-relative stage in the order of training, so that the tasks of the next step are known."""

import random
from collections.abc import Sequence

from cudal2_agent.policies.lm.examples import LmExample
from cudal2_agent.policies.lm.replies.reply_readers import TaskPlace
from cudal2_agent.policies.lm.stages.stage_settings import StageSettings


class PromptOrder:
    """Each round over the examples has an order of its own. `stride`: prompts of one step, over all processes.

    trl's sampler starts again with the first order where training resumes.
    """

    def __init__(self, examples: Sequence[LmExample], settings: StageSettings, processes: int) -> None:
        rng = random.Random(settings.seed)
        replies = settings.batch * settings.accumulate * processes
        rounds = -(-settings.steps * replies // (settings.group * len(examples)))
        self.examples = [one for _ in range(rounds) for one in rng.sample(examples, len(examples))]
        self.places = [TaskPlace(one.task.model_dump_json(), one.chip.model_dump_json()) for one in self.examples]
        self.stride = max(replies // settings.group, 1)
        self._at = 0

    def first(self) -> list[TaskPlace]:
        """The tasks of the first step."""
        return self.places[: self.stride]

    def after(self, seen: Sequence[TaskPlace]) -> list[TaskPlace]:
        """The tasks that this process is asked for after these; none where the order does not hold them."""
        distinct = list(dict.fromkeys(seen))
        onwards = [*range(self._at, len(self.places)), *range(self._at)]  # a task comes again in each round
        found = next((begin for begin in onwards if self.places[begin : begin + len(distinct)] == distinct), None)
        if not distinct or found is None:
            return []
        self._at = found
        begin = found + self.stride
        return self.places[begin : begin + len(distinct)]
