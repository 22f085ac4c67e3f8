"""`cudal2-agent trajectories`: the attempts as training data."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer

from agent.cli.arguments import AsJson
from agent.cli.runs import RunId

app = typer.Typer(
    help="Every attempt, with what the policy saw.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="\b\nExample:\n  cudal2-agent trajectories export --out steps.jsonl",
)


@app.command("list", epilog="\b\nExample:\n  cudal2-agent trajectories list --json")
def list_trajectories(as_json: AsJson = False) -> None:
    """The trajectories that have steps, oldest first: task, number of steps, best reward."""
    from contract.settings import load_settings
    from policies.trajectories.store import open_store

    with open_store(load_settings().store_url) as store:
        counts = store.step_counts()
        rows = [(run, counts[run.run_id]) for run in store.runs() if run.run_id in counts]
    if as_json:
        listed = [{"run_id": run.run_id, "task": run.task.model_dump(mode="json"), "steps": count} for run, count in rows]
        print(json.dumps(listed))
        return
    for run, count in rows:
        task = f"{run.task.arch} {run.task.layout} {run.task.element}"
        print(f"{run.run_id}  {count:>4} steps  {run.policy}  seed {run.seed}  {task}")


@app.command("show", epilog="\b\nExample:\n  cudal2-agent trajectories show 4096x1024x512-20261121-130401-ab12")
def show(run_id: RunId, as_json: AsJson = False) -> None:
    """The steps of one run, one line each, with all axes of their schedules."""
    from agent.report.one_line import result_of
    from contract.settings import load_settings
    from policies.trajectories.store import open_store

    with open_store(load_settings().store_url) as store:
        trajectory = store.trajectory(run_id)
    if as_json:
        print(trajectory.model_dump_json())
        return
    for step in trajectory.steps:
        earned = f"{step.reward:+.3f}" if step.reward is not None else "   –  "
        print(f"{step.index:>4}  round {step.round:<3} {earned}  {step.candidate.label}  {result_of(step.evaluation)}")


@app.command("export", epilog="\b\nExample:\n  cudal2-agent trajectories export --out steps.jsonl")
def export(
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs to export; default: all.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: stdout.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --out: print the summary as JSON.")] = False,
) -> None:
    """JSON lines, one per step: task, observation, candidate, evaluation, reward (docs/trajectories.md)."""
    from contract.settings import load_settings
    from policies.trajectories.exports.steps import export_steps, to_line
    from policies.trajectories.store import open_store

    count = 0
    with open_store(load_settings().store_url) as store, _target(out) as file:
        for run_id in run_ids or [run.run_id for run in store.runs()]:
            for step in export_steps(store.trajectory(run_id)):
                file.write(to_line(step) + "\n")
                count += 1
    if out is not None:
        print(json.dumps({"out": str(out), "steps": count}) if as_json else f"{count} steps written to {out}")


@contextmanager
def _target(out: Path | None) -> Iterator[IO[str]]:
    """stdout, or a file that appears once all lines are written. Raises: UsageError."""
    from agent.report.output import replacing
    from contract.errors import UsageError

    if out is None:
        yield sys.stdout
        return
    try:
        with replacing(out) as file:
            yield file
    except OSError as exc:
        raise UsageError(f"{out} cannot be written ({exc.strerror}); choose another file with --out") from exc
