"""`cudal2-agent library list`."""

from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.library.library_source import LibraryPath, opened

if TYPE_CHECKING:
    from cudal2_agent.contract.records.library import LibraryEntry, StoredAlgorithm

EXAMPLE = "\b\nExample:\n  cudal2-agent library list --top 10"


def list_(
    library: LibraryPath = None,
    top: Annotated[
        int | None, typer.Option("--top", help="The entries with the highest speedup only.", min=1, show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The entries of a library: the task, the time with plain launches, and the speedup over cuBLASLt-AutoTuning.

    Below them stand its algorithms of cuBLASLt, with their gain over PyTorch's product.
    """
    found = opened(library)
    entries = list(found)
    algorithms = sorted(found.algorithms(), key=lambda one: (one.task.layout, one.task.m, one.task.n, one.task.k, one.id))
    if top is not None:
        entries = sorted(entries, key=lambda one: (-one.evaluation.speedup.ratio, one.id))[:top]
    else:
        entries.sort(key=lambda one: (one.task.layout, one.task.m, one.task.n, one.task.k, one.id))
    if as_json:
        print("".join(f"{one.model_dump_json()}\n" for one in (*entries, *(algorithms if top is None else ()))), end="")
        return
    told = found.manifest
    print(f"{told.name}: {len(found):,} entries for {told.chip} ({told.arch}), {told.created}, {told.product}")
    print("\n".join(_lines(entries)))
    if algorithms and top is None:
        print(f"{len(algorithms):,} algorithms of cuBLASLt, for tasks without a kernel that beats AutoTuning")
        print("\n".join(_algorithm_lines(algorithms)))


def _algorithm_lines(algorithms: "list[StoredAlgorithm]") -> list[str]:
    from cudal2_agent.agent.cli.render.alignment import aligned

    lines = [("id", "shape", "layout", "types", "algorithm", "PyTorch", "AutoTuning", "gain")]
    for one in algorithms:
        rival_us = one.rival_us or one.time_us
        lines.append(
            (
                one.id[:8],
                one.task.shape,
                one.task.layout.value,
                f"{one.task.element}/{one.task.accumulate}",
                one.words.partition(", ")[2],
                f"{rival_us:.2f} us",
                f"{one.time_us:.2f} us",
                f"{rival_us / one.time_us:.3f}x",
            )
        )
    return aligned(lines, right=frozenset((5, 6, 7)), flexible=4)


def _lines(entries: "list[LibraryEntry]") -> list[str]:
    from cudal2_agent.agent.cli.render.alignment import aligned, cell
    from cudal2_agent.contract.records.evaluation import AUTOTUNED

    lines = [("id", "shape", "layout", "types", "kernel", "AutoTuning", "ours", "speedup", "interval")]
    for entry in entries:
        evaluation, task = entry.evaluation, entry.task
        lines.append(
            (
                entry.id[:8],
                task.shape,
                task.layout.value,
                f"{task.element}/{task.accumulate}",
                str(entry.schedule.get("family")) if entry.schedule else "source",
                cell(evaluation.baselines_us.get(AUTOTUNED), unit=" us"),
                f"{evaluation.time_us:.2f} us",
                f"{evaluation.speedup.ratio:.3f}x",
                f"{evaluation.speedup.low:.3f}–{evaluation.speedup.high:.3f}",
            )
        )
    return aligned(lines, right=frozenset((5, 6, 7, 8)), flexible=4)
