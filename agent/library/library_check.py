"""Verifies entries and algorithms of a library on the device at hand, and times them anew on a GPU.

Every entry gives a row, which is written to a file at once. A check that is begun again resumes with the entries that have no
row of this device yet.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cudal2_agent.agent.library.entry_source import candidate_of
from cudal2_agent.agent.library.row_file import append_row, read_row_file
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation, Measured, Timing, ran_in_part
from cudal2_agent.contract.records.library import LibraryEntry, StoredAlgorithm
from cudal2_agent.contract.reward.speedup import Speedup, baseline_of, median_us, paired_speedup
from cudal2_agent.contract.settings.options import Tier

if TYPE_CHECKING:
    from cudal2_agent.agent.library.algorithms.algorithm_check import AlgorithmOutcome

EMULATOR = "emulator"


class CheckRow(Record):
    """What was found of one entry by all tiers, or by the one that `tier` names.

    `device`: `Environment.key` of a GPU, else `emulator`, which proves and times nothing.

    `status`: `in-part` where the emulator ran less than the whole of a large task; `not-run` where nothing executed the kernel.
    `recorded`: the speedup that the library holds; `speedup`: that of today, over cuBLASLt-AutoTuning, paired in the same
    rounds and launched as the entry is. An algorithm of cuBLASLt has neither: `torch_us` is the time of torch.mm in the same
    rounds, `recorded_gain` what the library holds of PyTorch's time over the algorithm's. Unit: microseconds.
    """

    entry: str
    shape: str
    layout: str
    device: str
    tier: Tier = "all"
    status: Literal["passed", "in-part", "not-run", "failed"]
    verdict: str
    recorded: Speedup | None
    time_us: float | None = None
    speedup: Speedup | None = None
    torch_us: float | None = None
    recorded_gain: float | None = None
    seconds: float
    checked_at: datetime

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    @property
    def held(self) -> bool:
        """Whether the kernel was executed and found right."""
        return self.status in ("passed", "in-part")

    @property
    def slower(self) -> bool:
        """Whether the whole interval of today is below 1; of an algorithm, whether its median is above torch.mm's."""
        if self.torch_us is not None and self.time_us is not None:
            return self.time_us > self.torch_us
        return self.speedup is not None and self.speedup.high < 1.0


def check_entries(
    entries: Sequence[LibraryEntry | StoredAlgorithm],
    sandbox: Sandbox,
    rows: Path,
    run: "Callable[[StoredAlgorithm], AlgorithmOutcome] | None" = None,
    tier: Tier = "all",
) -> Iterator[CheckRow]:
    """A row for each entry, in order; those that `rows` holds for this device and tier come from there.

    `run`: what runs algorithms; None runs them by PyTorch's GPU. `tier`: that of the sandbox.

    Raises: UsageError where the file is not writable, or holds something else; MachineError, WorkerError.
    """
    device = device_of(sandbox)
    known = {row.entry: row for row in read_rows(rows) if (row.device, row.tier) == (device, tier)}
    for entry in entries:
        if (row := known.get(entry.id)) is None:
            if isinstance(entry, StoredAlgorithm):
                row = check_algorithm(entry, device, (run or _run_algorithm) if sandbox.can_measure else _no_gpu)
            else:
                row = check_entry(entry, sandbox, device, tier)
            append_row(rows, row)
        yield row


def check_side_by_side(
    entries: Sequence[LibraryEntry],
    devices: Sequence[str],
    opened: Callable[[str], AbstractContextManager[Sandbox]],
    rows: Path,
    tier: Tier,
) -> Iterator[CheckRow]:
    """As `check_entries`, in the order in which rows are done: a thread with a sandbox of its own for each device.

    Raises: what the first of them raises; the others end with their entry.
    """
    waiting, done = queue.SimpleQueue[LibraryEntry](), queue.SimpleQueue[CheckRow | None]()
    ended, writing = threading.Event(), threading.Lock()
    known = {(row.entry, row.device): row for row in read_rows(rows) if row.tier == tier}
    for entry in entries:
        waiting.put(entry)

    def work(device: str) -> None:
        try:
            with opened(device) as sandbox:
                key = device_of(sandbox)
                while not ended.is_set():
                    entry = waiting.get_nowait()
                    if (row := known.get((entry.id, key))) is None:
                        row = check_entry(entry, sandbox, key, tier)
                        with writing:
                            append_row(rows, row)
                    done.put(row)
        except queue.Empty:
            return
        finally:
            done.put(None)

    with ThreadPoolExecutor(len(devices)) as pool:
        working = [pool.submit(work, device) for device in devices]
        try:
            for _ in working:
                while (row := done.get()) is not None:
                    yield row
                for one in working:
                    if one.done():
                        one.result()
        finally:
            ended.set()


def waiting_entries(entries: Iterable[LibraryEntry | StoredAlgorithm]) -> list[LibraryEntry]:
    """Those with a programmatic launch, and those that cannot be written any more."""
    return [entry for entry in entries if isinstance(entry, LibraryEntry) and (entry.programmatic or _programmatic(entry))]


