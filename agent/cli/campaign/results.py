"""`cudal2-agent campaign results` and `import`: rows that leave for another machine, and rows that come from one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson

if TYPE_CHECKING:
    from cudal2_agent.contract.records.campaign import ShapeResult

RESULTS_EXAMPLE = (
    "\b\nExample:\n  cudal2-agent campaign results --name small\n"
    "  cudal2-agent campaign results --mode offline --out offline.jsonl.gz"
)
IMPORT_EXAMPLE = "\b\nExample:\n  cudal2-agent campaign import offline.jsonl.gz server.jsonl.gz --name main"


def results(
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Campaigns; default: all. May be repeated.", show_default=False)
    ] = None,
    mode: Annotated[str | None, typer.Option("--mode", help="offline or server; default: both.", show_default=False)] = None,
    layout: Annotated[str | None, typer.Option("--layout", help="nn, tn or nt; default: all.", show_default=False)] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", help="Key of an environment; default: all.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write rows for `campaign import`; .gz packs them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The row of each shape: the best kernel with and without programmatic launch, over cuBLASLt-AutoTuning.

    Of each module: the best plan, over the fastest baseline of PyTorch.
    """
    from cudal2_agent.agent.campaign.result_files import write_results
    from cudal2_agent.agent.cli.arguments import choice
    from cudal2_agent.agent.cli.render.campaign_table import module_line
    from cudal2_agent.contract.records.task import Layout, TimingMode
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.campaign_results import ResultFilter, read_modules, read_results
    from cudal2_agent.store.store import open_store

    wanted = ResultFilter(
        campaigns=tuple(name or ()),
        modes=(choice("--mode", TimingMode, mode),) if mode else (),
        layouts=(choice("--layout", Layout, layout),) if layout else (),
        environments=(environment,) if environment else (),
    )
    with open_store(load_settings().store_url) as store, store.reading() as (connection, _):
        rows = [one.result for one in read_results(connection, wanted)]
        modules = [one.result for one in read_modules(connection, wanted)]
    if out is not None:
        print(f"{write_results(out, [*rows, *modules]):,} rows in {out}")
    elif as_json:
        print("".join(f"{row.model_dump_json()}\n" for row in [*rows, *modules]), end="")
    else:
        print("\n".join([*(_lines(rows) if rows or not modules else []), *map(module_line, modules)]))


def _lines(rows: "list[ShapeResult]") -> list[str]:
    from cudal2_agent.agent.cli.render.alignment import aligned, cell
    from cudal2_agent.contract.records.evaluation import AUTOTUNED

    if not rows:
        return ["there is no result yet; `cudal2-agent campaign run` finds some"]
    lines = [("shape", "layout", "mode", "AutoTuning", "ours", "speedup", "without", "witness")]
    for row in rows:
        lines.append(
            (
                row.task.shape,
                row.task.layout.value,
                row.task.mode.value,
                cell(row.baselines_us.get(AUTOTUNED), unit=" us"),
                cell(row.best.time_us if row.best else None, unit=" us"),
                cell(row.best.speedup.ratio if row.best else None, ".3f", "x"),
                cell(row.best_without.speedup.ratio if row.best_without else None, ".3f", "x"),
                row.witness or ("not proved" if row.best else row.reason),
            )
        )
    return aligned(lines, right=frozenset((3, 4, 5, 6)), flexible=7)


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Rows of `campaign results --out`, or folders of them.", show_default=False),
    ],
    name: Annotated[str, typer.Option("--name", help="Campaign to add them to.")] = "main",
    as_json: AsJson = False,
) -> None:
    """Add results of another machine. Their shapes count as done, so that the campaign continues with the others here.

    Where one file cannot be read, nothing is added.
    """
    from cudal2_agent.agent.campaign.result_files import import_results
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.store import open_store

    with open_store(load_settings().store_url) as store:
        new, total = import_results(store, files, name)
    print(json.dumps({"new": new, "rows": total}) if as_json else f"{new:,} of {total:,} rows are new")
