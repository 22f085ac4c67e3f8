"""Writes trajectories as a data set: JSON lines or Parquet, in one file, on stdout, or in a folder with splits and a card.

A folder appears whole or not at all: it is written next to its place and moved there once complete.
Runs are read one at a time. Between runs only hashes of the rows, the shapes and the counts are kept.
"""

import hashlib
import json
import pickle
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Trajectory
from cudal2_agent.contract.whole_file import make_durable, whole_file
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.exports.columns import columns_of
from cudal2_agent.policies.exports.counts import ExportCounts, ExportSummary, NothingToWrite, summed
from cudal2_agent.policies.exports.dataset_card import render_card
from cudal2_agent.policies.exports.flat_table import ParquetFile, table_rows
from cudal2_agent.policies.exports.formats import FORMATS, ExportOptions, Row, TrainerFormat
from cudal2_agent.policies.exports.splits import TEST, TRAIN, ShapeSplit, Split, module_key, texts_of
from cudal2_agent.store.steps import export_steps, to_line

DatasetFormat = Literal["steps", "parquet"] | TrainerFormat
DATASET_FORMATS: tuple[DatasetFormat, ...] = ("steps", *FORMATS, "parquet")
_FILES = frozenset({".jsonl", ".json", ".ndjson", ".parquet"})
_KEYED = ("messages", "prompt", "completion", "chosen", "rejected", "completions")


