"""Schedules that did well on similar shapes in earlier runs, for a search to start from; the best kernels of such runs.

A server's search starts from the best offline schedules of the same shape. Their order is that of their times without
programmatic launch, because a single launch has no preceding kernel to overlap (`python -m benchmarks.speed.server_pairs`).
A search in BF16 starts from the best schedules in F16 of the same shape, and the other way round.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, select

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Timing
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.task import GemmTask, TimingMode, parse_shape
from cudal2_agent.contract.records.trajectory import Precedent, RunRecord, Step
from cudal2_agent.contract.reward.speedup import paired_ratio, speedup_that_counts
from cudal2_agent.store import tables
from cudal2_agent.store.packing import named
from cudal2_agent.store.reader import PlainReader
from cudal2_agent.store.store import Store
from cudal2_agent.store.tables import SHAPE_CHARS

REACH = 3.0  # in doublings of one size; schedules of shapes farther away are no better than the prior's own
MAX_RUNS = 64  # nearest runs that are read for one task
RUN_STEPS = 6  # fastest steps of a run that are read
RUN_SCHEDULES = 6  # best schedules of a run
RANK_DISTANCE = 0.75  # the second best of a run counts as so many doublings farther away than its best
MODE_DISTANCE = 0.5  # a run in the other timing mode counts as so many doublings farther away
ELEMENT_DISTANCE = 0.25  # a run in the other element type counts as so many doublings farther away
CARRIED_DISTANCE = 0.01  # per rank: all that carry over from a run of the same shape come before any other shape

_PRODUCT = re.compile(r"\d+x\d+x\d+", re.ASCII)  # the shape of a matrix product; runs of modules have their name there


class _Leader(NamedTuple):
    """A schedule that led a run. `plain`: speedup without programmatic launch, that of the plan where it is not known."""

    raced: bool
    speedup: float
    plain: float
    precedent: Precedent


# What was read of the runs of each open store, by the key of the run. A finished run does not change.
_READ: WeakKeyDictionary[Store, dict[int, Sequence[_Leader]]] = WeakKeyDictionary()


class StoredPrecedents:
    """Reads the finished runs of a store. Each is read once in a process: within a campaign an answer takes milliseconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._of_run = _READ.setdefault(store, {})

    def near(self, task: GemmTask, chip: Chip, count: int) -> list[Precedent]:
        """At most `count` schedules, the nearest first; equal schedules once.

        Only runs of the same chip, accumulator and layout count. Near is a small distance of the logarithms of M, N and K;
        what a run's timing mode and element type add to it is small too. What carries over from a run of the same shape comes
        before all other shapes.
        """
        found: list[tuple[float, Precedent]] = []
        with self._store.reading() as (connection, reader):
            own = tables.runs.c
            finished = (own.arch == task.arch.value) & (own.chip == chip.name) & (own.status == "finished")
            runs = connection.execute(select(own.key, own.shape, own.created_at).where(finished)).all()
            runs = [row for row in runs if _PRODUCT.fullmatch(row.shape)]
            distances = {row.key: _distance(row.shape, task) for row in runs}
            nearest = sorted((row for row in runs if distances[row.key] <= REACH), key=lambda row: row.created_at, reverse=True)
            for row in sorted(nearest, key=lambda row: distances[row.key])[:MAX_RUNS]:
                for rank, precedent in enumerate(_in_order(self._best(connection, reader, row.key), task)):
                    if _comparable(precedent.task, task):
                        found.append((_apart(precedent, task, distances[row.key], rank), precedent))
        found.sort(key=lambda pair: pair[0])
        nearest_first: dict[frozenset[tuple[str, ScheduleValue]], Precedent] = {}
        for _, precedent in found:
            nearest_first.setdefault(frozenset(precedent.schedule.items()), precedent)
        return list(nearest_first.values())[:count]

    def _best(self, connection: Connection, reader: PlainReader, key: int) -> Sequence[_Leader]:
        if key not in self._of_run:
            self._of_run[key] = _best_of_run(connection, reader, key)
        return self._of_run[key]


class KnownStep(NamedTuple):
    """The last step of a run's winner. `policy`: of the run. `speedup`: over the baseline that counts."""

    task: Task
    policy: str
    time_us: float
    speedup: float
    step: Step


def best_steps_near(store: Store, task: Task, chip: Chip, count: int) -> list[KnownStep]:
    """The winners of finished runs that were measured and rewarded: of the task, then of the nearest matrix products."""
    own = tables.runs.c
    finished = (own.arch == task.arch.value) & (own.chip == chip.name) & (own.status == "finished")
    unique: dict[str, tuple[float, KnownStep]] = {}
    with store.reading() as (connection, reader):
        runs = connection.execute(select(tables.runs).where(finished).order_by(own.created_at.desc())).all()
        near = sorted(((_apart_by_name(row.shape, task), row) for row in runs), key=lambda one: one[0])
        for distance, row in near[:MAX_RUNS]:
            run = RunRecord.model_validate(reader.run(row))
            same = _comparable(run.task, task) if isinstance(task, GemmTask) else run.task == task
            known = _winner(connection, reader, run) if distance <= REACH and same else None
            if known is not None:
                unique.setdefault(known.step.candidate.id, (distance, known))
    return [known for _, known in sorted(unique.values(), key=lambda one: (one[0], -one[1].speedup))[:count]]


