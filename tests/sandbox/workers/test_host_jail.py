"""Host libraries with forbidden operations, loaded in a worker's jail as a worker loads them, without a GPU."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cudal2_agent.contract.settings.options import WorkerOptions
from cudal2_agent.sandbox.jail.kind import confinement
from cudal2_agent.sandbox.workers.process import Limits, run
from cudal2_agent.sandbox.workers.worker_jail import gpu_jail

pytest.importorskip("cuda.bindings")
pytest.importorskip("cupy")

HERE = confinement()
pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
    pytest.mark.skipif(not (HERE.landlock_abi and HERE.system_calls), reason="this system has no Landlock or no filters"),
]

# Loads the library as the evaluator does, calls its entry and prints what it returned.
_WORKER = """
import sys
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.cuda.host import BoundHostKernel, HostFault, HostKernel
kernel = HostKernel("h", sys.argv[1], GemmTask(m=64, n=64, k=64), workspace_bytes=0)
try:
    BoundHostKernel(kernel._entry, (0, 0, 0, 1, 1, 1, None, 0)).enqueue(0)
    print("worked")
except HostFault as exc:
    print(exc)
"""
_HEAD = """
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
static void* nothing(void* x) { return x; }
int launch(const void* a, const void* b, void* d, int m, int n, int k, void* w, size_t bytes, void* stream) {
"""


def launched(tmp_path: Path, body: str, *, jailed: bool = True) -> str:
    """A worker's result of a host library with this body: `worked`, or the returned errno."""
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    for folder in (cache, scratch):
        folder.mkdir(exist_ok=True)
    (cache / "kernel.c").write_text(f"{_HEAD}{body}\n}}\n")
    library = cache / "kernel.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, cache / "kernel.c", "-lpthread"], check=True)
    options = WorkerOptions(readable=(str(cache),))
    jail = gpu_jail(options, scratch, {}) if jailed else None
    command = [sys.executable, "-P", "-c", _WORKER, str(library)]
    ended = run(command, scratch=scratch, limits=Limits(wall_s=60, jail=jail))
    return ended.stdout.decode().strip() or ended.stderr.decode()


@pytest.mark.parametrize(
    "body",
    [
        "pid_t p = fork(); if (p == 0) _exit(0); return p < 0 ? errno : 0;",
        "pid_t p = vfork(); if (p == 0) _exit(0); return p < 0 ? errno : 0;",
        'return system("true") == 0 ? 0 : EPERM;',
        'char* argv[] = {"true", 0}; execv("/bin/true", argv); return errno;',
        'return open("/etc/passwd", O_RDONLY) < 0 ? errno : 0;',
        'return open("{home}/secret", O_RDONLY) < 0 ? errno : 0;',
        'return open("{home}/new", O_WRONLY | O_CREAT, 0600) < 0 ? errno : 0;',
        'return open("{home}/secret", O_WRONLY) < 0 ? errno : 0;',
        'return open("{cache}/kernel.so", O_WRONLY) < 0 ? errno : 0;',
        'return unlink("{home}/secret") ? errno : 0;',
        'return rename("{home}/secret", "/tmp/taken") ? errno : 0;',
        'return symlink("/etc/passwd", "{home}/link") ? errno : 0;',
        'char p[64]; sprintf(p, "/proc/%d/mem", getppid()); return open(p, O_RDWR) < 0 ? errno : 0;',
        'char p[64]; sprintf(p, "/proc/%d/environ", getppid()); return open(p, O_RDONLY) < 0 ? errno : 0;',
        'return shm_open("/cudal2-test", O_RDWR | O_CREAT, 0600) < 0 ? errno : 0;',
        "return socket(AF_INET, SOCK_STREAM, 0) < 0 ? errno : 0;",
        "return socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? errno : 0;",
        "return kill(getppid(), 0) ? errno : 0;",
        "return ptrace(PTRACE_ATTACH, getppid(), 0, 0) ? errno : 0;",
    ],
)
def test_a_host_library_is_refused_what_is_not_its_own(tmp_path: Path, body: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "secret").write_text("x")
    body = body.replace("{home}", str(home)).replace("{cache}", str(tmp_path / "cache"))
    said = launched(tmp_path, body)
    assert said in ("launch() returned 1", "launch() returned 13"), said
    assert [path.name for path in home.iterdir()] == ["secret"]


@pytest.mark.parametrize(
    "body",
    [
        "return 0;",
        'int f = open("own", O_RDWR | O_CREAT, 0600); return f < 0 || write(f, "x", 1) != 1 ? errno : 0;',
        "pthread_t t; return pthread_create(&t, 0, nothing, 0) || pthread_join(t, 0);",
        "return mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;",
        'return open("/dev/null", O_RDWR) < 0 ? errno : 0;',
        'return open("/proc/self/maps", O_RDONLY) < 0 ? errno : 0;',
        'return open("/proc/cpuinfo", O_RDONLY) < 0 ? errno : 0;',
    ],
)
def test_a_host_library_keeps_what_launching_needs(tmp_path: Path, body: str) -> None:
    assert launched(tmp_path, body) == "worked"


def test_without_its_jail_a_worker_loads_no_host_library(tmp_path: Path) -> None:
    """A worker that cannot enter its jail runs without one, but refuses host candidates."""
    assert "jailed worker only" in launched(tmp_path, "return 0;", jailed=False)
