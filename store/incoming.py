"""What an import reads: the lines of a file, plain or compressed, and the records that they hold, whatever their form."""

import gzip
import hashlib
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, Protocol, cast

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import MAX_LINE_BYTES, parse_json, parse_record
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step, Trajectory
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store.packing import zstd
from cudal2_agent.store.plain_records import candidate_id
from cudal2_agent.store.steps import ExportedStep, export_steps, to_line


class IncomingStep(NamedTuple):
    """A step with what it was proposed from, and the exchanges that travel with it.

    `mark`: a hash of what its form holds of the step itself.
    """

    step: Step
    observation: Observation
    exchanges: tuple[Exchange, ...]
    mark: bytes


Incoming = RunRecord | IncomingStep
MARK_BYTES = 8


class LineReader(Protocol):
    """Reads the lines of one file. A run comes before its steps."""

    def read(self, line: bytes) -> list[Incoming]:
        """The records of a line. Raises: ValueError where the line is not one of this form."""
        ...

    def marks(self, trajectory: Trajectory) -> dict[int, bytes]:
        """Index → mark of the steps of a stored run, as this form would hold them."""
        ...


def mark_of(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=MARK_BYTES).digest()


class StepLineReader:
    """`LineReader` of the steps form."""

    def __init__(self) -> None:
        self._run_id: str | None = None

    def read(self, line: bytes) -> list[Incoming]:
        """Raises: ValueError for a line that is not a step, or whose candidate is not the one that it names."""
        exported = parse_record(ExportedStep, line)
        if exported.candidate_id not in (exported.candidate.id, candidate_id(parse_json(line)["candidate"])):
            raise ValueError(f"candidate_id {exported.candidate_id} is not the hash of the candidate: the line was changed")
        exported = exported.model_copy(update={"candidate_id": exported.candidate.id})  # as the store will hold it
        own = (exported.exchange,) if exported.exchange else ()
        step = IncomingStep(_step(exported), exported.observation, (*own, *exported.others), _mark(exported))
        if exported.run_id == self._run_id:
            return [step]
        self._run_id = exported.run_id
        return [_run(exported), step]

    def marks(self, trajectory: Trajectory) -> dict[int, bytes]:
        return {exported.index: _mark(exported) for exported in export_steps(trajectory)}


def _mark(exported: ExportedStep) -> bytes:
    """Without what an older version's line of the same step lacks."""
    return mark_of(to_line(exported.model_copy(update={"others": ()})))


def _step(exported: ExportedStep) -> Step:
    return Step(
        run_id=exported.run_id,
        index=exported.index,
        round=exported.round,
        observation_id=exported.observation.id,
        candidate=exported.candidate,
        evaluation=exported.evaluation,
        diagnosis=exported.diagnosis,
        profile=exported.profile,
        reward=exported.reward,
        seconds=exported.seconds,
        created_at=exported.created_at,
    )


def _run(first: ExportedStep) -> RunRecord:
    """The run of its first line. Lines do not hold how it ended, its best candidate and its settings.

    It counts as finished, so that nobody resumes it with settings that are not its own. Its settings are defaults, but for
    the seed, the policy of its first step, and the CUTLASS release, which is left empty.
    """
    policy = first.candidate.origin.policy
    return RunRecord(
        run_id=first.run_id,
        task=first.task,
        chip=first.chip,
        policy=policy,
        seed=first.seed,
        settings=RunSettings(seed=first.seed, policy=policy, cutlass=""),
        versions=first.versions,
        status="finished",
        created_at=first.created_at,
    )


STDIN = "-"
_ZSTD, _GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
_DAMAGED = (zstd.ZstdError, zlib.error, gzip.BadGzipFile, EOFError)


def lines_of(path: str) -> Iterator[bytes]:
    """The lines in order, without their line feeds. `path`: `-` is stdin.

    Raises: UsageError where the file cannot be read, is damaged or ends early, or has a line over `MAX_LINE_BYTES`.
    """
    try:
        with _opened(path) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise UsageError(f"{shown(path)} has a line over {MAX_LINE_BYTES // 1024**2} MiB; it is not an export")
                yield line.rstrip(b"\r\n")
    except _DAMAGED as exc:
        raise UsageError(f"{shown(path)} is damaged or incomplete ({exc}); nothing was imported: fetch the file again") from exc
    except OSError as exc:
        raise UsageError(f"{shown(path)} cannot be read ({exc.strerror or exc}); check its path and permissions") from exc


def shown(path: str) -> str:
    """The name in a message; a byte of it that is not UTF-8 is shown as a question mark."""
    return "stdin" if path == STDIN else path.encode("utf-8", "replace").decode()


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STDIN:
        yield _unpacked(sys.stdin.buffer)
        return
    with open(path, "rb") as file:
        yield _unpacked(file)


def _unpacked(file: BinaryIO) -> BinaryIO:
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, file))
    start = buffered.peek(len(_ZSTD))
    if start.startswith(_ZSTD):
        return cast(BinaryIO, zstd.ZstdFile(buffered))
    return cast(BinaryIO, gzip.GzipFile(fileobj=buffered)) if start.startswith(_GZIP) else buffered
