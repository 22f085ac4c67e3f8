"""`cudal2-agent library export`."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.library.library_source import ALL, Jobs, LibraryPath, Sms, chosen, opened
from cudal2_agent.contract.base import Record

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent library export --out kernels\n"
    "  cudal2-agent library export --format flashinfer-bench --library h200 --out set"
)


class LibraryFormat(StrEnum):
    """What `--format` names."""

    CPP = "cpp"
    FLASHINFER_BENCH = "flashinfer-bench"
    KERNELS = "kernels"


def export(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="A new or empty folder.", show_default=False)],
    library: LibraryPath = None,
    format: Annotated[LibraryFormat, typer.Option("--format", help="What is written.")] = LibraryFormat.CPP,
    entry: Annotated[str, typer.Option("--entry", metavar="ID|all", help="An entry, or all.")] = ALL,
    sms: Sms = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Write kernels for other programs (docs/guide/cpp.md).

    cpp: a folder for C++. flashinfer-bench: solutions. kernels: the source of a kernel for the Hugging Face hub. Only entries
    that are faster than AutoTuning are written; cpp and kernels build them first.
    """
    from cudal2_agent.agent.library.export import exporting
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.settings.settings import load_settings

    found = opened(library)
    entries = [one for one in chosen(found, entry) if one.wins]
    if not entries:
        raise UsageError(f"{found.path} has no such entry that is faster than AutoTuning; see `cudal2-agent library list`")
    if format is not LibraryFormat.FLASHINFER_BENCH and (activated := [one for one in entries if one.task.activation]):
        print(f"note: {len(activated)} entries with an activation are left out: callers cannot ask for one", file=sys.stderr)
        entries = [one for one in entries if one not in activated]
    summary: Record
    match format:
        case LibraryFormat.CPP:
            summary = exporting.export_to_cpp(found.manifest, entries, out, load_settings(compile_jobs=jobs), sms)
        case LibraryFormat.KERNELS:
            summary = exporting.export_to_hub(found.manifest, entries, out, load_settings(compile_jobs=jobs), sms)
        case LibraryFormat.FLASHINFER_BENCH:
            summary = exporting.export_to_flashinfer_bench(found.manifest, entries, out, sms)
    if as_json:
        print(summary.model_dump_json())
        return
    told = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in summary.model_dump().items() if count)
    print(f"{told} written to {out}")
