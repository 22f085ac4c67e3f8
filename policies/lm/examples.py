"""The examples of a stage, made from the measured schedules of a store's runs. Shapes that are held out never occur.

- `sft`: the prompt without schedules; the completion is one of a run's best.
- `contrastive`: the prompt shows two schedules of different score buckets, and the completion is a clearly better one
  (`contract.reward.contrast`). Half of the examples are those of `sft`, so that the plain prompt is not forgotten.
- `grpo`: one prompt for each task, without a completion.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError
from sqlalchemy import Connection, select

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.exchange import Message
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.contrast import MIN_WIDTH, draw_contrast
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.whole_file import whole_file
from cudal2_agent.policies.exports.splits import TEST, ShapeSplit
from cudal2_agent.policies.lm.compact_prompt import SHOWN, ShownSchedule, axes_fingerprint, messages_of, reply_of, speedup_score
from cudal2_agent.policies.schedule.named_schedules import TaskSchedules
from cudal2_agent.store import tables
from cudal2_agent.store.reader import PlainReader
from cudal2_agent.store.store import Store


class ScoredSchedule(NamedTuple):
    """A measured schedule. `reward`: logarithm of the speedup, clipped. `speedup`: over cuBLASLt-AutoTuning."""

    values: dict[str, ScheduleValue]
    reward: float
    speedup: float


class StoredSearch(NamedTuple):
    """One run's schedules that were measured and have a reward, the best first."""

    run_id: str
    task: GemmTask
    chip: Chip
    scored: tuple[ScoredSchedule, ...]


def stored_searches(store: Store) -> Iterator[StoredSearch]:
    """The runs with a rewarded schedule, by the time of their start."""
    own = tables.runs.c
    with store.reading() as (connection, reader):
        for row in connection.execute(select(tables.runs).order_by(own.created_at, own.run_id)).all():
            scored = _scored(connection, reader, row.key)
            if scored:
                plain = reader.run(row)
                task, chip = GemmTask.model_validate(plain["task"]), Chip.model_validate(plain["chip"])
                yield StoredSearch(row.run_id, task, chip, scored)


def _scored(connection: Connection, reader: PlainReader, run: int) -> tuple[ScoredSchedule, ...]:
    """Of a schedule that was measured again, the later step counts."""
    own = tables.steps.c
    measured = select(own.index, own.reward, own.speedup).where(
        (own.run == run) & own.speedup.is_not(None) & (own.reward > FLOOR)
    )
    figures = {row[0]: (row[1], row[2]) for row in connection.execute(measured)}
    latest: dict[frozenset[tuple[str, ScheduleValue]], ScoredSchedule] = {}
    for index, parts in reader.step_parts(run, figures.keys()):
        if values := parts["origin"]["schedule"]:
            latest[frozenset(values.items())] = ScoredSchedule(values, *figures[index])
    return tuple(sorted(latest.values(), key=lambda one: -one.reward))


Stage = Literal["sft", "contrastive", "grpo"]
STAGES: tuple[Stage, ...] = ("sft", "contrastive", "grpo")
BEST_OF_RUN = 3
NEAR_BEST = 0.02  # of reward; the difference of two measurements of one kernel
CONTRASTS_OF_RUN = 3
_TOLD_TASKS = 50


class LmExample(Record):
    """A prompt and, unless replies are sampled, the reply to learn."""

    prompt: tuple[Message, ...]
    completion: str = ""
    task: GemmTask
    chip: Chip


class ExampleCounts(Record):
    """What the examples were made from. `held_out`: runs of shapes kept for testing. `unwritable`: schedules that the families
    no longer write.
    """

    runs: int
    shapes: int
    held_out: int
    unwritable: int
    examples: int


class Examples(Record):
    """The examples of one stage in the order of training. `axes`: see `axes_fingerprint`."""

    stage: Stage
    axes: str
    seed: int
    counts: ExampleCounts
    examples: tuple[LmExample, ...]

    @property
    def id(self) -> str:
        return digest(self.model_dump(mode="json"))


@dataclass(frozen=True)
class SearchedTask:
    """A task with all its stored runs, and what is to be made of them. It can be sent to another process."""

    stages: tuple[Stage, ...]
    seed: int
    searches: tuple[StoredSearch, ...]


@dataclass(frozen=True)
class TaskExamples:
    examples: tuple[LmExample, ...]
    unwritable: int


OfStages = dict[Stage, TaskExamples]


def make_examples(
    searches: Iterable[StoredSearch], stages: Sequence[Stage], split: ShapeSplit, seed: int, emit: Emit
) -> dict[Stage, Examples]:
    """The examples of each stage. Raises: UsageError where nothing is left to learn from."""
    found = sorted(searches, key=lambda one: (one.task.id, one.chip.name, one.run_id))
    kept = [one for one in found if split.of((one.task.m, one.task.n, one.task.k)) != TEST]
    if not kept:
        why = "holds no measured schedule" if not found else "holds only shapes that are kept for testing"
        raise UsageError(f"the store {why}; import a sweep or run `cudal2-agent optimize` on a GPU, then train")
    tasks = [
        SearchedTask(tuple(stages), seed, tuple(members))
        for _, members in groupby(kept, key=lambda one: (one.task.id, one.chip.name))
    ]
    made: dict[Stage, list[TaskExamples]] = {stage: [] for stage in stages}
    for number, of_stages in enumerate(map(examples_of, tasks), 1):
        for stage, of_task in of_stages.items():
            made[stage].append(of_task)
        if number % _TOLD_TASKS == 0:
            emit(Notice(message=f"examples of {number} of {len(tasks)} tasks are made"))
    return {stage: _joined(stage, of_tasks, kept, len(found) - len(kept), seed) for stage, of_tasks in made.items()}


