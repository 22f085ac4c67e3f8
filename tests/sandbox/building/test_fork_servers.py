"""Servers that fork, by the example of compilations: used again, replaced, ended with what they do; what a child has open."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.compiler import Cancelled, Compiled, Compiler
from cudal2_agent.sandbox.workers.fork_servers import ForkServers
from cudal2_agent.sandbox.workers.process import Limits
from tests.sandbox.building.build_kernels import NAIVE, candidate
from tests.sandbox.building.test_compiler import ENDLESS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")

# A server whose children say what they have open and where they are, in place of compiling.
TELLING = """
import os, sys
from cudal2_agent.sandbox.building import compile_child
def tell(request, _):
    print(sorted(int(number) for number in os.listdir("/proc/self/fd")), os.readlink("/proc/self/fd/0"))
    print(os.getcwd() == os.environ["HOME"] == os.environ["TMPDIR"], request["word"])
    return 7
compile_child._compile = tell
sys.exit(compile_child.serve())
"""
ENDLESS_RUN = """
import sys
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.building.compiler import Compiler
from tests.sandbox.building.build_kernels import candidate
from tests.sandbox.building.test_compiler import ENDLESS
Compiler(CompileOptions(cache_dir=sys.argv[1])).compile(candidate(ENDLESS), Arch.SM_90A)
"""


def below(pid: int) -> list[int]:
    """The ids of all processes below one."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(folder.name), *below(int(folder.name))]
    return found


def eventually(holds: Callable[[], bool], limit_s: float = 20.0) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(CompileOptions(cache_dir=str(tmp_path / "cache")))


def test_a_server_is_used_again_and_replaced_when_it_died(compiler: Compiler) -> None:
    servers: list[int] = []
    for number in range(4):
        assert isinstance(compiler.compile(candidate(f"// {number}\n{NAIVE}"), Arch.SM_90A), Compiled)
        [server] = compiler._servers._idle
        servers.append(server.process.pid)
        if number == 1:
            server.process.kill()
            server.process.wait()
    assert servers[0] == servers[1] != servers[2] == servers[3]
    compiler.close()
    assert not any(alive(pid) for pid in servers)


def test_cancelling_ends_the_server_and_its_child(compiler: Compiler) -> None:
    cancel, before = threading.Event(), set(below(os.getpid()))

    def cancel_both() -> None:
        assert eventually(lambda: len(set(below(os.getpid())) - before) == 2)
        cancel.set()

    thread = threading.Thread(target=cancel_both)
    thread.start()
    with pytest.raises(Cancelled):
        compiler.compile(candidate(ENDLESS), Arch.SM_90A, cancel)
    thread.join()
    assert set(below(os.getpid())) <= before
    assert not compiler._servers._idle


def test_servers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ENDLESS_RUN, str(tmp_path)])
    assert eventually(lambda: len(below(killed.pid)) == 2)
    family = below(killed.pid)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert eventually(lambda: not any(alive(pid) for pid in family))


def test_a_child_has_nothing_of_its_server_open(tmp_path: Path) -> None:
    """It could answer in the server's name, or read the next order."""
    servers = ForkServers("none")
    servers.command = (sys.executable, "-c", TELLING)
    for word in ("first", "second"):
        ended = servers.run({"word": word}, scratch=tmp_path, limits=Limits(wall_s=60))
        assert (ended.returncode, ended.ended_by) == (7, "itself")
        said = ended.stderr.decode().splitlines()
        assert said[0] == "[0, 1, 2, 3] /dev/null"  # 3 is the listing's own
        assert said[1] == f"True {word}"
    servers.close()