class _RowFile(Protocol):
    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class _JsonLines:
    """Rows as JSON lines in ASCII, which every reader splits alike. A row of steps is written as it is."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: Row) -> None:
        self._file.write((row["line"] if "line" in row else json.dumps(row, allow_nan=False)) + "\n")

    def close(self) -> None:
        self._file.flush()
        if self._file is not sys.stdout:
            self._file.close()


def export_dataset(
    trajectories: Iterable[Trajectory], format: DatasetFormat, target: Path | None, options: ExportOptions, prompts: Prompts
) -> ExportSummary:
    """Write a data set and say what it holds. `target`: None is stdout; a name with a suffix is a file, else a folder.

    A folder holds `train` and, with splits, `test`, and the card `README.md`. Files appear whole or not at all; without a row
    nothing is written, and an earlier export stays.
    Raises: UsageError where format, target and options do not fit, a package is missing, or the target cannot be written.
    """
    split = ShapeSplit(options.test_share, options.test_shapes, options.seed)
    _check(format, target, split)
    export = _Export(format, target, options, prompts, split)
    try:
        return export.run(trajectories)
    except NothingToWrite:
        return export.summary
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise UsageError(
            f"{target} cannot be written ({exc.strerror}); nothing was left there: make room or choose another place"
        ) from exc


def _check(format: DatasetFormat, target: Path | None, split: ShapeSplit) -> None:
    if format not in DATASET_FORMATS:
        raise UsageError(f"format {format!r} is not known; choose from {', '.join(DATASET_FORMATS)}")
    folder = target is not None and target.suffix not in _FILES
    if split.divides and not folder:
        raise UsageError("a test split needs a folder; name one without a suffix, such as --out dataset")
    if format == "steps" and folder:
        raise UsageError(f"steps go to one file or to stdout; name a file such as {target}.jsonl")
    if format == "parquet" and (target is None or (not folder and target.suffix != ".parquet")):
        raise UsageError("parquet goes to a file or a folder; name one, such as --out steps.parquet")
    if target is not None and target.suffix == ".parquet" and format != "parquet":
        raise UsageError(f"format {format} is JSON lines; name a file such as {target.with_suffix('.jsonl')}")


class _Export:
    """One export: the files that are open, and what was written so far."""

    def __init__(
        self, format: DatasetFormat, target: Path | None, options: ExportOptions, prompts: Prompts, split: ShapeSplit
    ) -> None:
        self._format, self._target, self._options, self._prompts, self._split = format, target, options, prompts, split
        self._counts = ExportCounts()
        self._written: set[int] = set()
        self._test_shapes: set[tuple[int, int, int]] = set()
        self._waiting = 0
        self._files: dict[Split, _RowFile] = {}

    def run(self, trajectories: Iterable[Trajectory]) -> ExportSummary:
        with self._opened() as folder, tempfile.TemporaryFile(dir=folder) as suspects:
            for trajectory in trajectories:
                self._add(trajectory, suspects)
            self._judge(suspects)
            summary = self.summary
            if self._target and not any(summary.rows.values()):
                raise NothingToWrite
            if folder:
                card = render_card(summary, columns_of(self._format, self._options), self._options)
                (folder / CARD).write_text(card, encoding="utf-8")
        return summary

    @property
    def summary(self) -> ExportSummary:
        return summed(self._counts, self._format, str(self._target) if self._target else None)

    @contextmanager
    def _opened(self) -> Iterator[Path | None]:
        """The files of the export, opened. Yields the folder that they are in until they are complete, if there is one."""
        splits = (TRAIN, TEST) if self._split.divides else (TRAIN,)
        self._counts.rows.update(dict.fromkeys(splits, 0))
        with ExitStack() as stack:
            folder = None
            place = self._target.resolve() if self._target else None
            if place is None:
                self._files[TRAIN] = _JsonLines(sys.stdout)
                stack.callback(self._files[TRAIN].close)
            elif place.suffix in _FILES:
                self._open(TRAIN, stack.enter_context(whole_file(place)), stack)
            else:
                folder = stack.enter_context(whole_folder(place))
                suffix = "parquet" if self._format == "parquet" else "jsonl"
                for split in splits:
                    self._open(split, folder / f"{split}.{suffix}", stack)
            yield folder

    def _open(self, split: Split, path: Path, stack: ExitStack) -> None:
        """Open a file of rows, which `stack` closes before it moves the file to its place."""
        if self._format == "parquet":
            self._files[split] = ParquetFile(path, columns_of(self._format, self._options))
        else:
            self._files[split] = _JsonLines(path.open("w", encoding="utf-8", newline="\n"))
        stack.callback(self._files[split].close)

    def _add(self, trajectory: Trajectory, suspects: IO[bytes]) -> None:
        """Write the rows of one run. A row for training that may name a test shape waits until all test shapes are known."""
        task = trajectory.run.task
        shape = (task.m, task.n, task.k) if isinstance(task, GemmTask) else module_key(task.problem)
        split = self._split.of(shape)
        if split == TEST and not isinstance(shape, str):
            self._test_shapes.add(shape)
        self._counts.add_run(trajectory.run, len(trajectory.steps), split)
        for row in self._rows(trajectory):
            if self._format not in ("steps", "parquet") and self._is_repeated(row):
                self._counts.left_out["duplicates"] += 1
                continue
            named = self._split.test_shapes_in(row) if split == TRAIN and self._split.divides else set()
            if named:
                pickle.dump((named, row), suspects)
                self._waiting += 1
            else:
                self._write(split, row)

    def _rows(self, trajectory: Trajectory) -> Iterator[Row]:
        if self._format == "steps":
            return ({"line": to_line(step)} for step in export_steps(trajectory))
        if self._format == "parquet":
            return map(_storable, table_rows(trajectory))
        rows = FORMATS[self._format]
        return map(_storable, rows(trajectory, self._prompts, self._options, self._counts))

    def _is_repeated(self, row: Row) -> bool:
        """Whether a row of the same text was seen. 64 bits of a hash are kept of each."""
        text = hashlib.blake2b(digest_size=8)
        for name in _KEYED:
            for part in texts_of(row.get(name)):
                text.update(b"%d:" % len(part) + part.encode())
        key = int.from_bytes(text.digest(), "big")
        repeated = key in self._written
        self._written.add(key)
        return repeated

    def _judge(self, suspects: IO[bytes]) -> None:
        """Write the rows that wait, without those that name a test shape that there is."""
        listed = self._split.listed | self._test_shapes
        suspects.seek(0)
        for _ in range(self._waiting):
            named, row = pickle.load(suspects)  # written above, by this process
            if named & listed:
                self._counts.left_out["leaked"] += 1
            else:
                self._write(TRAIN, row)

    def _write(self, split: Split, row: Row) -> None:
        self._files[split].write(row)
        self._counts.rows[split] += 1
        for provenance in _provenances(row):
            self._counts.environments[provenance["environment"] or "not measured"] += 1
            if "licence" in provenance:
                self._counts.licences[provenance["licence"]] += 1


def _provenances(row: Row) -> Iterator[dict[str, Any]]:
    """Where a row comes from, one answer of a pair or a group after the other."""
    if "provenance" not in row and "environment" in row:
        yield row
    for name in ("provenance", "chosen_provenance", "rejected_provenance"):
        found = row.get(name)
        yield from found if isinstance(found, list) else [found] if found else []


def _storable(value: Any) -> Any:
    """The value with a replacement character for every half of a surrogate pair, which UTF-8 cannot hold."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_storable(name): _storable(part) for name, part in value.items()}
    return [_storable(part) for part in value] if isinstance(value, list) else value


CARD = "README.md"


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder to write to; afterwards it becomes `path`. An earlier export there is replaced.

    Raises: UsageError where `path` is a file or holds anything but an earlier export; OSError.
    """
    _check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        for file in temporary.iterdir():
            make_durable(file)
            file.chmod(0o644)
        temporary.chmod(0o755)
        _swap(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _check_replaceable(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise UsageError(f"{path} is a file; an export with splits needs a folder")
    names = {file.name for file in path.iterdir()}
    ours = {CARD} | {f"{split}.{suffix}" for split in ("train", "test") for suffix in ("jsonl", "parquet")}
    if names and (CARD not in names or not names <= ours):
        other = min(names - ours, default=CARD)
        raise UsageError(f"folder {path} holds {other!r}, so it is not an earlier export; choose a new folder")


def _swap(new: Path, path: Path) -> None:
    """Moves the folder to its place; an earlier one is moved aside first and deleted afterwards."""
    aside = None
    if path.exists():
        aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
        path.replace(aside)
    try:
        new.replace(path)
    except OSError:
        if aside:
            aside.replace(path)
        raise
    if aside:
        shutil.rmtree(aside, ignore_errors=True)
