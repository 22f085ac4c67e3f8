"""One run from the command line: opens the parts, runs the graph, writes the output and prints the answer."""

from pathlib import Path

from cudal2_agent.agent.cli.render.progress import Progress
from cudal2_agent.agent.cli.render.run_answer import print_outcome, unsound
from cudal2_agent.agent.report.output import reserve, write_output
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import check_resumable, name_run, resume_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.wiring.parts import open_dependencies
from cudal2_agent.agent.wiring.policy import chat_limits, with_policy_of
from cudal2_agent.agent.wiring.schedule_prior import with_budget
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Notice
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.trajectory import RunRecord
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.store.store import open_store

NO_KERNEL = 1
UNASKED = "; with --policy schedule, or fusion for a module, no model is asked"
INTERRUPTED = 130


def optimize_task(task: Task, settings: Settings, out: Path | None, *, as_json: bool) -> int:
    """Start a new run and return the exit code. Wrong input fails before any work."""
    chosen = with_policy_of(settings, task, may_ask=True)
    unasked, settings = chosen is not settings, chosen
    if out is not None:
        reserve(out.absolute())
    run_id = name_run(task)
    folder = out.absolute() if out else settings.runs_dir / run_id
    with (
        Progress() as progress,
        open_store(settings.store_url) as store,
        open_dependencies(task, settings, store, run_id, progress.emit) as parts,
    ):
        settings = with_budget(settings, task, parts.sandbox.chip, measures=parts.sandbox.can_measure)
        reserve(folder)
        limits = chat_limits(settings)
        for line in (*([limits + (UNASKED if unasked else "")] if limits else []), *unsound(task)):
            progress.emit(Notice(message=line))
        outcome = start_run(run_id, task, settings, parts, progress.emit, folder)
        return _conclude(outcome, parts, as_json)


def replay_by_id(run_id: str, out: Path | None, *, as_json: bool, **flags: str | int | float | None) -> int:
    """Start a run with the task, settings and recorded replies of an earlier one. Returns the exit code."""
    given = {name: value for name, value in flags.items() if value is not None}
    with open_store(load_settings().store_url) as store:
        run, exchanges = store.run(run_id), store.exchanges(run_id)
    if not exchanges:
        raise UsageError(f"run {run_id} asked no chat server, so that nothing can be replayed; start a new run with --shape")
    settings = load_settings(**run.settings.replayed() | given | {"replay": run_id})
    return optimize_task(run.task, settings, out, as_json=as_json)


def resume_by_id(run_id: str, *, as_json: bool, **flags: str | int | float | None) -> int:
    """Continue a run under its own settings, except those that a flag changes. Returns the exit code."""
    given = {name: value for name, value in flags.items() if value is not None}
    with Progress() as progress, open_store(load_settings().store_url) as store:
        run = store.run(run_id)
        check_resumable(run)
        settings = load_settings(**run.settings.replayed() | given)
        reserve(folder_of(run))
        with open_dependencies(run.task, settings, store, run.run_id, progress.emit) as parts:
            return _conclude(resume_run(run, settings, parts, progress.emit), parts, as_json)


def _conclude(outcome: RunResult, parts: Dependencies, as_json: bool) -> int:
    folder = write_outcome(outcome, parts)
    print_outcome(outcome, folder, as_json)
    if outcome.run.status == "interrupted":
        return INTERRUPTED
    return 0 if outcome.best is not None else NO_KERNEL


def write_outcome(outcome: RunResult, parts: Dependencies) -> Path:
    """Write what a run has come to into its folder, which is returned."""
    built = None
    if outcome.best is not None:  # from the compile cache
        [(_, result)] = parts.sandbox.build([outcome.best.candidate], outcome.run.task)
        built = result if isinstance(result, Built) else None
    folder = folder_of(outcome.run)
    artifact = parts.sandbox.artifact(built) if built is not None else None
    write_output(folder, outcome, built, artifact)
    return folder


def folder_of(run: RunRecord) -> Path:
    return Path(run.out or run.settings.runs_dir / run.run_id)
