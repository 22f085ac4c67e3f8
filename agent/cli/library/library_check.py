"""`cudal2-agent library check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson, Device
from cudal2_agent.agent.cli.library.library_source import ALL, LibraryPath, held, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from cudal2_agent.agent.library.library_check import CheckRow
    from cudal2_agent.contract.protocols import Sandbox
    from cudal2_agent.contract.records.library import LibraryEntry, StoredAlgorithm
    from cudal2_agent.contract.records.task import Arch
    from cudal2_agent.contract.settings.options import Tier
    from cudal2_agent.contract.settings.settings import Settings

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent library check --library h200 --entry 1a2b3c4d\n"
    "  cudal2-agent library check --sample 20 --max-gflop 0.1 --device emulator\n"
    "  cudal2-agent library check --tier waits --gpus emulator:64 --resume waits.jsonl"
)
NOT_ALL = 1
ROWS = Path("library-check.jsonl")


def check(
    entry: Annotated[str, typer.Option("--entry", metavar="ID|all", help="An entry, or all.")] = ALL,
    library: LibraryPath = None,
    rows: Annotated[
        Path, typer.Option("--rows", "--resume", metavar="FILE", help="Where rows are added; a later check resumes there.")
    ] = ROWS,
    sample: Annotated[
        int | None,
        typer.Option("--sample", help="Check this many, spread over families and times.", min=1, show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="What the sample is drawn by.")] = 0,
    max_gflop: Annotated[
        float | None, typer.Option("--max-gflop", help="Leave out larger tasks.", min=0, show_default=False)
    ] = None,
    tier: Annotated[str, typer.Option("--tier", help="all, or waits: the test of programmatic launches alone.")] = "all",
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", help="Check side by side on all, 0,1 or emulator:N, in the order of the ends.", show_default=False
        ),
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Verify entries on the device at hand by all tiers; on a GPU, time them anew against cuBLASLt-AutoTuning.

    The emulator proves and does not time. An algorithm of cuBLASLt needs a GPU: its product is compared with one in f32, and
    timed beside torch.mm. Fails unless every entry was executed and found right.

    `--tier waits` runs the test of programmatic launches alone, for every entry with such a launch, and times nothing.
    """
    from cudal2_agent.agent.library.entry_sample import sample_of
    from cudal2_agent.agent.library.library_check import waiting_entries
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.records.task import Arch
    from cudal2_agent.contract.settings.settings import load_settings

    if tier not in ("all", "waits"):
        raise UsageError(f"--tier {tier!r} is not known; choose from all, waits")
    settings = load_settings(device=device)
    found = opened(library)
    entries = [one for one in held(found, entry) if max_gflop is None or one.task.flops <= max_gflop * 1e9]
    entries = entries if tier == "all" else [*waiting_entries(entries)]
    if not entries:
        raise UsageError(f"no entry of {found.path} is left; raise --max-gflop, or name another one")
    entries = entries if sample is None else sample_of(entries, sample, seed)
    done: list[CheckRow] = []
    for row in _rows(entries, Arch(found.manifest.arch), settings, rows, tier, gpus):
        done.append(row)
        print(row.model_dump_json() if as_json else _line(row, f"[{len(done):,}/{len(entries):,}] "), flush=True)
    if not as_json:
        print(_summary(done, rows))
    raise typer.Exit(0 if all(row.held for row in done) else NOT_ALL)


def _rows(
    entries: "list[LibraryEntry | StoredAlgorithm]",
    arch: "Arch",
    settings: "Settings",
    rows: Path,
    tier: str,
    gpus: str | None,
) -> "Iterator[CheckRow]":
    """On one device in the order of the entries, or side by side on several. Raises: UsageError, MachineError, WorkerError."""
    from cudal2_agent.agent.cli.campaign.run import devices_named
    from cudal2_agent.agent.library.library_check import check_entries, check_side_by_side
    from cudal2_agent.agent.wiring.sandbox import open_sandbox_of, share_of
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.events import ignore
    from cudal2_agent.contract.records.library import LibraryEntry
    from cudal2_agent.store.store import open_store

    only: Tier = "waits" if tier == "waits" else "all"
    if gpus is None:
        with (
            open_store(settings.store_url) as store,
            open_sandbox_of(arch, settings, ignore, baselines=store, tier=only) as sandbox,
        ):
            yield from check_entries(entries, sandbox, rows, tier=only)
        return
    kernels = [one for one in entries if isinstance(one, LibraryEntry)]
    if len(kernels) < len(entries):
        raise UsageError("algorithms of cuBLASLt are not checked side by side; leave out --gpus, or name --tier waits")
    devices = devices_named(gpus)

    def opened_on(device: str) -> "AbstractContextManager[Sandbox]":
        return open_sandbox_of(arch, share_of(settings, device, len(devices)), ignore, tier=only)

    yield from check_side_by_side(kernels, devices, opened_on, rows, only)


def _line(row: "CheckRow", place: str = "") -> str:
    told = row.verdict
    if row.time_us is not None and row.speedup is not None and row.recorded is not None:
        now, recorded = row.speedup, row.recorded
        told = f"{row.time_us:.2f} us, {now.ratio:.3f}x ({now.low:.3f}–{now.high:.3f}), recorded {recorded.ratio:.3f}x"
    elif row.time_us is not None and row.torch_us is not None:
        recorded_gain = "" if row.recorded_gain is None else f", recorded {row.recorded_gain:.3f}x"
        told = f"algorithm, {row.time_us:.2f} us, {row.torch_us / row.time_us:.3f}x of torch.mm{recorded_gain}"
    return f"{place}{row.entry[:8]} {row.shape} {row.layout}: {'FAILED ' if row.failed else ''}{told}, {row.seconds:.1f} s"


def _summary(rows: "list[CheckRow]", file: Path) -> str:
    from cudal2_agent.agent.library.library_check import share_slower

    counts = {status: sum(row.status == status for row in rows) for status in ("passed", "in-part", "not-run", "failed")}
    told = ", ".join(f"{count:,} {status}" for status, count in counts.items() if count)
    slower, timed = share_slower(rows)
    rival = "AutoTuning, or an algorithm than torch.mm" if any(row.torch_us for row in rows) else "AutoTuning"
    times = f"; {slower:,} of {timed:,} timed are slower than {rival}" if timed else "; nothing was timed"
    return f"{len(rows):,} checked on {rows[0].device}: {told}{times}; rows in {file}"
