"""Benches of models as text: the tasks of one, and several beside each other."""

from collections.abc import Sequence

from cudal2_agent.agent.bench.models.bench_figures import BenchResult, BenchTotals, Reached, TaskFigures, totals_of
from cudal2_agent.agent.cli.render.alignment import NONE, aligned, cell
from cudal2_agent.contract.records.task import Arch

_RIGHT = frozenset(range(3, 9))


def bench_lines(result: BenchResult) -> list[str]:
    """A bench with a row for each task."""
    conditions = result.conditions
    head = ("task", "shape", "right", "us", "schedule, us", "ratio", "tokens", "cost", "s")
    rows = [_row(one) for one in result.tasks]
    return [
        f"{result.name}: {result.model}, tasks of {conditions.tasks}, up to {conditions.repairs} repairs, "
        f"tools {conditions.tools}",
        *aligned([head, *rows], right=_RIGHT),
        "",
        *(["p: predicted, not measured"] if any(map(_predicted, result.tasks)) else []),
        *_total_lines(totals_of(result.tasks)),
        *(f"{one.name} is not right: {one.outcome}" for one in result.tasks if not one.right),
    ]


def comparison_lines(results: Sequence[BenchResult]) -> list[str]:
    """A row for each bench. Benches under other conditions than the first one are marked."""
    head = ("model", "date", "first", "right", "over schedule", "over AutoTuning", "tokens", "cost", "seconds")
    rows, other = [], False
    for one in results:
        differs = one.conditions != results[0].conditions or _names(one) != _names(results[0])
        other = other or differs
        rows.append(_compared(one, "*" if differs else ""))
    notes = ["*: other tasks, options or version than the first row: do not compare"] if other else []
    return [*aligned([head, *rows], right=_RIGHT), *notes, "Ratios are geometric means; above 1 the model is faster."]


def _names(result: BenchResult) -> list[str]:
    return [one.name for one in result.tasks]


def _row(one: TaskFigures) -> tuple[str, ...]:
    task = one.task
    right = "at first" if one.first else f"reply {one.replies}" if one.right else "no"
    return (
        one.name,
        f"{task.shape} {task.layout} {task.accumulate}" + ("" if task.arch is Arch.SM_90A else f" {task.arch}"),
        right,
        _time(one.time),
        _time(one.yardstick.schedule),
        cell(one.over_schedule, ".2f", "x"),
        _tokens(one),
        _cost(one.cost),
        f"{one.seconds:.0f}",
    )


def _time(reached: Reached | None) -> str:
    """A time; a predicted one is marked with `p`."""
    if reached is None:
        return NONE
    return f"{reached.us:.2f}" if reached.basis == "measured" else f"{reached.us:.2f} p"


def _predicted(one: TaskFigures) -> bool:
    return any(time is not None and time.basis == "predicted" for time in (one.time, one.yardstick.schedule))


def _tokens(one: TaskFigures | BenchTotals) -> str:
    return f"{'~' if one.estimated else ''}{one.prompt_tokens + one.reply_tokens:,}"


def _cost(cost: float) -> str:
    return cell(cost or None, ".4g")


def _total_lines(totals: BenchTotals) -> list[str]:
    calls = f", {totals.tool_calls} tool calls" if totals.tool_calls else ""
    lines = [f"right at first {totals.first} of {totals.tasks}, after repair {totals.right} of {totals.tasks}"]
    lines += [f"over the schedule policy: {_ratios(totals)}"] if totals.measured or totals.predicted else []
    if totals.over_autotuning is not None:
        lines.append(f"over cuBLASLt-AutoTuning: {totals.over_autotuning:.3f}x of {totals.compared} tasks")
    cost = f", cost {totals.cost:.4g}" if totals.cost else ""
    return [*lines, f"{_tokens(totals)} tokens{cost}{calls}; {totals.seconds:.0f} s of waiting for replies"]


def _ratios(totals: BenchTotals) -> str:
    """The means over measured and over predicted times, which are never mixed."""
    measured, predicted = totals.over_schedule_measured, totals.over_schedule_predicted
    said = [f"{measured:.3f}x measured ({totals.measured} tasks)"] if measured is not None else []
    said += [f"{predicted:.3f}x predicted ({totals.predicted} tasks)"] if predicted is not None else []
    return ", ".join(said)


def _compared(one: BenchResult, mark: str) -> tuple[str, ...]:
    totals = totals_of(one.tasks)
    return (
        f"{one.model}{mark}",
        f"{one.finished_at:%Y-%m-%d}",
        f"{totals.first}/{totals.tasks}",
        f"{totals.right}/{totals.tasks}",
        _ratios(totals) or NONE,
        cell(totals.over_autotuning, ".3f", "x"),
        _tokens(totals),
        _cost(totals.cost),
        f"{totals.seconds:.0f}",
    )
