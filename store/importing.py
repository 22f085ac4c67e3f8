"""Imports exported files into a store: sweeps and steps, recognised by their first line. All files are one transaction."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import first_error, parse_json
from cudal2_agent.contract.records.trajectory import RunRecord
from cudal2_agent.store.incoming import (
    MARK_BYTES,
    Incoming,
    IncomingStep,
    LineReader,
    StepLineReader,
    lines_of,
    shown,
)
from cudal2_agent.store.store import Store, Writer
from cudal2_agent.store.sweep.sweep_lines import FORMAT
from cudal2_agent.store.sweep.sweep_reading import SweepReader

Progress = Callable[[str, int], None]  # called with the file and the number of steps read so far
_MAX_INDEX = 2**31
_MOST_EMPTY = 1000
_REPORT_EVERY = 256


class ImportSummary(Record):
    """What an import added. `known_steps`: steps that the store or an earlier file held already."""

    files: int
    runs: int
    steps: int
    exchanges: int
    known_steps: int


def import_files(store: Store, paths: Sequence[str], progress: Progress | None = None) -> ImportSummary:
    """Add the runs and steps of exported files. `paths`: files, or `-` for stdin.

    What is known already is left as it is, so that an import can be repeated, and pieces of a sweep come in any order.
    Raises: UsageError for a file that cannot be read, a line that is not valid, and a step or run that differs from the
    store's. StoreError where the store cannot be written. Nothing is imported then.
    """
    with store.batch() as batch:
        importing = _Import(store, batch)
        for path in paths:
            _import_file(importing, path, progress)
        return importing.summary(len(paths))


def _import_file(importing: "_Import", path: str, progress: Progress | None) -> None:
    """Raises: UsageError, which names the file and the line."""
    reader: LineReader | None = None
    empty = 0
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            empty += 1
            if empty > _MOST_EMPTY:  # an endless file, packed into a small one
                raise UsageError(f"{shown(path)} has more than {_MOST_EMPTY:,} empty lines; nothing was imported")
            continue
        try:
            if reader is None:
                reader = _reader_for(line)
                importing.read_by(reader)
            for incoming in reader.read(line):
                importing.add(incoming)
        except (ValueError, OverflowError) as exc:
            raise UsageError(f"{shown(path)}, line {number}: {_first_line(exc)}; nothing was imported") from exc
        if progress and number % _REPORT_EVERY == 0:
            progress(shown(path), importing.steps + importing.known_steps)
    if reader is None:
        raise UsageError(f"{shown(path)} is empty; nothing was imported")


def _reader_for(first: bytes) -> LineReader:
    plain = parse_json(first)
    if isinstance(plain, dict) and plain.get("format") == FORMAT:
        return SweepReader()
    if isinstance(plain, dict) and "schema_version" in plain:
        return StepLineReader()
    raise ValueError("neither a sweep nor steps; write such a file with `cudal2-agent trajectories export`")


def _first_line(exc: ValueError | OverflowError) -> str:
    if isinstance(exc, OverflowError):
        return "a number or a time is out of range"
    return first_error(exc) if isinstance(exc, ValidationError) else " ".join(str(exc).split())


class _KnownRun(NamedTuple):
    """A run that the store or an earlier file holds. `ended`: whether its record says when it ended. `marks`: packed."""

    form: type
    identity: str
    ended: bool
    marks: bytes


def _identity(run: RunRecord) -> str:
    """A hash of what decides whether two records are of one run."""
    return digest([run.task.model_dump(mode="json"), run.chip.model_dump(mode="json"), run.seed])


class _Import:
    """One transaction. It remembers the marks of each run's steps, packed, so that a million of them take 16 MB."""

    def __init__(self, store: Store, batch: Writer) -> None:
        self._store, self._batch = store, batch
        self._reader: LineReader | None = None
        self._run_id = ""
        self._known: _KnownRun | None = None
        self._marks: dict[int, bytes] = {}  # of the current run
        self._earlier: dict[str, _KnownRun] = {}
        self._observation_id = ""
        self.runs = self.steps = self.exchanges = self.known_steps = 0
        self._places: set[tuple[int, int, int]] = set()  # of the exchanges of the run

    def read_by(self, reader: LineReader) -> None:
        """The next records come from another file."""
        self._leave_run()
        self._reader = reader

    def add(self, incoming: Incoming) -> None:
        """Raises: ValueError where it cannot be stored, or differs from what is known."""
        if isinstance(incoming, RunRecord):
            self._enter_run(incoming)
        else:
            self._add_step(incoming)

    def summary(self, files: int) -> ImportSummary:
        return ImportSummary(
            files=files, runs=self.runs, steps=self.steps, exchanges=self.exchanges, known_steps=self.known_steps
        )

    def _enter_run(self, run: RunRecord) -> None:
        self._leave_run()
        run = run.travelled()
        known = self._earlier.get(run.run_id) or self._stored(run.run_id)
        if known is None:
            self._batch.start_run(run)
            self.runs += 1
            known = _KnownRun(type(self._reader), _identity(run), run.finished_at is not None, b"")
        self._check_run(known, run)
        if run.finished_at is not None and not known.ended:
            self._batch.update_run(run)
            known = known._replace(ended=True)
        self._run_id, self._known, self._observation_id = run.run_id, known, ""
        self._places.clear()
        self._marks = _unpacked(known.marks)

    def _stored(self, run_id: str) -> "_KnownRun | None":
        assert self._reader is not None
        try:
            run = self._store.run(run_id)
        except UsageError:
            return None
        marks = self._reader.marks(self._store.trajectory(run_id))
        return _KnownRun(type(self._reader), _identity(run), run.finished_at is not None, _packed(marks))

    def _check_run(self, known: "_KnownRun", run: RunRecord) -> None:
        if known.form is not type(self._reader):
            raise ValueError(f"run {run.run_id} is in a file of another form too; import one after the other")
        if known.identity != _identity(run):
            raise ValueError(
                f"run {run.run_id} has another task, chip or seed than the known run of that id; import it into another store"
            )

    def _leave_run(self) -> None:
        if self._known is not None:
            self._earlier[self._run_id] = self._known._replace(marks=_packed(self._marks))
        self._known = None

    def _add_step(self, incoming: IncomingStep) -> None:
        step = incoming.step
        if not (0 <= step.index < _MAX_INDEX and 0 <= step.round < _MAX_INDEX):
            raise ValueError(f"step {step.index} of run {step.run_id} has an index or a round out of range")
        known = self._marks.get(step.index)
        if known is None:
            self._record(incoming)
        elif known != incoming.mark:
            raise ValueError(f"step {step.index} of run {step.run_id} differs from the known one; import it into another store")
        else:
            self.known_steps += 1

    def _record(self, incoming: IncomingStep) -> None:
        step = incoming.step
        if step.observation_id != self._observation_id:
            self._batch.record_observation(step.run_id, incoming.observation)
            self._observation_id = step.observation_id
        self._batch.record_step(step)
        self._marks[step.index] = incoming.mark
        self.steps += 1
        for exchange in incoming.exchanges:
            if exchange.place not in self._places:  # several candidates of one reply
                self._places.add(exchange.place)
                self._batch.record_exchange(step.run_id, exchange)
                self.exchanges += 1


def _packed(marks: dict[int, bytes]) -> bytes:
    return b"".join(index.to_bytes(4, "big") + mark for index, mark in marks.items())


def _unpacked(packed: bytes) -> dict[int, bytes]:
    size = 4 + MARK_BYTES
    return {int.from_bytes(packed[at : at + 4], "big"): packed[at + 4 : at + size] for at in range(0, len(packed), size)}
