"""The filter of system calls: calls that fail in all threads of a child."""

import platform
import re
import subprocess
from pathlib import Path

import pytest

import cudal2_agent
from cudal2_agent.sandbox.jail import syscalls
from cudal2_agent.sandbox.jail.entering import Jail
from cudal2_agent.sandbox.jail.kind import confinement
from tests.sandbox.jail.attempts import CALLS, attempt, python

pytestmark = pytest.mark.skipif(not confinement().system_calls, reason="this system has no filter of system calls")

_CALL = (
    "import ctypes; libc = ctypes.CDLL(None, use_errno=True); ctypes.set_errno(0)\n"
    "if libc.syscall({number}, {arguments}) < 0: raise OSError(ctypes.get_errno(), '')"
)


def test_numbers_are_those_of_the_systems_headers() -> None:
    files = {0: Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), 1: Path("/usr/include/asm-generic/unistd.h")}
    present = {index: file for index, file in files.items() if file.is_file()}
    if not present:
        pytest.skip("the headers of the kernel's interface are not installed")
    calls = syscalls._ALWAYS | syscalls._SOCKETS | syscalls._PROCESSES | syscalls._PROGRAMS
    calls |= {"clone": syscalls._CLONE, "clone3": syscalls._CLONE3, "tgkill": syscalls._TGKILL, "prlimit64": syscalls._PRLIMIT}
    for index, file in present.items():
        known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read_text()))
        wrong = {name for name, numbers in calls.items() if numbers[index] and known.get(name) != str(numbers[index])}
        assert wrong == set()


@pytest.mark.parametrize("name", sorted(syscalls._ALWAYS))
def test_a_call_that_no_child_needs_fails(tmp_path: Path, name: str) -> None:
    """With arguments of zero an unfiltered call answers otherwise, or does nothing; EPERM alone is not the proof for root's."""
    number = syscalls._ALWAYS[name][syscalls._INDEX[platform.machine()]]
    code = _CALL.format(number=number, arguments="0, 0, 0, 0, 0, 0")
    assert attempt({"it": code}, tmp_path, Jail(write=(str(tmp_path),), layers=CALLS))["it"] == "EPERM"


def test_the_same_calls_are_refused_for_want_of_the_filter_alone(tmp_path: Path) -> None:
    """Without the filter these answer something else, so the test above can fail."""
    index = syscalls._INDEX[platform.machine()]
    tries = {
        name: _CALL.format(number=syscalls._ALWAYS[name][index], arguments="0, 0, 0, 0, 0, 0")
        for name in ("unshare", "process_vm_readv", "keyctl", "bpf", "io_uring_setup", "kcmp")
    }
    assert (
        "EPERM" not in {name: outcome for name, outcome in attempt(tries, tmp_path, None).items() if name == "unshare"}.values()
    )
    assert set(attempt(tries, tmp_path, None, network=True).values()) != {"EPERM"}


TRIES = {
    "fork": "pid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "os.execv('/bin/true', ['true'])",
    "socket": "import socket; socket.socket(socket.AF_UNIX)",
    "pair": "import socket; socket.socketpair()",
    "kill": "os.kill(os.getppid(), 0)",
    "limit": "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)",
    "own limit": "import resource; resource.prlimit(0, resource.RLIMIT_NOFILE)",
    "thread": "import threading; t = threading.Thread(target=print); t.start(); t.join()",
}
_INSIDE = "from cudal2_agent.sandbox.jail.syscalls import forbid; forbid(processes=False, programs=False, sockets=False)\n"


@pytest.mark.parametrize("name", TRIES)
def test_what_a_process_without_processes_can_do(tmp_path: Path, name: str) -> None:
    root = str(Path(cudal2_agent.__file__).resolve().parents[1])
    code = f"sys.path.append({root!r})\n{_INSIDE}{TRIES[name]}"
    expected = "worked" if name in ("own limit", "thread") else "EPERM"
    assert attempt({name: code}, tmp_path, None)[name] == expected


def test_threads_that_ran_before_are_held_too(tmp_path: Path) -> None:
    root = str(Path(cudal2_agent.__file__).resolve().parents[1])
    code = (
        f"import sys, os, threading; sys.path.append({root!r})\n"
        "go, said = threading.Event(), []\n"
        "def late():\n"
        "    go.wait()\n"
        "    try: os.fork() or os._exit(0)\n"
        "    except OSError as exc: said.append(exc.errno)\n"
        f"t = threading.Thread(target=late); t.start()\n{_INSIDE}go.set(); t.join(); print(said)"
    )
    assert python(code, tmp_path, None).stdout == b"[1]\n"


def test_abort_still_ends_a_process_as_an_abort(tmp_path: Path) -> None:
    root = str(Path(cudal2_agent.__file__).resolve().parents[1])
    ended = python(f"import sys, os; sys.path.append({root!r})\n{_INSIDE}os.abort()", tmp_path, None)
    assert ended.returncode == -6


def test_the_other_set_of_numbers_is_closed(tmp_path: Path) -> None:
    """x32: the same calls under other numbers."""
    if platform.machine() != "x86_64":
        pytest.skip("only x86-64 has it")
    code = _CALL.format(number=syscalls._X32 + 101, arguments="0, 0, 0, 0")
    assert attempt({"it": code}, tmp_path, Jail(write=(str(tmp_path),), layers=CALLS))["it"] == "EPERM"


def test_on_another_processor_it_says_that_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not syscalls.forbid(processes=False, programs=False, sockets=False)
    assert subprocess.run(["true"], check=True).returncode == 0
