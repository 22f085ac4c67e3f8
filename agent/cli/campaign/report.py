"""`cudal2-agent campaign report`: the results of campaigns as one HTML page."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contract.errors import UsageError

if TYPE_CHECKING:
    from contract.campaign import ShapeResult
    from contract.trajectory import Step

EXAMPLE = "\b\nExample:\n  cudal2-agent campaign report benchmarks/h200/rows --held-out benchmarks/h200/held_out.json"


def report(
    results: Annotated[
        list[Path], typer.Argument(help="Files of rows (*.jsonl.gz) or folders of them.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("campaign.html"),
    held_out: Annotated[
        Path | None,
        typer.Option("--held-out", help="JSON with lists of shapes that nothing was tuned on.", show_default=False),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option("--environment", help="Whose rows count, where they come from several.", show_default=False),
    ] = None,
) -> None:
    """Write one HTML page of campaign results, which works offline. Samples and counters come from the store, if it has them."""
    from agent.campaign_report.page import build_page
    from agent.campaign_report.result_file import counting, read_results
    from contract.whole_file import whole_file

    rows = counting(read_results(results), environment)
    page = build_page(rows, _held_out(held_out), _winning_steps(rows))
    try:
        with whole_file(out) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"{out} cannot be written: {exc}") from exc
    print(out)


def _held_out(file: Path | None) -> list[str]:
    """All shapes in the lists of a JSON object, or in a JSON list. Raises: UsageError."""
    if file is None:
        return []
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{file} cannot be read as JSON: {exc}") from exc
    lists = list(told.values()) if isinstance(told, dict) else [told]
    return [shape for each in lists if isinstance(each, list) for shape in each if isinstance(shape, str)]


def _winning_steps(rows: "list[ShapeResult]") -> "list[Step]":
    """The steps of the rows' winners that the store holds."""
    from contract.settings import load_settings
    from policies.trajectories.store import open_store

    steps = []
    with open_store(load_settings().store_url) as store:
        known = {run.run_id for run in store.runs()}
        for row in rows:
            if row.best is not None and row.run_id in known:
                assert row.run_id is not None
                steps += [step for step in store.steps(row.run_id) if step.index == row.best.step_index]
    return steps
