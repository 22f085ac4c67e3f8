"""`cudal2-agent library prepare`."""

from typing import Annotated

import typer

from agent.cli.arguments import AsJson
from agent.cli.library.library_source import ALL, Jobs, LibraryPath, Sms, chosen, opened

EXAMPLE = "\b\nExample:\n  cudal2-agent library prepare --entry all --library h200"
NOT_ALL = 1


def prepare(
    entry: Annotated[str, typer.Option("--entry", metavar="ID|all", help="An entry, or all.")] = ALL,
    library: LibraryPath = None,
    sms: Sms = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Write the sources of entries again, compile them, and keep the kernels where `import cudal2` finds them.

    With all entries, the C++ part of cudal2.enable is compiled too, for the PyTorch of this environment. Several of these may
    run at once: each source is built once. Algorithms of cuBLASLt need nothing. Fails where an entry could not be built.
    """
    from agent.library import preparing
    from contract.settings import load_settings
    from contract.task import Arch

    settings = load_settings(compile_jobs=jobs)
    found = opened(library)
    entries = chosen(found, entry)
    counts = {"built": 0, "ready": 0, "failed": 0}
    for one in preparing.prepare(entries, settings, sms or preparing.sms_for(Arch(found.manifest.arch))):
        counts[one.status] += 1
        if as_json:
            print(one.model_dump_json(), flush=True)
        elif one.status == "failed" or len(entries) == 1:
            print(f"{one.id[:8]} {one.shape} {one.layout}: {one.status} {one.message}".rstrip(), flush=True)
    if not as_json:
        told = ", ".join(f"{count:,} {status}" for status, count in counts.items())
        print(f"{told}; kernels in {preparing.library_cache(settings)}")
    if entry == ALL:
        from agent.library.torch_kernels import prepare_torch

        compiled = prepare_torch(settings)
        print(compiled.model_dump_json() if as_json else compiled, flush=True)
    raise typer.Exit(NOT_ALL if counts["failed"] else 0)
