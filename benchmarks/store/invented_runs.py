"""Runs as sweeps make them: 48 candidates, 8 a round, then the three fastest in full; shapes of the 1,000-shape grid."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from benchmarks.store.invented_steps import InventedWorker, Models, inspect_like, profile_like, time_out_like
from benchmarks.store.real_runs import RealRun, RunEvent, RunReplay
from cudal2_agent.agent.observe.ranking import finalists
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Evaluation, Measured
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.reward.reward import reward
from cudal2_agent.policies.schedule.families.kernel_family import Family
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose_built

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
RUNS_PER_SHAPE = 20
CANDIDATES, ROUND, FINALISTS = 48, 8, 3
STEPS_PER_RUN = CANDIDATES + FINALISTS
FIRST_FAMILY = 0.85  # share of the candidates that the family made for the chip writes
LATE = 1 / 266  # share of candidates that took too long, as measured
PROFILED = 0.5  # share of runs whose winner was profiled, as measured
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


class RunSize(NamedTuple):
    """`candidates`: of the search. `finalists`: measured again, in full."""

    candidates: int = CANDIDATES
    finalists: int = FINALISTS


WHOLE = RunSize()


def shapes(count: int) -> list[tuple[int, int, int]]:
    """Shapes of the grid, in an order that takes all regions of it early."""
    grid = [(m, n, k) for m in SIZES for n in SIZES for k in SIZES]
    Random(0).shuffle(grid)
    return grid[:count]


class Inventor:
    """Writes runs after measured ones. Equal seeds give equal runs."""

    def __init__(self, models: Sequence[RealRun]) -> None:
        self._runs = [model.run for model in models]
        self._models = Models.of(models)

    @property
    def tasks(self) -> list[GemmTask]:
        """Those of the measured runs."""
        return [run.task for run in self._runs]

    def runs_of(self, shape: tuple[int, int, int], count: int = RUNS_PER_SHAPE) -> Iterator[list[RunEvent]]:
        """The records of some runs of a shape, each list one run."""
        m, n, k = shape
        for number in range(count):
            rng = Random(f"{shape} {number}")
            model = rng.choice(self._runs)
            yield list(self.run(model.task.model_copy(update={"m": m, "n": n, "k": k}), rng))

    def run(self, task: GemmTask, rng: Random, size: RunSize = WHOLE) -> Iterator[RunEvent]:
        """The records of one run in the order in which an agent writes them."""
        run = self._record(task, rng)
        yield run
        yield from _InventedRun(run, self._models, rng, size).events()

    def _record(self, task: GemmTask, rng: Random) -> RunRecord:
        begun = BEGIN + timedelta(microseconds=rng.randrange(30 * 86_400_000_000))
        model = rng.choice(self._runs)
        return model.model_copy(
            update={
                "run_id": f"{task.shape}-{begun:%Y%m%d-%H%M%S}-{rng.getrandbits(32):08x}",
                "task": task,
                "seed": rng.getrandbits(31),
                "created_at": begun,
                "finished_at": begun + timedelta(microseconds=rng.randrange(60_000_000)),
                "best_candidate_id": f"{rng.getrandbits(64):016x}",
                "out": f"/out/{task.shape}",
            }
        )


class _InventedRun:
    def __init__(self, run: RunRecord, models: Models, rng: Random, size: RunSize) -> None:
        self._run, self._models, self._rng, self._size = run, models, rng, size
        self._worker = InventedWorker(run.task, run.chip, rng)
        self._replay = RunReplay(run)
        self._now = run.created_at

    def events(self) -> Iterator[RunEvent]:
        candidates = _drawn(self._run.task, self._run.chip, self._models.families, self._rng)
        left_s = 36.0
        for number in range(1, -(-self._size.candidates // ROUND) + 1):
            left_s -= self._rng.uniform(3.0, 6.0)
            yield self._replay.observe(number, left_s)
            for candidate in islice(candidates, min(ROUND, self._size.candidates - len(self._replay.ranked))):
                yield self._step(candidate, number)
        profiled = self._rng.random() < PROFILED
        for place, first in enumerate(finalists(self._replay.ranked, self._size.finalists)):
            assert isinstance(first.candidate, Candidate)
            yield self._step(first.candidate, first.round, first, profiled=profiled and place == 0)

    def _step(self, candidate: Candidate, number: int, first: Step | None = None, *, profiled: bool = False) -> Step:
        """The next step; of a finalist where `first` is its step of the search."""
        run, rng = self._run, self._rng
        evaluation, seconds = self._evaluation(candidate, first)
        profile = profile_like(rng.choice(self._models.profiles), rng) if profiled else None
        built = Built(
            candidate=candidate, inspection=evaluation.inspection, artifact_path="", cached=False, seconds=0.0, task=run.task
        )
        self._now += timedelta(seconds=sum(seconds.values()))
        step = Step(
            run_id=run.run_id,
            index=len(self._replay.ranked),
            round=number,
            observation_id=self._replay.observation_id(number),
            candidate=candidate,
            evaluation=evaluation,
            diagnosis=diagnose_built(built, run.task, run.chip, evaluation, profile),
            profile=profile,
            reward=reward(evaluation, run.task, run.chip, candidate.origin),
            seconds=seconds,
            created_at=self._now,
        )
        self._replay.add(step)
        return step

    def _evaluation(self, candidate: Candidate, first: Step | None) -> tuple[Evaluation, dict[str, float]]:
        rng = self._rng
        if first is None and rng.random() < LATE:
            model = rng.choice(self._models.late)
            return time_out_like(model, candidate), _seconds(model, rng)
        model = self._models.choose(candidate, rng, in_full=first is not None)
        assert isinstance(model.evaluation, Measured)
        inspection = first.evaluation.inspection if first else inspect_like(candidate, model.evaluation.inspection)
        assert inspection is not None
        return self._worker.measure(candidate, model.evaluation, inspection), _seconds(model, rng)


def _seconds(model: Step, rng: Random) -> dict[str, float]:
    return {stage: seconds * rng.uniform(0.8, 1.25) for stage, seconds in model.seconds.items()}


def _drawn(task: GemmTask, chip: Chip, measured: frozenset[str], rng: Random) -> Iterator[Candidate]:
    """Candidates of the spaces of the families that were measured, none twice."""
    first, *others = _spaces(task, chip, measured)
    seen: set[Any] = set()
    while True:
        family, schedules = first if not others or rng.random() < FIRST_FAMILY else rng.choice(others)
        schedule = rng.choice(schedules)
        if schedule not in seen:
            seen.add(schedule)
            yield family.write(schedule, task)


@lru_cache(maxsize=2)
def _spaces(task: GemmTask, chip: Chip, measured: frozenset[str]) -> list[tuple[Family[Any], list[Any]]]:
    spaces = [(family, list(family.space(task, chip))) for family in families(task.arch) if family.name in measured]
    return [(family, space) for family, space in spaces if space]
