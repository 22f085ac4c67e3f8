"""Damages the files that a stranger may hand over, and reads them: `python -m tests.fuzz.files TARGET... --seconds 180`.

`TARGET` is a name in `tests/fuzz/readers.py`, or `all`. Each has a process of its own, which is watched while it reads:

- an exception that is not of the product's error tree is a finding, and so is a read of more than `SLOW_S`;
- nothing may be written outside the folder of the file and the home, no program may run but git, no connection may be made;
- the process may not take more than 1 GB.

A file that reaches a line that no file before it reached is damaged further. A finding is kept with its traceback, and `--only
FILE` reads it again. Equal seeds give equal files. The last line of a target says how many files were read, how many were
accepted, and what share of the lines of its sources was reached.
"""

import argparse
import dis
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from cudal2_agent.contract.errors import Cudal2Error
from tests.fuzz.readers import ROOT, TARGETS, Target

MOST_BYTES = 1 << 30
SLOW_S = 20  # of processor time; of wall-clock time 15 times as much
_KEPT = 400  # files that are damaged further
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "shutil.rmtree",
}


class Outside(BaseException):
    """A reader did what no reader may. It is no Exception, so that none of them swallows it."""


class Lines:
    """The lines of some sources that were reached; `reached` grows while it is traced."""

    def __init__(self, sources: tuple[str, ...]) -> None:
        self._prefixes = tuple(str(ROOT / source) for source in sources)
        self.reached: set[tuple[str, int]] = set()
        self._files: dict[str, bool] = {}

    @contextmanager
    def traced(self) -> Iterator[None]:
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)

    def share(self) -> float:
        files = [path for prefix in self._prefixes for path in ROOT.rglob("*.py") if str(path).startswith(prefix)]
        lines = {(str(path), line) for path in files for line in _lines_of(compile(path.read_text("utf-8"), str(path), "exec"))}
        reached = {(os.path.realpath(name), line) for name, line in self.reached}
        return len(lines & reached) / max(1, len(lines))

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002 (as sys.settrace calls it)
        name = frame.f_code.co_filename
        wanted = self._files.get(name)
        if wanted is None:
            wanted = self._files[name] = os.path.realpath(name).startswith(self._prefixes)
        return self._line if wanted else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002
        self.reached.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def _lines_of(code: CodeType) -> set[int]:
    """The lines within functions; those of a module are reached when it is imported."""
    found = set() if code.co_name == "<module>" else {line for _, line in dis.findlinestarts(code) if line}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _lines_of(constant)
    return found


class Watch:
    """What a process does while `active`: writes outside its folders, programs and connections raise `Outside`."""

    def __init__(self, *folders: Path) -> None:
        self._folders = tuple(os.path.realpath(folder) for folder in folders)
        self.active = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if (
            (
                event == "open"
                and isinstance(arguments[0], str | bytes)
                and isinstance(arguments[2], int)
                and arguments[2] & _WRITES
            )
            or event in _CHANGES
            and isinstance(arguments[0], str | bytes)
        ):
            self._inside(event, arguments[0])
        elif event in ("os.system", "os.exec", "os.posix_spawn", "socket.connect"):
            raise Outside(f"{event} {arguments}")
        elif event == "subprocess.Popen" and not any(str(word).endswith("/git") for word in arguments[1]):
            raise Outside(f"{event} {arguments[1]}")

    def _inside(self, event: str, path: str | bytes) -> None:
        place = os.path.realpath(os.fsdecode(path))
        if not place.startswith(self._folders) and not place.startswith(("/dev/null", "/proc/")) and "__pycache__" not in place:
            raise Outside(f"{event} {place}")


