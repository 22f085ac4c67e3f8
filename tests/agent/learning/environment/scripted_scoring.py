"""A score over scripted sandboxes, in processes that tests kill. Not a test.

Each evaluation writes a line to HOME/evaluated.txt: the candidate's number and the process. What a candidate does is decided by
its number. `python -m tests.agent.learning.environment.scripted_scoring HOME` scores until it is killed.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cudal2_agent.agent.learning.environment.sandbox_score import NoticesOnce, SandboxScore
from cudal2_agent.agent.learning.environment.score_cache import ScoreCache
from cudal2_agent.agent.learning.environment.scoring_process import ScoringProcess
from cudal2_agent.agent.learning.environment.scoring_sandbox import ScoringOrder, ScoringSandbox
from cudal2_agent.contract.errors import MachineError
from cudal2_agent.contract.events import Emit, Notice, ignore
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import Effort
from cudal2_agent.contract.settings.settings import Settings
from tests.doubles import TASK, ScriptedSandbox, candidate, number_of

SLOW, KILLS_ONCE, KILLS, BREAKS = 70, 80, 90, 100
SLOW_S = 0.2


class LoggedSandbox(ScriptedSandbox):
    """Times are 5 µs and one more for each number; cuBLASLt takes 10."""

    def __init__(self, home: Path, *, emulates: bool = False) -> None:
        super().__init__({number: 5.0 + number for number in range(20)}, failures=(3,), emulates=emulates)
        self._log = home / "evaluated.txt"

    def evaluate(self, built: Built, task: GemmTask, effort: Effort) -> Evaluation:
        number = number_of(built.candidate)
        before = [one for one, _ in evaluated(self._log.parent)].count(number)
        with self._log.open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
        if number == KILLS or (number == KILLS_ONCE and not before):
            os.kill(os.getpid(), signal.SIGKILL)
        if number == BREAKS:
            raise MachineError("the driver was lost")
        time.sleep(SLOW_S if number >= SLOW else 0)
        return super().evaluate(built, task, effort)


def evaluated(home: Path) -> list[tuple[int, int]]:
    """Number and process of each evaluation, in order."""
    path = home / "evaluated.txt"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(number), int(process)) for number, process in rows]


@contextmanager
def open_scripted(order: ScoringOrder, emit: Emit) -> Iterator[ScoringSandbox]:
    emit(Notice(message="there is no jail"))
    yield ScoringSandbox(LoggedSandbox(order.settings.home))


@contextmanager
def open_broken(_: ScoringOrder, __: Emit) -> Iterator[ScoringSandbox]:
    raise MachineError("there is no driver")
    yield


def order(home: Path) -> ScoringOrder:
    return ScoringOrder(settings=Settings(home=home), arch=Arch.SM_90A)


@contextmanager
def processes(home: Path, count: int = 1, emit: Emit = ignore) -> Iterator[SandboxScore]:
    """A score over processes."""
    once = NoticesOnce(emit)
    workers = [ScoringProcess(order(home), open_scripted, once) for _ in range(count)]
    score = SandboxScore(workers, ScoreCache(home / "scores.sqlite", emit), Arch.SM_90A, emit=emit)
    try:
        yield score
    finally:
        score.close()


def in_process(home: Path, sandbox: ScriptedSandbox | None = None, emit: Emit = ignore) -> SandboxScore:
    """A score over a sandbox in this process."""
    worker = ScoringSandbox(sandbox or LoggedSandbox(home))
    return SandboxScore([worker], ScoreCache(home / "scores.sqlite", emit), Arch.SM_90A, emit=emit)


def candidates(*numbers: int) -> list[Candidate]:
    return [candidate(number) for number in numbers]


def main(home: Path, numbers: Sequence[int]) -> None:
    with processes(home, 2) as score:
        score.score(TASK, candidates(*numbers))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(number) for number in sys.argv[2:]])
