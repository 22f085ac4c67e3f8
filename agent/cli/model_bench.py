"""`cudal2-agent model-bench`: how well a language model writes kernels, on ten fixed tasks."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cudal2_agent.agent.cli.arguments import AsJson, Device, NoKnowledge
from cudal2_agent.agent.cli.optimize import BaseUrl, ChatTools, Model, Money, Tokens
from cudal2_agent.contract.errors import UsageError

if TYPE_CHECKING:
    from cudal2_agent.agent.bench.models.bench_figures import BenchResult

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent model-bench --model MODEL --base-url http://127.0.0.1:8000/v1\n"
    "  cudal2-agent model-bench --compare mine.jsonl theirs.jsonl"
)
DEFAULT_REPAIRS, DEFAULT_MINUTES = 2, 30.0


def model_bench(
    files: Annotated[list[Path] | None, typer.Argument(help="With --compare: files of results.", show_default=False)] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Compare the results in FILES; run nothing.")] = False,
    model: Model = None,
    base_url: BaseUrl = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Some of the tasks by name, with commas.", show_default="all ten")
    ] = None,
    repairs: Annotated[
        int, typer.Option("--repairs", min=0, max=20, help="Replies after the first one, while none is right.")
    ] = DEFAULT_REPAIRS,
    minutes: Annotated[float, typer.Option("--minutes", help="Wall-clock limit of one task in minutes.")] = DEFAULT_MINUTES,
    device: Device = None,
    no_knowledge: NoKnowledge = False,
    chat_tools: ChatTools = None,
    tokens: Tokens = None,
    money: Money = None,
    results: Annotated[
        Path | None,
        typer.Option("--results", help="File to which the result is added.", show_default="model-bench.jsonl at home"),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option("--replay", metavar="BENCH", help="Repeat a bench with its recorded replies.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare models: share of right kernels, their times, tokens and cost. The same command continues a killed bench."""
    if compare:
        _compare(files or [], as_json)
        return
    if files:
        raise UsageError("FILES are for --compare; to run a bench, leave them out")
    flags = {"device": device, "use_knowledge": False if no_knowledge else None, "minutes": minutes, "model": model}
    flags |= {"base_url": base_url, "tokens": tokens, "money": money, "chat_tools": chat_tools}
    names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    _print([_run(flags, names, repairs, results, replay)], as_json)


def _run(flags: dict[str, Any], names: list[str], repairs: int, results: Path | None, replay: str | None) -> "BenchResult":
    """Run a bench, or what a killed one left of it, and add its result to the file."""
    from cudal2_agent.agent.bench.models.bench_figures import RESULTS, BenchResult
    from cudal2_agent.agent.bench.models.bench_runs import (
        BenchPlan,
        BenchRuns,
        bench_name,
        bench_settings,
        conditions_of,
        recorded_settings,
    )
    from cudal2_agent.agent.bench.models.bench_tasks import choose_tasks
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.store import open_store

    chosen, settings = choose_tasks(names), load_settings(**flags)
    file = results or settings.home / "model-bench.jsonl"
    before, notices = RESULTS.read([file] if file.exists() else [])
    _tell(notices)
    with Progress() as progress, open_store(settings.store_url) as store:
        if replay:
            given = {name: value for name, value in flags.items() if value is not None}
            settings = load_settings(**recorded_settings(replay, chosen, store).replayed() | given)
        settings = bench_settings(settings, repairs)
        conditions = conditions_of(settings, repairs)
        plan = BenchPlan(bench_name(settings, conditions, replay, [one.name for one in before]), chosen, repairs, replay)
        figures = tuple(BenchRuns(plan, settings, store, progress.emit).figures())
    now = datetime.now(UTC)
    result = BenchResult(name=plan.name, model=settings.chat.model, conditions=conditions, finished_at=now, tasks=figures)
    RESULTS.append(file, result)
    return result


def _compare(files: list[Path], as_json: bool) -> None:
    """Raises: UsageError without a file or for one without a result."""
    from cudal2_agent.agent.bench.models.bench_figures import RESULTS

    found, notices = RESULTS.read(files)
    _tell(notices)
    if not found:
        raise UsageError("--compare needs files of results, as model-bench writes them")
    _print(found, as_json, together=True)


def _tell(notices: list[str]) -> None:
    for notice in notices:
        print(f"note: {notice}", file=sys.stderr)


def _print(results: "list[BenchResult]", as_json: bool, *, together: bool = False) -> None:
    from cudal2_agent.agent.bench.models.bench_figures import totals_of
    from cudal2_agent.agent.cli.render.model_bench_table import bench_lines, comparison_lines

    if as_json:
        rows = [one.model_dump(mode="json") | {"totals": totals_of(one.tasks).model_dump(mode="json")} for one in results]
        print(json.dumps({"benches": rows}))
        return
    lines = comparison_lines(results) if together else [line for one in results for line in bench_lines(one)]
    print("\n".join(lines))
