"""`cudal2-agent library build`."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.library.library_source import WrittenLibrary

if TYPE_CHECKING:
    from cudal2_agent.agent.library.entry_choice import LeftOut

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent library build --out h200\n"
    "  cudal2-agent library build --rows offline.jsonl.gz --out h200.jsonl.gz"
)
SHOWN = 3


def build(
    out: WrittenLibrary,
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
            help="Products that get no entry, one per line, such as `512x4096x64 nn` or `512x4096x64 nn bf16`.",
            show_default=False,
        ),
    ] = None,
    tuned: Annotated[
        list[Path] | None,
        typer.Option(
            "--tuned", metavar="FILE", help="Rows of `library tune`, which count before campaigns.", show_default=False
        ),
    ] = None,
    cubins: Annotated[bool, typer.Option("--cubins", help="Add built kernels, for machines without a compiler.")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Compilers at a time.", min=1, show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Make a library of the kernels that beat cuBLASLt-AutoTuning with plain launches. The same input gives the same bytes.

    Of several kernels for a task, the one with the highest lower bound of its interval is taken. A task without such a kernel
    gets the algorithm that AutoTuning chose, where a program can run it and it was faster than PyTorch's product.
    """
    from cudal2_agent.agent.library.library_building import BuildOptions, build_from_rows, build_from_store, read_products
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.settings.settings import load_settings

    if rows and from_store:
        raise UsageError("--rows and --from-store exclude each other; name one")
    settings = load_settings(compile_jobs=jobs)
    excluded = read_products(without) if without else frozenset()
    options = BuildOptions(
        chip=chip, name=name, winning_only=not every, cubins=cubins, without=excluded, tuned=tuple(tuned or ())
    )
    built = build_from_rows(rows, out, options, settings) if rows else build_from_store(out, options, settings)
    kernels, algorithms = built.kernels.left_out, built.algorithms.left_out
    if as_json:
        left_out = {"left_out": _left_out(kernels), "algorithms_left_out": _left_out(algorithms)}
        print(json.dumps({"library": str(out), **built.manifest.model_dump(mode="json"), **left_out}))
        return
    stored = f" and {len(built.algorithms.algorithms):,} algorithms of cuBLASLt" if built.algorithms.algorithms else ""
    print(f"{len(built.kernels.entries):,} entries{stored} for {built.manifest.chip} in {out}")
    print("".join(f"left out: {told}\n" for told in _by_reason(kernels)), end="")
    print("".join(f"no algorithm: {told}\n" for told in _by_reason(algorithms)), end="")


def _left_out(tasks: "Sequence[LeftOut]") -> list[dict[str, object]]:
    return [{"task": one.task.model_dump(mode="json"), "reason": one.reason, "detail": one.detail} for one in tasks]


def _by_reason(tasks: "Sequence[LeftOut]") -> list[str]:
    """A line for each reason: how many tasks, the reason, the first of them."""
    found = defaultdict[str, list[str]](list)
    for one in tasks:
        found[one.reason].append(one.task.shape)
    lines = []
    for reason, shapes in sorted(found.items()):
        more = f" and {len(shapes) - SHOWN:,} more" if len(shapes) > SHOWN else ""
        lines.append(f"{len(shapes):,} tasks, {reason}: {', '.join(shapes[:SHOWN])}{more}")
    return lines
