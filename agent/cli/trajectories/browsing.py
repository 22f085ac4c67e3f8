"""`cudal2-agent trajectories list` and `show`."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.runs import RunId
from cudal2_agent.agent.cli.trajectories.selecting import filtered, filtered_steps, find_run, opened

if TYPE_CHECKING:
    from cudal2_agent.contract.records.trajectory import Step, Trajectory
    from cudal2_agent.store.filters import StepFilter
    from cudal2_agent.store.statistics import RunRow

LIST_EXAMPLE = "\b\nExample:\n  cudal2-agent trajectories list --arch sm_90a --min-speedup 1.05 --since 7d"
SHOW_EXAMPLE = (
    "\b\nExample:\n  cudal2-agent trajectories show 4096x1024x512-20261121-130401-ab12"
    "\n  cudal2-agent trajectories show 4096x1024x512-20261121 --step 12 --source"
)
TERMINAL_ROWS = 40


@filtered
def list_trajectories(
    selected: "StepFilter",
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=0, metavar="N", help="The newest N runs; 0 for all.", show_default="40 on a terminal"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The runs with a selected step, newest last: steps, measured ones, best speedup over AutoTuning, policy, chip, status."""
    from cudal2_agent.store.statistics import run_count, run_rows

    most = _limit(limit, as_json)
    with opened(selected) as (store, wanted):
        rows = run_rows(store, wanted, most)
        if as_json:
            print_records(rows)
            return
        lines = _run_lines(list(rows))
        more = run_count(store, wanted) - len(lines) if most is not None and len(lines) == most else 0
    if more:
        print(f"{more:,} older runs are not shown; --limit 0 shows all", file=sys.stderr)
    print("".join(f"{line}\n" for line in lines), end="")


def _limit(given: int | None, as_json: bool) -> int | None:
    """The number of rows, None for all. Without the option, only a terminal has a limit."""
    if given is None:
        return TERMINAL_ROWS if sys.stdout.isatty() and not as_json else None
    return given or None


def print_records(rows: "Iterable[RunRow]") -> None:
    """A JSON array that is printed as its rows come."""
    begin = "["
    for row in rows:
        print(begin + json.dumps(row._asdict()), end="")
        begin = ",\n"
    print("[]" if begin == "[" else "]")


def _run_lines(rows: "Sequence[RunRow]") -> list[str]:
    from cudal2_agent.agent.cli.render.alignment import aligned, cell

    cells = [
        (
            row.run_id,
            f"{row.steps:,} steps",
            f"{row.measured:,} measured",
            cell(row.speedup, ".3f", "x"),
            row.policy,
            row.chip,
            row.status,
        )
        for row in rows
    ]
    return aligned(cells, right=frozenset({1, 2, 3}))


@filtered_steps
def show(
    run_id: RunId,
    selected: "StepFilter",
    step: Annotated[int | None, typer.Option("--step", min=0, help="Only the step of this index, in full.")] = None,
    source: Annotated[bool, typer.Option("--source", help="With --step: also the source of its candidate.")] = False,
    as_json: AsJson = False,
) -> None:
    """The selected steps of one run, one line each, with all axes of their schedules; then where it was measured, and its best.

    RUN may be the beginning of an id.
    """
    from cudal2_agent.contract.errors import UsageError

    if source and step is None:
        raise UsageError("--source shows the source of one step; name it with --step")
    with opened(selected) as (store, wanted):
        whole = find_run(store, run_id)
        if step is not None:
            _show_step(next((one for one in store.steps(whole) if one.index == step), None), whole, step, source, as_json)
            return
        own = wanted.model_copy(update={"runs": (whole,)})
        found = next(iter(store.trajectories(own)), None)
        if found is None:
            found = store.trajectory(whole).model_copy(update={"steps": (), "observations": {}})
    print(found.model_dump_json() if as_json else "\n".join(_trajectory_lines(found)))


def _trajectory_lines(trajectory: "Trajectory") -> list[str]:
    from cudal2_agent.agent.observe.ranking import leading_step
    from cudal2_agent.agent.report.one_line import result_of
    from cudal2_agent.contract.records.evaluation import Measured

    lines = []
    for step in trajectory.steps:
        earned = f"{step.reward:+.3f}" if step.reward is not None else "   –  "
        lines.append(f"{step.index:>4}  round {step.round:<3} {earned}  {step.candidate.label}  {result_of(step.evaluation)}")
    run, steps = trajectory.run, trajectory.steps
    measured = [step.evaluation for step in steps if isinstance(step.evaluation, Measured)]
    keys = sorted({evaluation.environment.key for evaluation in measured})
    best = leading_step(steps, run.task, run.chip)
    lines.append(f"run: {run.run_id}, {run.policy}, {run.status}, {len(steps)} steps")
    lines += [f"environment: {key}" for key in keys] or ["environment: nothing was measured"]
    lines.append(f"best: step {best.index}, {result_of(best.evaluation)}" if best else "best: none")
    return lines


def _show_step(step: "Step | None", run_id: str, index: int, source: bool, as_json: bool) -> None:
    from cudal2_agent.agent.cli.render.run_answer import step_lines
    from cudal2_agent.contract.errors import UsageError

    if step is None:
        raise UsageError(f"run {run_id} has no step {index}; `cudal2-agent trajectories show {run_id}` lists its steps")
    print(step.model_dump_json() if as_json else "\n".join(step_lines(step, source=source)))
