"""Four right kernels of one shape, an author without memory who holds them, and a machine without a GPU that proves them.

The kernels are the recorded author's replies 05 to 08. Builds are real; that the emulator finds them right is shown by
`tests/agent/run/test_strong_author.py`. Times are predicted by what the test injects.
"""

import re
from collections.abc import Sequence

from cudal2_agent.contract.protocols import Predict
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Evaluation, Unmeasured
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, Effort
from tests import doubles
from tests.author.machine import Machine
from tests.author.script import SCRIPT, Turn
from tests.doubles.chat_server import Request, Text

FOUR = tuple(turn for turn in SCRIPT if turn.name in ("05_right", "06_profile_guided", "07_better", "08_cluster"))
NOTHING_LEFT = "## Analysis\n\nAll that I know was tried."


class Forgetful:
    """Answers from the prompt alone: the first of its kernels whose idea the table of what was tried does not name."""

    def __init__(self, order: Sequence[Turn]) -> None:
        self._order = order

    def __call__(self, request: Request) -> Text:
        tried = table_of(request.prompt)
        left = [turn for turn in self._order if idea_of(turn) not in tried]
        text = left[0].text if left else NOTHING_LEFT
        return Text(text, usage=(len(request.prompt) // 4, len(text) // 4), pieces=4000)


class Proving(Machine):
    """Finds every kernel right, as the emulator does, and times none. `predict`: gives each its predicted time."""

    can_measure = False
    environment = None  # type: ignore[assignment]

    def __init__(self, options: CompileOptions, predict: Predict) -> None:
        super().__init__(options)
        self._predict = predict
        self._built: dict[str, Built | Evaluation] = {}

    def build(self, candidates, task, cancel=None):  # type: ignore[no-untyped-def]
        """Each candidate is built once, also if several runs propose it."""
        new = [one for one in candidates if one.id not in self._built]
        self._built |= {new[place].id: outcome for place, outcome in super().build(new, task, cancel)}
        return iter([(place, self._own(one)) for place, one in enumerate(candidates)])

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:  # noqa: ARG002
        prediction = self._predict(built.candidate, task, built.inspection)
        return Unmeasured(verified_by="emulator", tests=(doubles.PASSED,), prediction=prediction, inspection=built.inspection)

    def _own(self, candidate: AnyCandidate) -> Built | Evaluation:
        """The build with this run's origin of the candidate."""
        outcome = self._built[candidate.id]
        return outcome.model_copy(update={"candidate": candidate}) if isinstance(outcome, Built) else outcome


def idea_of(turn: Turn) -> str:
    """The reply's idea as a prompt quotes it, on one line and without backticks."""
    return turn.draft.note.replace("`", "'")


def table_of(prompt: str) -> str:
    """The section of what was tried; empty where nothing was."""
    found = re.search(r"(?ms)^# What was tried\n(.*?)(?=^# )", prompt)
    return found[1] if found else ""
