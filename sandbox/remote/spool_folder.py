"""The folder that agents and workers share: calls and answers as whole files.

    calls/KIND.NEED.MADE.ID.json   a call that waits
    taken/…                        the same file, once a worker has taken it: a rename, which one worker wins
    answers/ID.json                all answers of a call
    workers/NAME.json              a worker with its signs of life; it stays, marked as ended
    agents/NAME.json               an agent, whose calls are removed where its process is gone

Covered: files that appear whole or not at all; files of others, which are read within limits, as data, and only where they are
regular files; a folder that is full, read-only or gone, in one line.
Not covered: users who may write to the folder and lie. It should be the user's own (mode 700).
"""

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import Field

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import Cudal2Error, MachineError, UsageError
from cudal2_agent.contract.foreign import parse_record
from cudal2_agent.contract.records.evaluation import Environment
from cudal2_agent.contract.whole_file import whole_file
from cudal2_agent.sandbox.remote.calls import BuildCall, CallId, ExecuteCall, FarCall, ProfileCall, ProveCall
from cudal2_agent.sandbox.remote.far_answers import FarAnswer, OpenedAnswer, WorkerHello
from cudal2_agent.sandbox.remote.frames import MAX_FRAME_BYTES

PARTS = ("calls", "taken", "answers", "workers", "agents")
_EMULATOR = "emulator"
_CALL = re.compile(r"(build|work|other)\.([0-9a-z]{1,16})\.(\d{20})\.([0-9a-f]{32})\.json")
R = TypeVar("R", bound=Record)

# `work` has the GPU or the processors to itself: nothing is timed beside a proof.
Kind = Literal["build", "work", "other"]


class SpooledWorker(Record):
    """`beat`: changes while the worker lives. `worked_s`: its calls, with the seconds that it has worked on each."""

    hello: WorkerHello
    opened: OpenedAnswer
    beat: int = 0
    ended: bool = False
    worked_s: dict[CallId, float] = {}

    @property
    def need(self) -> str:
        return need_of(self.opened.environment)


class SpooledAgent(Record):
    host: str
    pid: int


class SpooledAnswers(Record):
    id: CallId
    answers: tuple[FarAnswer, ...] = Field(min_length=1)


class Waiting(NamedTuple):
    """A call that waits. Earlier ones come first."""

    made: str
    id: str
    kind: str
    need: str
    name: str


def need_of(environment: Environment | None) -> str:
    """Which workers may take a call: those of the same environment, or those of the emulator."""
    return _EMULATOR if environment is None else digest(environment.key, 16)


def kind_of(call: FarCall) -> Kind:
    if isinstance(call.deed, BuildCall):
        return "build"
    return "work" if isinstance(call.deed, ExecuteCall | ProveCall | ProfileCall) else "other"


