"""`cudal2-agent library prepare`."""

from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson, choice
from cudal2_agent.agent.cli.library.library_source import ALL, Jobs, LibraryPath, Sms, chosen, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudal2.library.kernel_library import EntryRange
    from cudal2_agent.agent.library.preparing import PreparedEntry
    from cudal2_agent.contract.records.library import LibraryEntry
    from cudal2_agent.contract.settings.settings import Settings

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent library prepare --element bf16\n"
    "  cudal2-agent library prepare --entry d9e78c36 --library h200 --shape 48x64x8192\n"
    "  cudal2-agent library prepare --batch-invariant --arch sm_90a"
)
NOT_ALL = 1


def prepare(
    entry: Annotated[str, typer.Option("--entry", metavar="ID|all", help="An entry, or all.")] = ALL,
    shape: Annotated[
        str | None,
        typer.Option("--shape", help="Build the entry for this smaller M, with its N and K, and prove it.", show_default=False),
    ] = None,
    m_range: Annotated[
        bool, typer.Option("--range", help="Build the entry for the range of M that the library has for it, and prove it.")
    ] = False,
    element: Annotated[
        str | None, typer.Option("--element", help="Of all entries, those for f16 or for bf16 alone.", show_default=False)
    ] = None,
    library: LibraryPath = None,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Build the kernels of enable(batch_invariant=True), and no entry.")
    ] = False,
    arch: Annotated[
        str | None,
        typer.Option("--arch", help="With --batch-invariant; default: of the GPU at hand, else sm_90a.", show_default=False),
    ] = None,
    sms: Sms = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Write the sources of entries again, compile them, and keep the kernels where `import cudal2` finds them.

    With all entries, the C++ part of cudal2.enable is compiled too, for the PyTorch of this environment. Several of these may
    run at once: each source is built once. Algorithms of cuBLASLt need nothing. With --shape, the schedule of one entry is
    written for a smaller M, and the kernel is kept where the emulator finds it right. So are kernels that take M as it comes,
    with --range and with all entries. With --batch-invariant, the kernels for every size are built whose order of summation
    does not depend on M. Fails where something could not be built.
    """
    from cudal2.library.kernel_library import EntryRange
    from cudal2_agent.agent.library import preparing
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.records.task import Arch, ElementType
    from cudal2_agent.contract.settings.settings import load_settings

    if batch_invariant:
        if (entry, shape, m_range, element, library, sms) != (ALL, None, False, None, None, None):
            raise UsageError("--batch-invariant builds no entry; leave all but --arch, --jobs and --json out")
        raise typer.Exit(_prepare_invariant(arch, load_settings(compile_jobs=jobs), as_json=as_json))
    if arch is not None:
        raise UsageError("--arch belongs to --batch-invariant; an entry names its own")
    if (shape is not None or m_range) and entry == ALL:
        raise UsageError(f"{'--range' if m_range else '--shape'} is for one entry; name it with --entry")
    if shape is not None and m_range:
        raise UsageError("--shape is one M and --range many; leave one of them out")
    if element is not None and entry != ALL:
        raise UsageError("--element chooses among all entries, and --entry names one; leave one of them out")
    wanted = choice("--element", ElementType, element) if element else None
    settings = load_settings(compile_jobs=jobs)
    found = opened(library)
    entries = [one for one in chosen(found, entry) if wanted in (None, one.task.element)]
    if wanted is not None and not entries:
        raise UsageError(f"{found.path} has no kernel in {wanted.value} to build")
    wanted_ranges = [EntryRange(one, below) for one in entries if (below := found.range_below(one)) is not None]
    if m_range and not wanted_ranges:
        raise UsageError(f"{found.path} has no range of M for entry {entries[0].id[:8]}; `cudal2-agent tune` measures them")
    own = [] if m_range else entries
    ranges = wanted_ranges if m_range or entry == ALL else []
    counts = {"built": 0, "ready": 0, "failed": 0}
    for one in _prepared(own, shape, ranges, settings, sms or preparing.sms_for(Arch(found.manifest.arch))):
        counts[one.status] += 1
        if as_json:
            print(one.model_dump_json(), flush=True)
        elif one.status == "failed" or len(entries) == 1:
            print(f"{one.id[:8]} {one.shape} {one.layout}: {', '.join(filter(None, (one.status, one.message)))}", flush=True)
    if not as_json:
        told = ", ".join(f"{count:,} {status}" for status, count in counts.items())
        print(f"{told}; kernels in {preparing.library_cache(settings)}")
    if entry == ALL:
        from cudal2_agent.agent.library.torch_kernels import prepare_torch

        compiled = prepare_torch(settings)
        print(compiled.model_dump_json() if as_json else compiled, flush=True)
    raise typer.Exit(NOT_ALL if counts["failed"] else 0)


def _prepared(
    entries: "list[LibraryEntry]", shape: str | None, ranges: "list[EntryRange]", settings: "Settings", sms: int
) -> "Iterator[PreparedEntry]":
    """Entries for their own shapes, or one for another M; then ranges of M.

    Raises: UsageError, as `prepare` and `prepare_padded`.
    """
    from cudal2_agent.agent.library import m_ranges, padded_m, preparing

    task = None if shape is None else padded_m.task_of_shape(entries[0], shape)
    if task is None or task == entries[0].task:
        yield from preparing.prepare(entries, settings, sms)
    else:
        yield padded_m.prepare_padded(entries[0], task, settings, sms)
    for entry, m_range in ranges:
        yield m_ranges.prepare_range(entry, m_range, settings, sms)


def _prepare_invariant(arch: str | None, settings: "Settings", *, as_json: bool) -> int:
    """The exit code. Raises: UsageError, as `prepare_invariant`."""
    from cudal2_agent.agent.library.invariant_building import prepare_invariant
    from cudal2_agent.agent.wiring.gpus import visible_gpus
    from cudal2_agent.contract.records.task import Arch

    at_hand = next((gpu.arch for gpu in visible_gpus() if gpu.arch is not None), Arch.SM_90A)
    done = prepare_invariant(choice("--arch", Arch, arch) if arch else at_hand, settings)
    print(done.model_dump_json() if as_json else done, flush=True)
    return NOT_ALL if done.status == "failed" else 0
