"""`cudal2-agent trajectories export`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer

@app.command("export", epilog="\b\nExample:\n  cudal2-agent trajectories export --out steps.jsonl")
def export(
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs to export; default: all.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: stdout.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --out: print the summary as JSON.")] = False,
) -> None:
    """JSON lines, one per step: task, observation, candidate, evaluation, reward (docs/trajectories.md)."""
    from contract.settings import load_settings
    from policies.trajectories.export import export_steps, to_line
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