def _programmatic(entry: LibraryEntry) -> bool:
    try:
        return any(launch.programmatic for launch in candidate_of(entry).plan.kernels)
    except LibraryError:
        return True


def device_of(sandbox: Sandbox) -> str:
    """What executes kernels: a GPU by its environment, the emulator, or nothing."""
    if not sandbox.can_execute:
        return "none"
    environment = sandbox.environment
    return environment.key if sandbox.can_measure and environment is not None else EMULATOR


def check_entry(entry: LibraryEntry, sandbox: Sandbox, device: str, tier: Tier = "all") -> CheckRow:
    """The row of one entry. Raises: MachineError, WorkerError."""
    return _checked(entry, sandbox, device, tier).model_copy(update={"tier": tier})


def _checked(entry: LibraryEntry, sandbox: Sandbox, device: str, tier: Tier) -> CheckRow:
    began_s = time.monotonic()
    try:
        [(_, built)] = sandbox.build([candidate_of(entry)], entry.task)
    except LibraryError as exc:
        return _row(entry, device, began_s, "failed", str(exc))
    if not isinstance(built, Built):
        return _row(entry, device, began_s, "failed", built.headline)
    if tier != "all":
        evaluation = sandbox.verify(built, entry.task)
    elif sandbox.can_measure:
        [evaluation] = sandbox.race([built], entry.task)
    else:
        evaluation = sandbox.evaluate(built, entry.task, "full")
    return _judged(entry, evaluation, device, began_s)


def _run_algorithm(stored: StoredAlgorithm) -> "AlgorithmOutcome":
    """Imports PyTorch when the first algorithm is checked."""
    from cudal2_agent.agent.library.algorithms.algorithm_check import run_algorithm

    return run_algorithm(stored)


def _no_gpu(_: StoredAlgorithm) -> "AlgorithmOutcome":
    from cudal2_agent.agent.library.algorithms.algorithm_check import AlgorithmOutcome

    return AlgorithmOutcome(absent="cuBLASLt runs on a GPU only")


def check_algorithm(stored: StoredAlgorithm, device: str, run: "Callable[[StoredAlgorithm], AlgorithmOutcome]") -> CheckRow:
    """The row of an algorithm."""
    began_s = time.monotonic()
    outcome = run(stored)
    status: Literal["passed", "not-run", "failed"] = "not-run" if outcome.absent else "failed" if outcome.fault else "passed"
    row = _row(
        stored, device, began_s, status, outcome.absent or outcome.fault or "compared and timed", time_us=outcome.time_us
    )
    gain = None if stored.rival_us is None else stored.rival_us / stored.time_us
    return row.model_copy(update={"torch_us": outcome.torch_us, "recorded_gain": gain})


def read_rows(path: Path) -> list[CheckRow]:
    """The rows of a file; none where it does not exist. Raises: UsageError."""
    return read_row_file(path, CheckRow, "library check")


def _judged(entry: LibraryEntry, evaluation: Evaluation, device: str, began_s: float) -> CheckRow:
    if evaluation.failed:
        return _row(entry, device, began_s, "failed", evaluation.headline)
    if not isinstance(evaluation, Measured):
        in_part = ran_in_part(evaluation.tests)
        status: Literal["passed", "in-part", "not-run"] = "in-part" if in_part else "passed"
        return _row(entry, device, began_s, status if evaluation.passed else "not-run", evaluation.headline)
    timing, baseline = _launched(entry, evaluation), baseline_of(evaluation, AUTOTUNED)
    speedup = paired_speedup(timing, baseline) if baseline is not None else None
    return _row(entry, device, began_s, "passed", "verified and timed", time_us=median_us(timing), speedup=speedup)


def _launched(entry: LibraryEntry, measured: Measured) -> Timing:
    """The samples of the kernel as the entry is launched."""
    return measured.timing if entry.programmatic or measured.plain is None else measured.plain


def _row(
    entry: LibraryEntry | StoredAlgorithm,
    device: str,
    began_s: float,
    status: Literal["passed", "in-part", "not-run", "failed"],
    verdict: str,
    *,
    time_us: float | None = None,
    speedup: Speedup | None = None,
) -> CheckRow:
    return CheckRow(
        entry=entry.id,
        shape=entry.task.shape,
        layout=entry.task.layout.value,
        device=device,
        status=status,
        verdict=" ".join(verdict.split()),
        recorded=None if isinstance(entry, StoredAlgorithm) else entry.evaluation.speedup,
        time_us=time_us,
        speedup=speedup,
        seconds=round(time.monotonic() - began_s, 3),
        checked_at=datetime.now(UTC),
    )


def share_slower(rows: Iterable[CheckRow]) -> tuple[int, int]:
    """How many timed rows are slower than their baseline (`CheckRow.slower`), and how many were timed."""
    timed = [row for row in rows if row.speedup is not None or row.torch_us is not None]
    return sum(row.slower for row in timed), len(timed)
