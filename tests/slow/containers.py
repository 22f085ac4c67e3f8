"""The product under the conditions of containers, made with namespaces, mounts and control groups. It needs root.

    python -m tests.slow.containers [CONDITION ...]

prints for each condition what a user reads. Nothing outside is changed: mounts lie in a mount namespace of their own, control
groups are removed at the end.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import cudal2_agent

ROOT = Path(cudal2_agent.__file__).resolve().parents[1]
GROUPS = Path("/sys/fs/cgroup")
LIMIT_S = 300
CLI = (sys.executable, "-m", "cudal2_agent.agent.cli.main")
RUN = ("optimize", "--shape", "128x128x128", "--device", "emulator", "--budget", "2")
COMMANDS = (
    ("doctor",),
    RUN,
    ("verify", str(ROOT / "tests/redteam/honest/annotated.cu"), "--shape", "128x128x128", "--device", "emulator"),
    ("index", "add", str(ROOT / "sandbox/include")),
    ("index", "search", "wgmma"),
)
STRANGER = 54321  # a user without a name
# Python may lie in root's own home, which a stranger may not enter: it is shown there again, alone.
OPEN_PYTHON = """
if [[ {prefix} == /root/* ]]; then
  mkdir -p {work}/python && mount --bind {prefix} {work}/python && mount -t tmpfs -o mode=755 tmpfs /root
  mkdir -p {prefix} && mount --bind {work}/python {prefix}
fi
"""
# Seccomp as container engines have it: no new user namespaces; an old kernel has no Landlock either.
SECCOMP = """
import ctypes, os, sys
from cudal2_agent.sandbox.jail import syscalls
steps = syscalls._steps(0, [272, 308, 444, 445, 446], processes=True)
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
program = syscalls._FilterProgram(len(steps), (syscalls._FilterStep * len(steps))(*steps))
assert not libc.syscall(317, 1, 0, ctypes.byref(program))
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class Condition:
    """`setup`: a shell script in a mount namespace, run as root before the command; `{work}`, `{home}`: folders.

    `launch`: what the command runs behind. `groups`: control group files by controller, of version 1 and 2.
    """

    name: str
    setup: str = ""
    launch: tuple[str, ...] = ()
    unshare: tuple[str, ...] = ("--mount", "--propagation", "private")
    variables: Mapping[str, str | None] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Said(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def last_error(self) -> str:
        return self.err.strip().splitlines()[-1] if self.err.strip() else ""


def quota(cpu: float) -> dict[str, dict[str, str]]:
    us = f"{cpu * 100000:.0f}"
    return {"cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": us, "cpu.max": f"{us} 100000"}}


AS_STRANGER = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")
READ_ONLY = "mount --bind {home} {home}; mount -o remount,ro,bind /"
CONDITIONS = (
    Condition("plain"),
    Condition(
        "no user namespaces",
        setup="echo 0 > /proc/sys/user/max_user_namespaces",
        unshare=("--user", "--map-root-user", "--mount"),
    ),
    Condition("no user namespaces and no Landlock", launch=(sys.executable, "-c", SECCOMP)),
    Condition("64 MB of /dev/shm", setup="mount -t tmpfs -o size=64m tmpfs /dev/shm"),
    Condition("no /dev/shm", setup="mount -t tmpfs -o ro tmpfs /dev/shm"),
    Condition("half a processor", groups=quota(0.5)),
    Condition("one processor by affinity", launch=("taskset", "-c", "0")),
    Condition(
        "TMPDIR without execution",
        setup="mkdir -p {work}/noexec; mount -t tmpfs -o noexec,mode=1777 tmpfs {work}/noexec",
        variables={"TMPDIR": "{work}/noexec"},
    ),
    Condition("a home without execution", setup="mount --bind {home} {home}; mount -o remount,noexec,bind {home}"),
    Condition("a read-only root, /tmp writable", setup=f"mount --bind {{work}}/tmp {{work}}/tmp; {READ_ONLY}"),
    Condition("a read-only root, only the home writable", setup=f"mount -o ro -t tmpfs tmpfs /dev/shm; {READ_ONLY}"),
    Condition("a read-only root, nothing writable", setup="mount -o ro -t tmpfs tmpfs /dev/shm; mount -o remount,ro,bind /"),
    Condition("no network", unshare=("--net", "--mount", "--propagation", "private")),
    Condition(
        "a user without a name, CUDAL2_HOME set",
        setup=f"{OPEN_PYTHON} chown {STRANGER} {{home}}",
        launch=AS_STRANGER,
        variables={"HOME": None},
    ),
    Condition(
        "a user without a home or a name",
        setup=OPEN_PYTHON,
        launch=AS_STRANGER,
        variables={"HOME": None, "CUDAL2_HOME": None},
    ),
    Condition(
        "a user with the home /nonexistent, CUDAL2_HOME set",
        setup=f"{OPEN_PYTHON} chown {STRANGER} {{home}}",
        launch=AS_STRANGER,
        variables={"HOME": "/nonexistent"},
    ),
    Condition(
        "a user with the home /nonexistent",
        setup=OPEN_PYTHON,
        launch=AS_STRANGER,
        variables={"HOME": "/nonexistent", "CUDAL2_HOME": None},
    ),
    Condition("at most 40 processes and threads", groups={"pids": {"pids.max": "40"}}),
    Condition("at most 8 processes and threads", groups={"pids": {"pids.max": "8"}}),
    Condition("1 GiB of memory", groups={"memory": {"memory.limit_in_bytes": str(1 << 30), "memory.max": str(1 << 30)}}),
    Condition("150 MiB of memory", groups={"memory": {"memory.limit_in_bytes": str(150 << 20), "memory.max": str(150 << 20)}}),
)


class Impossible(Exception):
    """This machine cannot make the condition."""


class Container:
    """A condition that commands run under."""

    def __init__(self, condition: Condition, work: Path, tasks: list[Path]) -> None:
        self._condition, self._work, self._tasks = condition, work, tasks
        self.home = work / "home"

    def run(self, *arguments: str) -> Said:
        """A command line of cudal2-agent, or another program where the first argument is a path."""
        command = arguments if arguments[0].startswith("/") else (*CLI, *arguments)
        places = {"work": self._work, "home": self.home, "prefix": Path(sys.base_prefix).resolve()}
        setup = self._condition.setup.format(**places)
        script = f'set -e\n{setup}\nexec "$@"' if setup else 'exec "$@"'
        joined = "".join(f'echo $$ > "{file}"; ' for file in self._tasks)
        inside = ("unshare", *self._condition.unshare, "bash", "-c", script, "-", *self._condition.launch, *command)
        done = subprocess.run(
            ["bash", "-c", f'{joined}exec "$@"', "-", *inside],
            env=self._environment(places),
            cwd=self._work / "cwd",
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        return Said(done.returncode, done.stdout.decode(), done.stderr.decode())

    def _environment(self, places: Mapping[str, Path]) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        given = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "CUDAL2_HOME": str(self.home), "HOME": str(self.home)}
        given |= {"TMPDIR": str(self._work / "tmp"), **self._condition.variables}
        return kept | {name: value.format(**places) for name, value in given.items() if value is not None}


@contextmanager
def container(condition: Condition) -> Iterator[Container]:
    """Raises: Impossible."""
    if os.geteuid() or not shutil.which("unshare"):
        raise Impossible("namespaces and mounts need root and unshare")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cudal2-container-", dir="/tmp")))
        work.chmod(0o755)
        for name in ("home", "tmp", "cwd"):
            (work / name).mkdir()
            (work / name).chmod(0o1777 if name != "home" else 0o755)
        tasks = [stack.enter_context(_group(controller, files)) for controller, files in condition.groups.items()]
        yield Container(condition, work, tasks)


@contextmanager
def _group(controller: str, files: Mapping[str, str]) -> Iterator[Path]:
    """A control group, of whichever version this machine has: the file that takes its members."""
    first = (GROUPS / controller).is_dir()
    if not first and controller not in _text(GROUPS / "cgroup.subtree_control").split():
        raise Impossible(f"no control group for {controller} can be made here")
    folder = (GROUPS / controller if first else GROUPS) / f"cudal2-{os.getpid()}-{controller}"
    try:
        folder.mkdir()
        for name, value in files.items():
            if (folder / name).exists():
                (folder / name).write_text(value)
    except OSError as exc:
        raise Impossible(f"a control group for {controller} is refused: {exc.strerror}") from exc
    try:
        yield folder / ("tasks" if first else "cgroup.procs")
    finally:
        for _ in range(50):
            try:
                folder.rmdir()
                break
            except OSError:  # its last process is still ending
                time.sleep(0.1)


def _text(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the product under the conditions of containers.")
    parser.add_argument("conditions", nargs="*", default=[one.name for one in CONDITIONS])
    wanted = parser.parse_args().conditions
    for condition in (one for one in CONDITIONS if one.name in wanted):
        print(f"## {condition.name}", flush=True)
        try:
            with container(condition) as here:
                for arguments in COMMANDS:
                    said = here.run(*arguments)
                    print(f"$ {' '.join(arguments)}   -> {said.code}\n{_shown(said)}", flush=True)
        except Impossible as exc:
            print(f"not possible here: {exc}")


def _shown(said: Said) -> str:
    lines = [
        line for line in (said.out + said.err).splitlines() if not line.startswith(("ok ", "step ", "round ", "  passed "))
    ]
    return "\n".join(f"    {line}" for line in lines)


if __name__ == "__main__":
    main()
