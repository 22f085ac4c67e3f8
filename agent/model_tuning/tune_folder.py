"""The folder of a tuning, from which a later call of the same command resumes.

passes.json         what the model multiplies, and for which request
judged.jsonl        kernels beside PyTorch's own product
ranges.jsonl        kernels that take M as it comes beside PyTorch's own product
tuned.jsonl         algorithms of cuBLASLt, as of `library tune`
library.jsonl.gz    the library
times.jsonl         the model without the library and with it
answer.json         the answer
"""

from collections.abc import Iterable
from pathlib import Path

from cudal2.library.kernel_library import open_library
from cudal2_agent.agent.library.algorithms.tuned_products import TunedProduct, newest, read_tuned
from cudal2_agent.agent.library.row_file import append_row, read_row_file
from cudal2_agent.agent.model_tuning.tune_records import (
    JudgedProduct,
    JudgedRange,
    PassTimes,
    RecordedPasses,
    TuneAnswer,
    TuneRequest,
)
from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import parse_record, read_file
from cudal2_agent.contract.whole_file import whole_file

_COMMAND = "tune"


class TuneFolder:
    """Rows are on the disk when a method returns. Every method raises UsageError where a file cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = path / "library.jsonl.gz"
        self._passes, self._answer = path / "passes.json", path / "answer.json"
        self._ranges = path / "ranges.jsonl"
        self._judged, self._tuned, self._times = path / "judged.jsonl", path / "tuned.jsonl", path / "times.jsonl"

    def passes(self, request: TuneRequest) -> RecordedPasses | None:
        """What was recorded before; None in a new folder. Raises: UsageError where the folder is about something else."""
        if not self._passes.exists():
            return None
        try:
            known = parse_record(RecordedPasses, read_file(self._passes))
        except (OSError, ValueError) as exc:
            raise UsageError(f"{self._passes} is damaged ({exc}); remove it, or name another folder with --out") from exc
        if known.request.model_copy(update={"model": request.model}) != request:
            raise UsageError(
                f"{self.path} is about another model, other tokens or another chip; name another folder with --out"
            )
        return known

    def keep_passes(self, passes: RecordedPasses) -> None:
        self._write(self._passes, passes)

    def keep_answer(self, answer: TuneAnswer) -> None:
        self._write(self._answer, answer)

    def judged(self, environment: str) -> dict[str, JudgedProduct]:
        """The last row of each entry in an environment."""
        rows = read_row_file(self._judged, JudgedProduct, _COMMAND)
        return {row.entry: row for row in rows if row.environment == environment}

    def ranges(self, environment: str) -> dict[str, JudgedRange]:
        """The last row of each entry in an environment."""
        rows = read_row_file(self._ranges, JudgedRange, _COMMAND)
        return {row.entry: row for row in rows if row.environment == environment}

    def tuned(self, environment: str) -> list[TunedProduct]:
        """The last row of each product in an environment."""
        return list(newest([row for row in read_tuned(self._tuned) if row.environment == environment]).values())

    def times(self, environment: str, library_sha256: str) -> dict[int | None, PassTimes]:
        """The last row of each number of tokens, with this library."""
        rows = read_row_file(self._times, PassTimes, _COMMAND)
        return {row.tokens: row for row in rows if (row.environment, row.library_sha256) == (environment, library_sha256)}

    def keep(self, row: JudgedProduct | JudgedRange | TunedProduct | PassTimes) -> None:
        files = {
            JudgedProduct: self._judged,
            JudgedRange: self._ranges,
            TunedProduct: self._tuned,
            PassTimes: self._times,
        }
        append_row(files[type(row)], row)

    def library_sha256(self) -> str | None:
        """Of what serves passes of the model, which ranges of M do not; None where there is no library."""
        if not self.library.exists():
            return None
        manifest = open_library(self.library).manifest
        return digest([manifest.entries, manifest.algorithms], 64)

    def disk_bytes(self, kernels: Iterable[Path]) -> int:
        """Of the library, and of built kernels."""
        files = {self.library, *kernels}
        return sum(file.stat().st_size for file in files if file.exists())

    def _write(self, file: Path, record: Record) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as place:
                place.write_text(record.model_dump_json(indent=1) + "\n", "utf-8")
        except OSError as exc:
            raise UsageError(f"{file} cannot be written ({exc.strerror}); name another folder with --out") from exc
