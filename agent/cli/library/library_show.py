"""`cudal2-agent library show`."""

from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.library.library_source import LibraryPath, opened

if TYPE_CHECKING:
    from cudal2_agent.contract.records.library import LibraryEntry, StoredAlgorithm

EXAMPLE = "\b\nExample:\n  cudal2-agent library show 1a2b3c4d --library h200"


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

    found = opened(library).entry(entry)
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
    print("\n".join(_lines(found, state)))


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


def _lines(entry: "LibraryEntry", state: str) -> list[str]:
    from cudal2_agent.contract.records.candidate import axes_in_use

    task, evaluation = entry.task, entry.evaluation
    speedup = evaluation.speedup
    baselines = ", ".join(f"{name} {time_us:.2f} us" for name, time_us in sorted(evaluation.baselines_us.items()))
    return [
        f"entry {entry.id}",
        f"  task        {task.shape} {task.layout}, {task.element} with {task.accumulate} sums, {entry.chip} ({task.arch})",
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