def _winner(connection: Connection, reader: PlainReader, run: RunRecord) -> KnownStep | None:
    contents, steps = tables.contents.c, tables.steps.c
    is_winner = (contents.kind == "candidate") & (contents.hash == named(run.best_candidate_id or ""))
    key = connection.execute(select(contents.key).where(is_winner)).scalar_one_or_none()
    rewarded = (steps.candidate == key) & steps.speedup.is_not(None) & steps.reward.is_not(None)
    found = [Step.model_validate(plain) for _, plain in reader.steps(run.run_id, rewarded)] if key is not None else []
    speedup = speedup_that_counts(found[-1].evaluation) if found else None
    if speedup is None or found[-1].evaluation.time_us is None:
        return None
    return KnownStep(run.task, run.policy, found[-1].evaluation.time_us, speedup, found[-1])


def _apart_by_name(shape: str, task: Task) -> float:
    """The distance of a run by its shape; infinite for another module, or another kind of task."""
    if isinstance(task, GemmTask):
        return _distance(shape, task) if _PRODUCT.fullmatch(shape) else math.inf
    return 0.0 if shape == task.shape[:SHAPE_CHARS] else math.inf


def _best_of_run(connection: Connection, reader: PlainReader, key: int) -> Sequence[_Leader]:
    """The best schedules of a run: those of its race first, then by speedup."""
    run = connection.execute(select(tables.runs).where(tables.runs.c.key == key)).one()
    plain = reader.run(run)["task"]
    if "problem" in plain:  # a module that is named like a shape
        return ()
    task = GemmTask.model_validate(plain)
    own = tables.steps.c
    measured = select(own.index, own.speedup, own.time_us).where((own.run == key) & own.speedup.is_not(None))
    rows = connection.execute(measured).all()
    speedups: dict[int, float] = {row[0]: row[1] for row in rows}
    baselines_us: dict[int, float] = {row[0]: row[1] * row[2] for row in rows if row[2] is not None}
    fastest = sorted(speedups, key=lambda index: -speedups[index])[:RUN_STEPS]
    last = sorted(speedups)[-RUN_STEPS:]  # a race is at the end
    best: dict[frozenset[tuple[str, ScheduleValue]], _Leader] = {}
    for index, parts in reader.step_parts(key, {*fastest, *last}):
        if schedule := parts["origin"]["schedule"]:  # the later step of a schedule counts
            precedent = Precedent(
                run_id=run.run_id,
                task=task,
                schedule=schedule,
                speedup=speedups[index],
                baseline_us=baselines_us.get(index),
            )
            raced = parts["evaluation"].get("effort") in ("race", "full")
            plain = _plain_speedup(parts["evaluation"]) or speedups[index]
            best[frozenset(schedule.items())] = _Leader(raced, speedups[index], plain, precedent)
    return sorted(best.values(), key=lambda one: one[:2], reverse=True)[:RUN_SCHEDULES]


def _plain_speedup(evaluation: Mapping[str, Any]) -> float | None:
    """Over cuBLASLt-AutoTuning; None where the kernel was not timed without programmatic launch."""
    autotuned = next((one for one in evaluation["baselines"] if one["name"] == AUTOTUNED), None)
    if autotuned is None or evaluation.get("plain") is None:
        return None
    return paired_ratio(Timing.model_validate(evaluation["plain"]), Timing.model_validate(autotuned))


def _in_order(leaders: Sequence[_Leader], task: GemmTask) -> list[Precedent]:
    """A run's leaders, the most promising for the task first."""
    if task.mode is TimingMode.SERVER:
        leaders = sorted(leaders, key=lambda one: (one.raced, one.plain), reverse=True)
    return [one.precedent for one in leaders]


def _apart(precedent: Precedent, task: GemmTask, distance: float, rank: int) -> float:
    """How far a schedule is from a task: the distance of the shapes, its rank within its run, timing mode and element type."""
    if precedent.carries_over(task):
        return CARRIED_DISTANCE * (rank + 1)
    own = precedent.task
    other = MODE_DISTANCE * (own.mode is not task.mode) + ELEMENT_DISTANCE * (own.element is not task.element)
    return distance + RANK_DISTANCE * rank + other


def _distance(shape: str, task: GemmTask) -> float:
    """Between two shapes, in doublings."""
    return doublings(parse_shape(shape), (task.m, task.n, task.k))


def doublings(sizes: Sequence[int], others: Sequence[int]) -> float:
    """The distance between two shapes."""
    return math.dist((0.0,) * 3, [math.log2(one / other) for one, other in zip(sizes, others, strict=True)])


def _comparable(one: Task, other: GemmTask) -> bool:
    """Whether the tasks differ in their sizes, timing modes and element types alone."""
    return isinstance(one, GemmTask) and one == other.model_copy(
        update={"m": one.m, "n": one.n, "k": one.k, "mode": one.mode, "element": one.element}
    )
