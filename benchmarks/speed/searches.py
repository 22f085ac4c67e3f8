"""The searches behind the rows, from the committed steps: which candidate came when, what it cost, and how fast it was.

How a candidate counts: one that was raced with the ratio of its race, one that was only screened with an estimate. The estimate
is its screened ratio under equal conditions, times the median of raced over screened ratio among the finalists of the same
search, because the best of short measurements are too good. No estimate exceeds the best raced ratio: the race decided.
A search that had stopped earlier would have raced its best candidates of that moment. Every finalist of the whole search that
it had seen is among these.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import median

from cudal2_agent.agent.campaign.winners import decides, gpu_seconds_of, ratios_of
from cudal2_agent.agent.observe.ranking import Ranked, rank
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.module_task import gemm
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.reward.speedup import ScreenedTime, steady_speedups
from cudal2_agent.store.incoming import IncomingStep, lines_of
from cudal2_agent.store.sweep.sweep_reading import SweepReader

SUFFIX = ".sweep.zst"


@dataclass(frozen=True)
class TimedTrial:
    """One measurement of a candidate. `raced`: in the final race. `ratio`: over AutoTuning, None where none was measured."""

    candidate_id: str
    raced: bool
    ratio: float | None
    gpu_s: float


@dataclass(frozen=True)
class Search:
    """The measurements of one run, in order."""

    run_id: str
    task: GemmTask
    trials: tuple[TimedTrial, ...]

    @cached_property
    def screened(self) -> list[TimedTrial]:
        """One entry per candidate, those that failed included."""
        first: dict[str, TimedTrial] = {}
        for one in self.trials:
            first.setdefault(one.candidate_id, one)
        return list(first.values())

    @cached_property
    def raced(self) -> dict[str, float]:
        """Ratios of the race by candidate, of those that it found right."""
        return {id_: one.ratio for id_, one in self._latest.items() if one.raced and one.ratio is not None}

    @property
    def race_s(self) -> float:
        """GPU seconds of the race."""
        return sum(one.gpu_s for one in self.trials if one.raced)

    @cached_property
    def spent_s(self) -> list[float]:
        """GPU seconds after each candidate, without the race."""
        return list(accumulate(0.0 if one.raced else one.gpu_s for one in self.screened))

    @cached_property
    def best(self) -> list[float | None]:
        """The best ratio after each candidate; None before the first that works."""
        found: list[float | None] = []
        for one in self.screened:
            known = [ratio for ratio in (found[-1] if found else None, self._worth(one)) if ratio is not None]
            found.append(max(known, default=None))
        return found

    def is_whole(self, row: ShapeResult) -> bool:
        """Whether all candidates of the row's search are here, and its race."""
        return bool(self.raced) and len(self.screened) == row.candidates

    @cached_property
    def _gap(self) -> float:
        """Raced over screened ratio of the finalists."""
        screened = {one.candidate_id: one.ratio for one in self.screened if not one.raced}
        gaps = [ratio / before for id_, ratio in self.raced.items() if (before := screened.get(id_)) is not None]
        return median(gaps) if gaps else 1.0

    @cached_property
    def _latest(self) -> dict[str, TimedTrial]:
        return {one.candidate_id: one for one in self.trials}

    def _worth(self, one: TimedTrial) -> float | None:
        """None for a candidate that failed, be it in the race."""
        last = self._latest[one.candidate_id]
        if last.raced or last.ratio is None:
            return last.ratio
        return min(last.ratio * self._gap, max(self.raced.values(), default=last.ratio))


def read_searches(paths: Iterable[Path]) -> Iterator[Search]:
    """The runs of sweep files, and of the sweep files in folders. Raises: UsageError."""
    for path in paths:
        for file in sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]:
            yield from (search_of(run, steps) for run, steps in runs_in(file))


def search_of(run: RunRecord, steps: Sequence[Step]) -> Search:
    """A candidate that is measured again is in the race, also where it failed there."""
    known: set[str] = set()
    ranked = [rank(step, run.task, run.chip) for step in steps]
    trials = []
    for one in ranked:
        trials.append(_trial(one, again=one.step.candidate.id in known))
        known.add(one.step.candidate.id)
    return Search(run.run_id, gemm(run.task, "this comparison"), tuple(_under_equal_conditions(trials, ranked)))


def runs_in(file: Path) -> Iterator[tuple[RunRecord, list[Step]]]:
    """The runs of a sweep file with their steps. Raises: UsageError."""
    reader, run, steps = SweepReader(), None, list[Step]()
    for number, line in enumerate(lines_of(str(file)), 1):
        try:
            incoming = reader.read(line)
        except ValueError as exc:
            raise UsageError(f"{file}, line {number} is not a line of a sweep; name files of `trajectories export`") from exc
        for one in incoming:
            if isinstance(one, IncomingStep):
                steps.append(one.step)
                continue
            if run is not None:
                yield run, steps
            run, steps = one, []
    if run is not None:
        yield run, steps


def _trial(one: Ranked, *, again: bool) -> TimedTrial:
    """A kernel faster than the chip can be has no ratio."""
    ratio = ratios_of(one.step)[0] if one.plausible else None
    return TimedTrial(one.step.candidate.id, again or decides(one.step), ratio, gpu_seconds_of(one.step))


def _under_equal_conditions(trials: Sequence[TimedTrial], ranked: Sequence[Ranked]) -> Iterator[TimedTrial]:
    """The ratios of screens, as the search orders them (`contract.reward.speedup.steady_speedups`)."""
    places = [place for place, one in enumerate(trials) if not one.raced and one.ratio is not None]
    screened = [ScreenedTime(ranked[place].time_us, trials[place].ratio or 0.0, ranked[place].overlaps) for place in places]
    ratios = dict(zip(places, steady_speedups(screened), strict=True))
    for place, one in enumerate(trials):
        yield replace(one, ratio=ratios[place]) if place in ratios else one