def _joined(stage: Stage, made: Sequence[TaskExamples], kept: Sequence[StoredSearch], held_out: int, seed: int) -> Examples:
    examples = [one for of_task in made for one in of_task.examples]
    random.Random(seed).shuffle(examples)
    counts = ExampleCounts(
        runs=len(kept),
        shapes=len({one.task.shape for one in kept}),
        held_out=held_out,
        unwritable=sum(of_task.unwritable for of_task in made),
        examples=len(examples),
    )
    return Examples(stage=stage, axes=axes_fingerprint(), seed=seed, counts=counts, examples=tuple(examples))


def examples_of(searched: SearchedTask) -> OfStages:
    """The examples of one task for each stage. Deterministic in its stages, seed and runs."""
    first = searched.searches[0]
    schedules = TaskSchedules(first.task, first.chip)
    return {stage: _of_stage(stage, schedules, searched) for stage in searched.stages}


def _of_stage(stage: Stage, schedules: TaskSchedules, searched: SearchedTask) -> TaskExamples:
    if stage == "grpo":
        return TaskExamples((LmExample(prompt=messages_of(schedules), task=schedules.task, chip=schedules.chip),), 0)
    made = _TaskRows(schedules, searched.seed)
    plain = _once(row for search in searched.searches for row in made.best(search))
    if stage == "sft":
        return TaskExamples(tuple(plain), made.unwritable)
    contrasts = _once(row for search in searched.searches for row in made.contrasts(search))
    return TaskExamples((*contrasts, *plain[: len(contrasts)]), made.unwritable)


class _TaskRows:
    """The rows of one task's runs. `unwritable`: schedules so far that no reply names."""

    def __init__(self, schedules: TaskSchedules, seed: int) -> None:
        self._schedules, self._seed = schedules, seed
        self._plain = messages_of(schedules)
        self.unwritable = 0

    def best(self, search: StoredSearch) -> Iterator[LmExample]:
        """The plain prompt with each of the run's best schedules."""
        for one in _near_best(search.scored):
            yield from self._row(self._plain, one)

    def contrasts(self, search: StoredSearch) -> Iterator[LmExample]:
        """Prompts with two schedules of different score buckets; the completion is better than both."""
        best = _near_best(search.scored)
        lesser = [(one.reward, one) for one in search.scored if one.reward < best[-1].reward - MIN_WIDTH]
        for number in range(CONTRASTS_OF_RUN):
            drawn = draw_contrast(lesser, SHOWN, f"{self._seed}/{search.run_id}/{number}", _lines_of)
            if len(drawn) < SHOWN:
                return
            shown = [ShownSchedule(speedup_score(one.speedup), one.values) for _, one in drawn]
            yield from self._row(messages_of(self._schedules, shown), best[number % len(best)])

    def _row(self, prompt: tuple[Message, ...], scored: ScoredSchedule) -> Iterator[LmExample]:
        completion = reply_of(self._schedules, scored.values)
        if completion is None:
            self.unwritable += 1
            return
        yield LmExample(prompt=prompt, completion=completion, task=self._schedules.task, chip=self._schedules.chip)


def _near_best(scored: Sequence[ScoredSchedule]) -> list[ScoredSchedule]:
    return [one for one in scored[:BEST_OF_RUN] if one.reward >= scored[0].reward - NEAR_BEST]


def _lines_of(one: ScoredSchedule) -> str:
    """A schedule with a line for each axis, for the choice of unlike ones."""
    return json.dumps(one.values, indent=0)


def _once(rows: Iterable[LmExample]) -> list[LmExample]:
    return list({(row.prompt, row.completion): row for row in rows}.values())


def write_examples(path: Path, examples: Examples) -> None:
    """Raises: OSError."""
    with whole_file(path) as temporary:
        temporary.write_text(examples.model_dump_json(), encoding="utf-8")


def read_examples(path: Path, stage: Stage) -> Examples:
    """Raises: UsageError for a file that is not one, is of another stage, or names other axes."""
    try:
        examples = Examples.model_validate_json(path.read_bytes())
    except OSError as exc:
        raise UsageError(f"examples {path} cannot be read ({exc.strerror}); name a file that `train lm` wrote") from exc
    except ValidationError as exc:
        raise UsageError(f"{path} does not hold examples of this version; make them again from the store") from exc
    if examples.stage != stage:
        raise UsageError(f"{path} holds examples of stage {examples.stage}, not {stage}")
    if examples.axes != axes_fingerprint():
        raise UsageError(f"{path} names other axes than today's kernel families; make the examples again from the store")
    return examples
