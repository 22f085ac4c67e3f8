"""Writes sweep files: one, or numbered pieces that each hold all that their steps need."""

import glob
import itertools
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.evaluation import Environment, Measured
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step, Trajectory
from cudal2_agent.contract.whole_file import whole_file
from cudal2_agent.store.packing import zstd
from cudal2_agent.store.steps import exchanges_without_candidate
from cudal2_agent.store.sweep.sweep_lines import (
    SEEN_VERSION,
    VERSION,
    SweepAxes,
    SweepBaseline,
    SweepEnvironment,
    SweepExchange,
    SweepHeader,
    SweepLine,
    SweepRun,
    SweepSeen,
    SweepTimes,
    encoded,
)
from cudal2_agent.store.sweep.sweep_steps import compact, nanoseconds, reduced, whole

SUFFIX = ".sweep.zst"
MIN_PIECE_BYTES = 256 * 1024
_LEVEL = 17
_WINDOW_LOG = 23  # 8 MiB: about 300 sources, and what a reader needs of memory
_OPTIONS = {
    zstd.CompressionParameter.compression_level: _LEVEL,
    zstd.CompressionParameter.window_log: _WINDOW_LOG,
    zstd.CompressionParameter.enable_long_distance_matching: 1,
    zstd.CompressionParameter.checksum_flag: 1,
}
_BLOCK = 129 * 1024  # zstd holds back at most one block


class SweepOptions(Record):
    """`piece_bytes`: maximum size of a file; None writes one file."""

    piece_bytes: int | None = None


ONE_FILE = SweepOptions()


class SweepSummary(Record):
    """What was written. Runs without a step are left out."""

    files: tuple[str, ...]
    runs: int
    steps: int
    bytes: int


def export_sweep(trajectories: Iterable[Trajectory], target: Path, options: SweepOptions = ONE_FILE) -> SweepSummary:
    """Write the steps of trajectories to `target`, or to `NAME-000.sweep.zst`, `NAME-001.sweep.zst`, … beside it.

    A file appears once it is complete, and none without a step. A piece exceeds `piece_bytes` only if it holds a single step.
    Raises: UsageError where the target cannot be written, and for pieces smaller than `MIN_PIECE_BYTES`.
    """
    if options.piece_bytes is not None and options.piece_bytes < MIN_PIECE_BYTES:
        raise UsageError(f"pieces of {options.piece_bytes} bytes are too small; allow at least {MIN_PIECE_BYTES}")
    try:
        return _written(trajectories, target, options.piece_bytes)
    except OSError as exc:
        raise UsageError(f"{target} cannot be written ({exc.strerror}); choose another file with --out") from exc


def write_sweep(trajectories: Iterable[Trajectory], file: BinaryIO) -> int:
    """Write the steps of trajectories as one sweep file to an open stream; the number of steps. Raises: OSError."""
    piece = _SweepFile(file)
    for trajectory in trajectories:
        for seen in map(_Seen(trajectory).of, trajectory.steps):
            piece.add(piece.lines(trajectory.run, seen))
    piece.finish()
    return piece.steps


def _written(trajectories: Iterable[Trajectory], target: Path, piece_bytes: int | None) -> SweepSummary:
    steps = ((trajectory.run, seen) for trajectory in trajectories for seen in map(_Seen(trajectory).of, trajectory.steps))
    pending = next(steps, None)
    files: list[str] = []
    runs: set[str] = set()
    count = size = 0
    names = _piece_names(target) if piece_bytes is not None else iter([target])
    while pending is not None:
        path = next(names)
        with _whole(path) as file:
            piece = _SweepFile(file)
            while pending is not None:
                lines = piece.lines(*pending)
                if piece_bytes is not None and piece.steps and piece.bound(lines) > piece_bytes:
                    break
                piece.add(lines)
                runs.add(pending[0].run_id)
                pending = next(steps, None)
            piece.finish()
        files.append(str(path))
        count, size = count + piece.steps, size + piece.written
    return SweepSummary(files=tuple(files), runs=len(runs), steps=count, bytes=size)


class _SeenStep(NamedTuple):
    """A step, and of a run in which a model was asked what was seen and said. `exchanges`: those that travel with the step."""

    step: Step
    observation: Observation | None = None
    exchanges: tuple[Exchange, ...] = ()


