"""`cudal2-agent library build`."""

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli.arguments import AsJson

if TYPE_CHECKING:
    from agent.library.entry_choice import EntryChoice

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent library build --out h200\n"
    "  cudal2-agent library build --rows offline.jsonl.gz --out h200.jsonl.gz"
)
SHOWN = 3


def build(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER|FILE", help="A folder, or a packed file *.jsonl.gz.")],
    rows: Annotated[
        list[Path] | None,
        typer.Option(
            "--rows", metavar="FILE", help="Rows of `campaign results --out`; default: the store.", show_default=False
        ),
    ] = None,
    from_store: Annotated[
        bool, typer.Option("--from-store", help="Use the store's campaigns and finished runs, which is the default.")
    ] = False,
    chip: Annotated[
        str | None, typer.Option("--chip", help="Chip of the measurements; default: the only one.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the library; default: that of the chip.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also kernels that do not beat AutoTuning.")] = False,
    without: Annotated[
        Path | None,
        typer.Option(
            "--without",
            metavar="FILE",
            help="Products that get no entry, one per line, such as `512x4096x64 nn`.",
            show_default=False,
        ),
    ] = None,
    cubins: Annotated[bool, typer.Option("--cubins", help="Add built kernels, for machines without a compiler.")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Compilers at a time.", min=1, show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Make a library of the kernels that beat cuBLASLt-AutoTuning with plain launches. The same input gives the same bytes.

    Of several kernels for a task, the one with the highest lower bound of its interval is taken.
    """
    from agent.library.library_building import BuildOptions, build_from_rows, build_from_store, read_products
    from contract.errors import UsageError
    from contract.settings import load_settings

    if rows and from_store:
        raise UsageError("--rows and --from-store exclude each other; name one")
    settings = load_settings(compile_jobs=jobs)
    excluded = read_products(without) if without else frozenset()
    options = BuildOptions(chip=chip, name=name, winning_only=not every, cubins=cubins, without=excluded)
    manifest, choice = build_from_rows(rows, out, options, settings) if rows else build_from_store(out, options, settings)
    if as_json:
        print(json.dumps({"library": str(out), **manifest.model_dump(mode="json"), "left_out": _left_out(choice)}))
        return
    print(f"{len(choice.entries):,} entries for {manifest.chip} in {out}")
    for reason, shapes in sorted(_by_reason(choice).items()):
        more = f" and {len(shapes) - SHOWN:,} more" if len(shapes) > SHOWN else ""
        print(f"left out: {len(shapes):,} tasks, {reason}: {', '.join(shapes[:SHOWN])}{more}")


def _left_out(choice: "EntryChoice") -> list[dict[str, object]]:
    return [{"task": one.task.model_dump(mode="json"), "reason": one.reason, "detail": one.detail} for one in choice.left_out]


def _by_reason(choice: "EntryChoice") -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for one in choice.left_out:
        found[one.reason].append(one.task.shape)
    return found
