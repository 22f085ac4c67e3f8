"""`cudal2-agent library ranges`."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.library.library_source import ExtendedLibrary, Jobs, WrittenLibrary

if TYPE_CHECKING:
    from cudal2_agent.agent.model_tuning.tune_records import JudgedRange
    from cudal2_agent.contract.records.library import LibraryEntry

EXAMPLE = "\b\nExample:\n  cudal2-agent library ranges --library layers --out layers.jsonl.gz --minutes 10"
ROWS = Path("library-ranges.jsonl")


def ranges(
    out: WrittenLibrary,
    library: ExtendedLibrary = None,
    rows: Annotated[
        Path, typer.Option("--rows", metavar="FILE", help="Where rows are added; a later call resumes there.")
    ] = ROWS,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="No entry begins later.", min=0, show_default=False)
    ] = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Measure from which M on the kernels of a library are faster than PyTorch's product, and write that beside them.

    Each entry is written once more with M as an argument, and the emulator proves it at both ends of its range. The GPU at hand
    measures at most 16 M between the entry's own and the next smaller one that the library has for the weight.
    """
    from cudal2_agent.agent.cli.render.tune_table import range_line
    from cudal2_agent.agent.library.library_building import extend_library, library_to_extend
    from cudal2_agent.agent.library.row_file import append_row, read_row_file
    from cudal2_agent.agent.model_tuning.gpu_stages import GpuStages
    from cudal2_agent.agent.model_tuning.range_building import asked_ranges
    from cudal2_agent.agent.model_tuning.range_stage import measure_ranges
    from cudal2_agent.agent.model_tuning.tune_records import JudgedRange
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.settings.settings import load_settings

    settings = load_settings(compile_jobs=jobs)
    end_s = None if minutes is None else time.monotonic() + 60 * minutes
    done = read_row_file(rows, JudgedRange, "library ranges")
    with GpuStages() as gpu:
        identity, environment = gpu.identity()
        base = library_to_extend(library, identity.gpu)
        if base is None:
            raise UsageError(f"no library ships for {identity.gpu}; name one with --library")
        usable = [one for one in base if one.wins and not identity.measured(one.evaluation.environment)]
        usable = [one for one in usable if not identity.compiled(one.evaluation.environment)]
        tasks = [*(one.task for one in base), *(one.task for one in base.algorithms())]
        known = {row.entry: row for row in done if row.environment == environment}
        wanted = asked_ranges(usable, tasks)
        asked = [one for one in wanted if one.entry.id not in known or known[one.entry.id].floor != one.floor]
        if not as_json:
            print(f"{len(wanted)} entries on {identity.gpu} have smaller M; {len(asked)} are measured now, rows in {rows}")

        def keep(entry: "LibraryEntry", row: "JudgedRange") -> None:
            append_row(rows, row)
            known[entry.id] = row
            print(row.model_dump_json() if as_json else range_line(entry, row), flush=True)

        measure_ranges(asked, gpu, identity, environment, settings, keep, end_s)
    ids = {one.id for one in usable}
    found = [row.m_range for row in known.values() if row.m_range is not None and row.entry in ids]
    left = sum(one.entry.id not in known for one in wanted)
    extend_library(base, [], out, identity.gpu, ranges=found)
    if as_json:
        print(json.dumps({"library": str(out), "ranges": len(found), "left": left}))
        return
    more = f"; {left} are left, the same command resumes" if left else ""
    print(f"{len(found)} entries serve smaller M, too, in {out}{more}")
