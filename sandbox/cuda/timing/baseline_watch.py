"""The baselines' outputs, judged beside a candidate's: a wrong one is no baseline, and the others' error limits its own."""

import random
from collections.abc import Collection

from cudal2_agent.contract.records.task import AccumulatorType, GemmTask
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudgement
from cudal2_agent.sandbox.cuda.timing.sampling import Lane
from cudal2_agent.sandbox.cuda.timing.track import BaseTrack

JUDGED_ROUNDS = 2  # drawn ones; all rounds with f16 accumulators, where rounding hides most
JUDGED_BYTES = 256 * 1024**2  # of operands and outputs read for a baseline in a round


def judge_lane(track: BaseTrack, lane: Lane, draw: random.Random, most_bytes: int | None = None) -> OutputJudgement:
    """The outputs of the lane's last sample; with `most_bytes` those of drawn launches, as many as that many bytes hold.

    What a baseline left in memory of its own is first copied to the outputs' slots.
    """
    launches = track.delivered(lane)
    if most_bytes is not None:
        launches = draw.sample(launches, min(len(launches), max(1, most_bytes // track.task.operand_bytes)))
    judged: OutputJudgement = track.judge.project(launches, draw, library=True)
    return judged


class BaselineWatch:
    """Looks at the baselines in the rounds of one measurement. `wrong`: the faults that it found, by lane."""

    def __init__(self, track: BaseTrack, rounds: int, draw: random.Random) -> None:
        self._track, self._draw = track, random.Random(draw.getrandbits(64))
        always = isinstance(track.task, GemmTask) and track.task.accumulate is AccumulatorType.F16
        self._rounds = None if always else frozenset(self._draw.sample(range(rounds), min(rounds, JUDGED_ROUNDS)))
        self._rms: dict[str, float] = {}
        self.wrong: dict[str, str] = {}

    @property
    def rms(self) -> float:
        """The largest error of a right baseline when it was judged last; 0 where none was."""
        return max(self._rms.values(), default=0.0)

    def judges(self, round_: int) -> bool:
        """Whether the samples of a round are judged."""
        return self._rounds is None or round_ in self._rounds

    def look(self, name: str, lane: Lane, round_: int) -> None:
        """Judge a baseline's sample, which was just taken, if its round is one of those drawn."""
        if name in self.wrong or not self.judges(round_):
            return
        judged = judge_lane(self._track, lane, self._draw, JUDGED_BYTES)
        if judged.fault is None:
            self._rms[name] = judged.error_rms
        else:
            self._rms.pop(name, None)
            self.wrong[name] = judged.fault

    def notes(self, apart: Collection[str] = ()) -> tuple[str, ...]:
        """`apart`: lanes that are no baselines."""
        wrong = [(name.partition("/")[0], why) for name, why in self.wrong.items() if name not in apart]
        return tuple(f"baseline {name} left out in the rounds: {why}" for name, why in wrong)
