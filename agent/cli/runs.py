"""`cudal2-agent runs`: list the runs, show one, continue one."""

import json
from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson, Device

app = typer.Typer(
    help="The runs in the store.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="\b\nExample:\n  cudal2-agent runs list",
)
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, as `runs list` shows it.", show_default=False)]


@app.command("list", epilog="\b\nExample:\n  cudal2-agent runs list --json")
def list_runs(as_json: AsJson = False) -> None:
    """The runs, oldest first."""
    from cudal2_agent.agent.cli.render.alignment import aligned
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.filters import ALL_STEPS
    from cudal2_agent.store.statistics import run_rows
    from cudal2_agent.store.store import open_store

    with open_store(load_settings().store_url) as store:
        if as_json:
            runs, counts = store.runs(), store.step_counts()
            print(json.dumps([{**run.model_dump(mode="json"), "steps": counts.get(run.run_id, 0)} for run in runs]))
            return
        rows = list(run_rows(store, ALL_STEPS, empty=True))
    cells = [(row.run_id, row.status, f"{row.steps:,} steps", row.arch, row.chip) for row in rows]
    print("".join(f"{line}\n" for line in aligned(cells, right=frozenset({2}))), end="")


@app.command("show", epilog="\b\nExample:\n  cudal2-agent runs show 4096x1024x512-20261121-130401-ab12 --why")
def show(
    run_id: RunId,
    why: Annotated[bool, typer.Option("--why", help="Each improvement, and what its author saw.")] = False,
    as_json: AsJson = False,
) -> None:
    """One run: its state, its chip, its best kernel with all axes, and the folder of its files."""
    from cudal2_agent.agent.cli.render.run_answer import best_json, best_lines, lead_json
    from cudal2_agent.agent.observe.ranking import leading_step
    from cudal2_agent.agent.report.lead import lead_of
    from cudal2_agent.agent.report.why import explain
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.store import open_store

    with open_store(load_settings().store_url) as store:
        run, steps = store.run(run_id), store.steps(run_id)
        explained = explain(store.trajectory(run_id)) if why else None
    best, lead = leading_step(steps, run.task, run.chip), lead_of(steps, run.task, run.chip)
    if as_json:
        found = {"best": best_json(best) if best else None, **lead_json(lead)}
        answer = {**run.model_dump(mode="json"), "steps": len(steps), **found}
        print(json.dumps({**answer, "why": explained.as_json()} if explained else answer))
        return
    print(f"run: {run.run_id}, {run.status}, {len(steps)} steps\nchip: {run.chip.name} ({run.task.arch})\nfiles: {run.out}")
    print("\n".join([*best_lines(best, lead), *(explained.lines() if explained else [])]))


@app.command("resume", epilog="\b\nExample:\n  cudal2-agent runs resume 4096x1024x512-20261121-130401-ab12 --minutes 10")
def resume(
    run_id: RunId,
    budget: Annotated[
        int | None,
        typer.Option("--budget", help="Maximum number of candidates, including those so far.", show_default="the run's"),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", help="Wall-clock limit in minutes, including the time so far.", show_default="the run's"),
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run that was interrupted or killed. No finished step is lost or repeated."""
    from cudal2_agent.agent.cli.session import resume_by_id

    raise typer.Exit(resume_by_id(run_id, as_json=as_json, budget=budget, minutes=minutes, device=device))
