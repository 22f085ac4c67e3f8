"""`cudal2-agent library list`."""

from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli.arguments import AsJson
from agent.cli.library.library_source import LibraryPath, opened

if TYPE_CHECKING:
    from contract.library import LibraryEntry

EXAMPLE = "\b\nExample:\n  cudal2-agent library list --top 10"


def list_(
    library: LibraryPath = None,
    top: Annotated[
        int | None, typer.Option("--top", help="The entries with the highest speedup only.", min=1, show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The entries of a library: the task, the time with plain launches, and the speedup over cuBLASLt-AutoTuning."""
    found = opened(library)
    entries = list(found)
    if top is not None:
        entries = sorted(entries, key=lambda one: (-one.evaluation.speedup.ratio, one.id))[:top]
    else:
        entries.sort(key=lambda one: (one.task.layout, one.task.m, one.task.n, one.task.k, one.id))
    if as_json:
        print("".join(f"{entry.model_dump_json()}\n" for entry in entries), end="")
        return
    told = found.manifest
    print(f"{told.name}: {len(found):,} entries for {told.chip} ({told.arch}), {told.created}, {told.product}")
    print("\n".join(_lines(entries)))


def _lines(entries: "list[LibraryEntry]") -> list[str]:
    from agent.cli.render.alignment import aligned
    from contract.evaluation import AUTOTUNED

    lines = [("id", "shape", "layout", "types", "kernel", "AutoTuning", "ours", "speedup", "interval")]
    for entry in entries:
        evaluation, task = entry.evaluation, entry.task
        autotuned_us = evaluation.baselines_us.get(AUTOTUNED)
        lines.append(
            (
                entry.id[:8],
                task.shape,
                task.layout.value,
                f"{task.element}/{task.accumulate}",
                str(entry.schedule.get("family")) if entry.schedule else "source",
                f"{autotuned_us:.2f} us" if autotuned_us is not None else "–",
                f"{evaluation.time_us:.2f} us",
                f"{evaluation.speedup.ratio:.3f}x",
                f"{evaluation.speedup.low:.3f}–{evaluation.speedup.high:.3f}",
            )
        )
    return aligned(lines, right=frozenset((5, 6, 7, 8)), flexible=4)
