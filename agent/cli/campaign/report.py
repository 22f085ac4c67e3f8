"""`cudal2-agent campaign report`: the results of campaigns as one HTML page."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.campaign.shapes import held_out_shapes
from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.campaign.run import CountedEnvironment
from cudal2_agent.contract.errors import UsageError

if TYPE_CHECKING:
    from cudal2_agent.contract.records.campaign import ShapeResult
    from cudal2_agent.contract.records.trajectory import Step
    from cudal2_agent.store.store import Store

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent campaign report --name main\n"
    "  cudal2-agent campaign report benchmarks/campaigns/rows --held-out benchmarks/campaigns/held_out.json"
)


def report(
    results: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of rows (*.jsonl.gz) or folders of them.", show_default="the store's results"),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Campaigns; default: all. May be repeated.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("campaign.html"),
    rows_out: Annotated[
        Path | None, typer.Option("--rows", help="A file to write the rows to (*.jsonl.gz).", show_default=False)
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            "--held-out",
            help="JSON: a list of shapes that nothing was tuned on, or lists grid and off_grid.",
            show_default=False,
        ),
    ] = None,
    environment: CountedEnvironment = None,
    as_json: AsJson = False,
) -> None:
    """Write campaign results as one HTML page that works offline. Samples and counters come from the store, if it has them."""
    from cudal2_agent.agent.campaign.module_figures import latest_modules
    from cudal2_agent.agent.campaign.report.page import build_page
    from cudal2_agent.agent.campaign.result_files import counting, read_rows, write_results
    from cudal2_agent.contract.records.campaign import ShapeResult
    from cudal2_agent.contract.records.module_campaign import ModuleResult
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.contract.whole_file import whole_file
    from cudal2_agent.store.campaign_results import ResultFilter
    from cudal2_agent.store.store import open_store

    if results and name:
        raise UsageError("--name chooses campaigns of the store; give either files of rows or --name")
    with open_store(load_settings().store_url) as store:
        wanted = ResultFilter(campaigns=tuple(name or ()))
        told = read_rows(results) if results else [*store.results(wanted), *store.modules(wanted)]
        found = [row for row in told if isinstance(row, ShapeResult)]
        modules = latest_modules(
            row for row in told if isinstance(row, ModuleResult) and environment in (None, row.environment)
        )
        if name and not told:
            raise UsageError(f"campaign {' or '.join(map(repr, name))} has no result; see `cudal2-agent campaign status`")
        rows = counting(found, environment) if found or not modules else []
        if rows_out is not None:
            with _writing(rows_out):
                write_results(rows_out, [*rows, *modules])
        page = build_page(rows, held_out_shapes(held_out), _winning_steps(rows, store), modules)
    with _writing(out), whole_file(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print(json.dumps({"out": str(out), "results": len(rows) + len(modules)}) if as_json else out)


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Raises: UsageError."""
    try:
        yield
    except OSError as exc:
        raise UsageError(f"{file} cannot be written: {exc}; name a file in a folder that exists") from exc


def _winning_steps(rows: "Sequence[ShapeResult]", store: "Store") -> "Iterator[Step]":
    """The steps of the rows' winners that the store holds."""
    known = {run.run_id for run in store.runs()}
    for row in rows:
        if row.best is not None and row.run_id is not None and row.run_id in known:
            yield from (step for step in store.steps(row.run_id) if step.index == row.best.step_index)
