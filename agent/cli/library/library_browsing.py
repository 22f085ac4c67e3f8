"""`cudal2-agent library list` and `show`: the entries of a library, and one of them in full."""

from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.library.library_source import LibraryPath, opened

if TYPE_CHECKING:
    from cudal2_agent.contract.records.library import LibraryEntry, MRange, StoredAlgorithm

LIST_EXAMPLE = "\b\nExample:\n  cudal2-agent library list --top 10"
SHOW_EXAMPLE = "\b\nExample:\n  cudal2-agent library show 1a2b3c4d --library h200"


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
    print("\n".join(_rows(entries)))
    if algorithms and top is None:
        print(f"{len(algorithms):,} algorithms of cuBLASLt, for tasks without a kernel that beats AutoTuning")
        print("\n".join(_algorithm_rows(algorithms)))


def _algorithm_rows(algorithms: "list[StoredAlgorithm]") -> list[str]:
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


def _rows(entries: "list[LibraryEntry]") -> list[str]:
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
                f"{task.element}/{task.accumulate}{task.epilogue}",
                str(entry.schedule.get("family")) if entry.schedule else "source",
                cell(evaluation.baselines_us.get(AUTOTUNED), unit=" us"),
                f"{evaluation.time_us:.2f} us",
                f"{evaluation.speedup.ratio:.3f}x",
                f"{evaluation.speedup.low:.3f}–{evaluation.speedup.high:.3f}",
            )
        )
    return aligned(lines, right=frozenset((5, 6, 7, 8)), flexible=4)


def show(
    entry: Annotated[str, typer.Argument(metavar="ID", help="Id of an entry, or its first characters.", show_default=False)],
    library: LibraryPath = None,
    source: Annotated[bool, typer.Option("--source", help="Print the CUDA source, and nothing else.")] = False,
    as_json: AsJson = False,
) -> None:
    """What a library says of one entry, and whether its source can be written as it was measured."""
    from cudal2_agent.agent.library.entry_source import candidate_of
    from cudal2_agent.contract.errors import LibraryError, UsageError
    from cudal2_agent.contract.records.library import StoredAlgorithm

    held = opened(library)
    found = held.entry(entry)
    if isinstance(found, StoredAlgorithm):
        if source:
            raise UsageError(f"{found.id[:8]} is an algorithm of cuBLASLt, which has no source here")
        print(found.model_dump_json() if as_json else "\n".join(_algorithm_lines(found)))
        return
    if source:
        print(candidate_of(found).source, end="")
        return
    if as_json:
        print(found.model_dump_json())
        return
    try:
        candidate_of(found)
        state = "as measured"
    except LibraryError as exc:
        state = str(exc)
    print("\n".join([*_lines(found, state), *_range_lines(held.range_below(found))]))


def _algorithm_lines(stored: "StoredAlgorithm") -> list[str]:
    task = stored.task
    baselines = {"torch.matmul": stored.torch_us, "cublaslt-heuristic": stored.heuristic_us}
    times = ", ".join(f"{name} {time_us:.2f} us" for name, time_us in baselines.items() if time_us is not None)
    return [
        f"algorithm {stored.id}",
        f"  task        {task.shape} {task.layout}, {task.element} with {task.accumulate} sums, {stored.chip} ({task.arch})",
        f"  AutoTuning  {stored.words}",
        f"  record      {'of cuBLAS ' + stored.cublas if stored.opaque else 'none; it is found by its configuration'}",
        f"  time        {stored.time_us:.2f} us",
        f"  baselines   {times or '–'}",
        f"  measured    {stored.measured}, {stored.environment}",
        f"  run         {stored.run_id}, commit {stored.commit or '–'}",
    ]


def _range_lines(m_range: "MRange | None") -> list[str]:
    if m_range is None:
        return []
    points = ", ".join(f"{one.m} {one.speedup.ratio:.3f}x" for one in m_range.points)
    return [f"  smaller M   from {m_range.smallest} on, of PyTorch's product: {points}"]


def _lines(entry: "LibraryEntry", state: str) -> list[str]:
    from cudal2_agent.contract.records.candidate import axes_in_use

    task, evaluation = entry.task, entry.evaluation
    after = f", {task.formula}" if task.gated else f", {task.activation} of them" if task.activation else ""
    sums = f"{task.accumulate} sums{' and a bias' if task.bias else ''}{after}"
    speedup = evaluation.speedup
    baselines = ", ".join(f"{name} {time_us:.2f} us" for name, time_us in sorted(evaluation.baselines_us.items()))
    return [
        f"entry {entry.id}",
        f"  task        {task.shape} {task.layout}, {task.element} with {sums}, {entry.chip} ({task.arch})",
        f"  kernel      {' '.join(axes_in_use(entry.schedule)) if entry.schedule else 'a source without a schedule'}",
        f"  launch      {'programmatic' if entry.programmatic else 'plain'}",
        f"  source      {entry.source_sha256[:16]}, {state}",
        f"  time        {evaluation.time_us:.2f} us",
        f"  speedup     {speedup.ratio:.3f}x of AutoTuning ({speedup.low:.3f}–{speedup.high:.3f})",
        f"  baselines   {baselines or '–'}",
        f"  AutoTuning  {entry.autotuned or 'its algorithm was not recorded'}",
        f"  error       {'–' if evaluation.worst_error is None else f'{evaluation.worst_error:.2f} of its bound'}",
        f"  measured    {evaluation.measured}, {evaluation.environment}",
        f"  run         {evaluation.run_id}, commit {evaluation.commit or '–'}",
        f"  licence     {entry.licence}",
    ]