class SpoolFolder:
    """Every method raises MachineError where the folder cannot be written."""

    def __init__(self, path: Path) -> None:
        """Raises: UsageError where the folder cannot be made, or everybody may write to it."""
        self.path = path.absolute()
        try:
            for part in PARTS:
                (self.path / part).mkdir(parents=True, exist_ok=True, mode=0o700)
            mode = self.path.stat().st_mode
        except OSError as exc:
            raise UsageError(f"spool folder {path} cannot be made or written: {exc.strerror}; choose another") from exc
        if mode & stat.S_IWOTH:
            raise UsageError(f"everybody may write to spool folder {path}, and forge answers; run: chmod go-w {path}")

    def put_call(self, call: FarCall, need: str) -> str:
        """The name of its file."""
        name = f"{kind_of(call)}.{need}.{time.time_ns():020d}.{call.id}.json"
        self._write("calls", name, call)
        return name

    def waiting(self) -> list[Waiting]:
        return sorted(Waiting(found[3], found[4], found[1], found[2], found[0]) for found in self._named("calls"))

    def take(self, name: str) -> FarCall | None:
        """A call that is now the caller's; None where another worker has it, or where the file is no call."""
        try:
            os.rename(self.path / "calls" / name, self.path / "taken" / name)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise self._unwritable(exc) from exc
        call = self._read(FarCall, "taken", name)
        if call is None or call.id != name.split(".")[3]:
            self.drop(name)
            return None
        return call

    def hand_back(self, name: str) -> None:
        """A call that was taken and not answered waits again."""
        with suppress(OSError):
            os.rename(self.path / "taken" / name, self.path / "calls" / name)

    def is_taken(self, name: str) -> bool:
        return (self.path / "taken" / name).exists()

    def drop(self, name: str) -> None:
        """Remove a call, wherever it is."""
        for part in ("calls", "taken"):
            with suppress(OSError):
                (self.path / part / name).unlink()

    def answer(self, answers: SpooledAnswers, name: str) -> None:
        self._write("answers", f"{answers.id}.json", answers)
        self.drop(name)

    def take_answers(self, call_id: str) -> SpooledAnswers | str | None:
        """The answers of a call, whose file is gone then; None where there are none yet, and why a file is none."""
        name = f"{call_id}.json"
        if not (self.path / "answers" / name).exists():
            return None
        found = self._read(SpooledAnswers, "answers", name)
        if found is None or found.id != call_id:
            return "what it answered is no record of this protocol"
        self.drop_answers(call_id)
        return found

    def drop_answers(self, call_id: str) -> None:
        with suppress(OSError):
            (self.path / "answers" / f"{call_id}.json").unlink()

    def put_worker(self, name: str, worker: SpooledWorker) -> None:
        self._write("workers", f"{name}.json", worker)

    def workers(self) -> dict[str, SpooledWorker | bytes]:
        """By name, the newest last; the bytes of one that another version wrote."""
        found: dict[str, SpooledWorker | bytes] = {}
        for path in sorted((self.path / "workers").glob("*.json"), key=_changed):
            content = _regular(path)
            if content is not None:
                found[path.stem] = _parsed(SpooledWorker, content) or content
        return found

    def forget_ended(self, hello: WorkerHello) -> None:
        """Remove earlier workers of a machine's device that have ended."""
        for name, worker in self.workers().items():
            if (
                isinstance(worker, SpooledWorker)
                and worker.ended
                and (worker.hello.host, worker.hello.device) == (hello.host, hello.device)
            ):
                with suppress(OSError):
                    (self.path / "workers" / f"{name}.json").unlink()

    @contextmanager
    def agent(self, name: str, agent: SpooledAgent, alive: "Alive") -> Iterator[None]:
        """An agent is here. Calls and answers of agents of this machine that are gone are removed."""
        for path in (self.path / "agents").glob("*.json"):
            other = self._read(SpooledAgent, "agents", path.name)
            if other is not None and other.host == agent.host and not alive(other.pid):
                self.forget(path.stem)
        self._write("agents", f"{name}.json", agent)
        try:
            yield
        finally:
            self.forget(name)

    def forget(self, agent: str) -> None:
        """Remove the calls and answers of an agent. The ids of its calls begin with its name."""
        for part in ("calls", "taken", "answers"):
            for path in (self.path / part).glob("*.json"):
                if path.name.split(".")[-2].startswith(agent):
                    with suppress(OSError):
                        path.unlink()
        with suppress(OSError):
            (self.path / "agents" / f"{agent}.json").unlink()

    def _named(self, part: str) -> Iterator[re.Match[str]]:
        try:
            names = os.listdir(self.path / part)
        except OSError as exc:
            raise self._unwritable(exc) from exc
        return (found for name in names if (found := _CALL.fullmatch(name)))

    def _read(self, kind: type[R], part: str, name: str) -> R | None:
        """None for what is no regular file or no such record."""
        content = _regular(self.path / part / name)
        return None if content is None else _parsed(kind, content)

    def _write(self, part: str, name: str, record: Record) -> None:
        try:
            with whole_file(self.path / part / name) as place:
                place.write_text(record.model_dump_json(), "utf-8")
        except OSError as exc:
            raise self._unwritable(exc) from exc

    def _unwritable(self, exc: OSError) -> MachineError:
        remedy = "make it writable or free some space, then go on with: cudal2-agent runs resume"
        return MachineError(f"spool folder {self.path} cannot be used: {exc.strerror}; {remedy}")


class Alive:
    """Whether a process of this machine runs."""

    def __call__(self, pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True


def _regular(path: Path) -> bytes | None:
    """The content of a regular file within limits; None for a pipe, a link, a folder, or one that is gone or too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            content = file.read(MAX_FRAME_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= MAX_FRAME_BYTES else None


def _parsed(kind: type[R], content: bytes) -> R | None:
    try:
        return parse_record(kind, content)
    except (ValueError, Cudal2Error, RecursionError):  # of a plan, the product's own error
        return None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
