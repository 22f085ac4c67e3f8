"""Products that were tuned, a row each in a file; and a library with the algorithms that they found.

A tuning that is begun again resumes with the products that have no row of this environment yet.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from cudal2_agent.agent.library.algorithms.algorithm_tuning import ProductBench, TunedAlgorithm, tune
from cudal2_agent.agent.library.row_file import append_row, read_row_file
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.speedup import Speedup


class TunedProduct(Record):
    """What was found for a product. `environment`: as `Environment.key`. `tried`: suggestions of cuBLASLt that ran.

    `words`, `opaque`: the fastest algorithm, as in `StoredAlgorithm`; None where none is right. `speedup`: of torch.mm's time
    over its own, paired, in a race that did not choose it. `faster`: whether a library should hold it. `note`: what was wrong
    with others. Unit: microseconds.
    """

    task: GemmTask
    chip: str
    environment: str
    tried: int
    faster: bool
    words: str | None = None
    opaque: str | None = None
    time_us: float | None = None
    torch_us: float | None = None
    speedup: Speedup | None = None
    note: str = ""
    seconds: float
    measured_at: datetime

    @property
    def algorithm(self) -> StoredAlgorithm | None:
        """What a library holds of it; None where PyTorch's own is as fast."""
        if not self.faster or self.words is None or self.time_us is None:
            return None
        return StoredAlgorithm(
            task=self.task,
            chip=self.chip,
            words=self.words,
            opaque=self.opaque,
            time_us=self.time_us,
            torch_us=self.torch_us,
            heuristic_us=None,
            environment=self.environment,
            run_id="",
            measured=self.measured_at.date(),
        )


def read_tuned(path: Path) -> list[TunedProduct]:
    """The rows of a file; none where it does not exist. Raises: UsageError."""
    return read_row_file(path, TunedProduct, "library tune")


def tune_products(
    tasks: Sequence[GemmTask],
    bench_of: Callable[[GemmTask], ProductBench],
    rows: Path,
    *,
    chip: str,
    environment: str,
    end_s: float | None = None,
) -> Iterator[TunedProduct]:
    """A row for each task, in order; those that `rows` holds for this environment come from there.

    `end_s`: seconds after which no product begins.
    A product that does not fit gets a row that says so.
    Raises: UsageError where the file is not writable or holds something else.
    """
    known = {row.task: row for row in read_tuned(rows) if row.environment == environment}
    started_s = monotonic()
    for task in tasks:
        row = known.get(task)
        if row is None:
            if end_s is not None and monotonic() - started_s >= end_s:
                return
            row = tune_product(task, bench_of, chip, environment)
            append_row(rows, row)
        yield row


def tune_product(task: GemmTask, bench_of: Callable[[GemmTask], ProductBench], chip: str, environment: str) -> TunedProduct:
    """The row of one product; one that does not fit is a row that says so."""
    began_s = monotonic()
    try:
        found = tune(bench_of(task))
    except UsageError as exc:
        found = TunedAlgorithm(0, faults=(str(exc),))
    return _row(task, found, chip, environment, round(monotonic() - began_s, 3))


def newest(rows: Sequence[TunedProduct]) -> Mapping[GemmTask, TunedProduct]:
    """The last row of each task."""
    return {row.task: row for row in sorted(rows, key=lambda row: row.measured_at)}


def _row(task: GemmTask, found: TunedAlgorithm, chip: str, environment: str, seconds: float) -> TunedProduct:
    return TunedProduct(
        task=task,
        chip=chip,
        environment=environment,
        tried=found.tried,
        faster=found.faster,
        words=found.best.words if found.best else None,
        opaque=found.best.opaque if found.best else None,
        time_us=found.time_us,
        torch_us=found.torch_us,
        speedup=found.speedup,
        note="; ".join(found.faults),
        seconds=seconds,
        measured_at=datetime.now(UTC),
    )