class Reader:
    """One target in this process. `home`: the only folder that it may write to."""

    def __init__(self, target: Target, home: Path, *, traced: bool) -> None:
        self._target, self._home = target, home
        os.environ |= {
            "CUDAL2_HOME": str(home / "home"),
            "HOME": str(home),
            "TMPDIR": str(home),
            "CUDAL2_API_KEY": "a-key-that-is-secret",
        }
        tempfile.tempdir = str(home)
        os.chdir(home)
        self._watch = Watch(home)
        self.lines = Lines(target.sources) if traced else None
        signal.signal(signal.SIGALRM, self._late)
        signal.signal(signal.SIGPROF, self._late)

    def read(self, content: bytes) -> tuple[str, str]:
        """`accepted`, `refused` or `finding`, and what was said."""
        with tempfile.TemporaryDirectory(dir=self._home, ignore_cleanup_errors=True) as folder:
            path = Path(folder, self._target.name)
            path.write_bytes(content)
            os.chdir(folder)
            before = _peak_bytes()
            signal.alarm(15 * SLOW_S)
            signal.setitimer(signal.ITIMER_PROF, SLOW_S)
            self._watch.active = True
            try:
                if self.lines is None:
                    self._target.read(path)
                else:
                    with self.lines.traced():
                        self._target.read(path)
                answer = "accepted", ""
            except Cudal2Error as exc:
                answer = "refused", str(exc)
            except BaseException:  # noqa: BLE001 (whatever it is, it is a finding)
                return "finding", traceback.format_exc()
            finally:
                self._watch.active = False
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
                os.chdir(self._home)
        if before <= MOST_BYTES < _peak_bytes():
            return "finding", "more than 1 GB of memory"
        return answer

    @staticmethod
    def _late(*_: object) -> None:
        raise Outside(f"more than {SLOW_S} s")


def _peak_bytes() -> int:
    """Of this program alone: `getrusage` also counts what the parent held when it started the child."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def fuzz(name: str, seconds: float, seed: int, findings: Path) -> int:
    """Read damaged files for some time. The exit code is 1 where there was a finding."""
    target, rng = TARGETS[name], random.Random(f"{name} {seed}")
    kept, counts, seen = list(target.starts()), dict.fromkeys(("accepted", "refused", "finding"), 0), set[str]()
    own = len(kept)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as home:
        reader = Reader(target, Path(home).resolve(), traced=True)
        assert reader.lines is not None
        for content in kept:
            assert (answer := reader.read(content))[0] == "accepted" or name in ("reply", "checkout"), answer
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start = kept[rng.randrange(own)] if rng.random() < 0.4 else rng.choice(kept)
            content = target.damage(start, rng)
            before = len(reader.lines.reached)
            fate, said = reader.read(content)
            counts[fate] += 1
            if fate == "finding" and (gist := _gist(said)) not in seen:
                seen.add(gist)
                findings.mkdir(parents=True, exist_ok=True)
                (findings / f"{name}-{len(seen)}").write_bytes(content)
                (findings / f"{name}-{len(seen)}.txt").write_text(said, "utf-8", "replace")
                print(f"{name}: finding {len(seen)}: {gist[:300]}", flush=True)
            if len(reader.lines.reached) > before and len(content) < 1 << 18:
                kept = [*kept[:own], *kept[own:][-_KEPT:], content]
        share = reader.lines.share()
    peak = _peak_bytes() >> 20
    print(
        f"{name}: {sum(counts.values()):,} files in {seconds:.0f} s: "
        f"{counts['accepted']:,} accepted, {counts['refused']:,} refused, "
        f"{counts['finding']:,} findings of {len(seen)} kinds; {share:.0%} of the lines; {peak} MB",
        flush=True,
    )
    return 1 if seen else 0


def _gist(said: str) -> str:
    """What equal findings have in common: the error, and the last place of our own."""
    lines = said.strip().splitlines()
    places = [line.strip() for line in lines if "cudal2" in line and ", line " in line]
    return f"{lines[-1].split(':')[0]} {places[-1] if places else ''}" if places else lines[-1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.files", description=__doc__)
    parser.add_argument("targets", nargs="+", help=f"all, or some of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir(), "fuzz-findings"))
    parser.add_argument("--only", type=Path, help="read this file and no other")
    options = parser.parse_args()
    names = list(TARGETS) if options.targets == ["all"] else options.targets
    if options.only is not None:
        content = options.only.read_bytes()
        with tempfile.TemporaryDirectory(prefix="fuzz-") as home:
            print(*Reader(TARGETS[names[0]], Path(home).resolve(), traced=False).read(content))
        return 0
    if len(names) == 1:
        return fuzz(names[0], options.seconds, options.seed, options.findings.resolve())
    command = [sys.executable, "-m", "tests.fuzz.files", "--seconds", str(options.seconds), "--seed", str(options.seed)]
    command += ["--findings", str(options.findings)]
    return max(subprocess.call([*command, name]) for name in names)


if __name__ == "__main__":
    sys.exit(main())