class _Seen:
    """The steps of a trajectory with what was seen before them."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._observations = trajectory.observations if trajectory.exchanges else {}
        self._others = exchanges_without_candidate(trajectory)
        self._gave = {id_: one for one in trajectory.exchanges for id_ in one.candidate_ids}

    def of(self, step: Step) -> _SeenStep:
        gave = self._gave.get(step.candidate.id)  # again with each candidate of a reply: the next file may begin there
        exchanges = (*((gave,) if gave else ()), *self._others.get(step.index, ()))
        return _SeenStep(step, self._observations.get(step.observation_id), exchanges)


class _SweepFile:
    """One file: its header is written at once, and what a step refers to before the step. `written`: bytes in the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._compressor = zstd.ZstdCompressor(options=_OPTIONS)
        self._environments: dict[Environment, int] = {}
        self._axes: dict[tuple[str, ...], int] = {}
        self._run: RunRecord | None = None
        self._baselines: dict[tuple[str, int, str], int] = {}
        self._observation: Observation | None = None  # the last one that the file holds
        self._version: Literal[1, 2] = VERSION
        self.written = self.steps = 0
        self._write(encoded(SweepHeader(product=_product())))

    def lines(self, run: RunRecord, seen: _SeenStep) -> bytes:
        """The lines that a step takes here. They must be added next, or never."""
        step = reduced(seen.step, seen=seen.observation is not None)
        declared: list[SweepHeader | SweepLine] = []
        if run != self._run:
            self._run, self._baselines, self._observation = run, {}, None
            declared.append(SweepRun(run=run.travelled()))
        if seen.observation is not None and seen.observation is not self._observation:
            if self._version != SEEN_VERSION:
                self._version = SEEN_VERSION
                declared.append(SweepHeader(version=SEEN_VERSION, product=_product()))
            self._observation = seen.observation
            declared.append(SweepSeen(seen=whole(seen.observation)))
        declared += (SweepExchange(exchange=whole(exchange)) for exchange in seen.exchanges)
        axes = None
        if (schedule := step.candidate.origin.schedule) is not None:
            axes = _number(self._axes, tuple(schedule), SweepAxes(axes=tuple(schedule)), declared)
        measured = step.evaluation
        times = self._times(measured, declared) if isinstance(measured, Measured) else None
        return b"".join(encoded(line) for line in (*declared, compact(step, run, times, axes)))

    def bound(self, lines: bytes) -> int:
        """Maximum size of the file if it ended behind these lines."""
        return self.written + _BLOCK + len(lines) + len(lines) // 128

    def add(self, lines: bytes) -> None:
        self._write(lines)
        self.steps += 1

    def finish(self) -> None:
        self._append(self._compressor.flush())

    def _times(self, measured: Measured, declared: list[SweepHeader | SweepLine]) -> SweepTimes:
        where = measured.environment
        environment = _number(self._environments, where, SweepEnvironment(environment=where), declared)
        rows = []
        for timing in measured.baselines:
            line = SweepBaseline(baseline=timing.name, environment=environment, detail=timing.detail)
            number = _number(self._baselines, (timing.name, environment, timing.detail), line, declared)
            rows.append((number, *nanoseconds(timing)))
        return SweepTimes(environment=environment, samples=nanoseconds(measured.timing), baselines=tuple(rows))

    def _write(self, text: bytes) -> None:
        self._append(self._compressor.compress(text))

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self.written += len(data)


def _number(known: dict[Any, int], key: Hashable, line: SweepLine, declared: list[SweepHeader | SweepLine]) -> int:
    """The number of what a step refers to; the line that declares it is added where it is new."""
    if key not in known:
        known[key] = len(known)
        declared.append(line)
    return known[key]


def _product() -> str:
    try:
        return version("cudal2-agent")
    except PackageNotFoundError:
        return "unknown"


def _piece_names(target: Path) -> Iterator[Path]:
    """Raises: UsageError where pieces of another export would lie among these."""
    stem = target.name.removesuffix(".zst").removesuffix(".sweep")
    if there := sorted(path.name for path in target.parent.glob(f"{glob.escape(stem)}-[0-9]*{SUFFIX}")):
        raise UsageError(f"{target.parent} holds {there[0]} of an earlier export; remove its pieces or choose another --out")
    return (target.with_name(f"{stem}-{number:03}{SUFFIX}") for number in itertools.count())


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears once it is complete."""
    with whole_file(path) as temporary, temporary.open("wb") as file:
        yield file
