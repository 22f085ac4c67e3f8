"""Child processes under limits: each test's child misbehaves in one way."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.sandbox.workers.process import ChildExit, Limits, child_environment, network_isolated, run

LIMITS = Limits(wall_s=20)


def python(code: str, scratch: Path, limits: Limits = LIMITS, **changes: object) -> ChildExit:
    return run([sys.executable, "-c", code], scratch=scratch, limits=limits, **changes)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_gone_soon(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


def test_output_status_and_input_come_through(tmp_path: Path) -> None:
    ended = python("import sys; print(sys.stdin.read()); print('log', file=sys.stderr); sys.exit(3)", tmp_path, stdin=b"hello")
    assert (ended.returncode, ended.stdout, ended.stderr, ended.ended_by) == (3, b"hello\n", b"log\n", "itself")


def test_the_wall_clock_ends_the_whole_group(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)"
    )
    ended = python(code, tmp_path, Limits(wall_s=2))
    assert ended.timed_out
    assert ended.ended_by == "wall-clock"
    assert ended.seconds < 10
    assert is_gone_soon(int(ended.stdout))


def test_what_a_child_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True)"
    )
    ended = python(code, tmp_path)
    assert ended.ended_by == "itself"
    assert ended.seconds < 10
    assert is_gone_soon(int(ended.stdout))


def test_a_child_that_closes_its_streams_is_still_watched(tmp_path: Path) -> None:
    ended = python("import os, time; os.close(1); os.close(2); time.sleep(60)", tmp_path, Limits(wall_s=1))
    assert ended.ended_by == "wall-clock"


def test_the_cpu_limit_counts_as_a_time_out(tmp_path: Path) -> None:
    ended = python("while True: pass", tmp_path, Limits(wall_s=60, cpu_s=1))
    assert ended.timed_out
    assert ended.seconds < 30


def test_memory_is_limited(tmp_path: Path) -> None:
    ended = python("x = bytearray(2**31)", tmp_path, Limits(wall_s=20, memory_bytes=2**30))
    assert ended.returncode != 0
    assert b"MemoryError" in ended.stderr


def test_files_are_limited(tmp_path: Path) -> None:
    ended = python("open('big', 'wb').write(b'x' * 2**22)", tmp_path, Limits(wall_s=20, file_bytes=2**20))
    assert ended.returncode != 0
    assert (tmp_path / "big").stat().st_size <= 2**20


def test_a_flood_of_output_is_cut_and_does_not_block(tmp_path: Path) -> None:
    ended = python(
        "import sys\nfor _ in range(200): sys.stdout.write('x' * 100_000)", tmp_path, Limits(wall_s=30, output_bytes=1000)
    )
    assert ended.returncode == 0
    assert ended.stdout == b"x" * 1000


def test_input_that_nobody_reads_does_not_block(tmp_path: Path) -> None:
    assert python("pass", tmp_path, stdin=b"x" * 2**22).returncode == 0


def test_another_thread_can_cancel(tmp_path: Path) -> None:
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    ended = python("import time; time.sleep(60)", tmp_path, cancel=cancel)
    assert ended.ended_by == "cancel"
    assert not ended.timed_out
    assert ended.seconds < 10


def test_no_secret_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "CUDAL2_STORE", "LD_PRELOAD"):
        monkeypatch.setenv(name, "do-not-tell")
    ended = python("import os; print(dict(os.environ), os.getcwd())", tmp_path)
    assert b"do-not-tell" not in ended.stdout
    assert str(tmp_path).encode() in ended.stdout
    assert child_environment(tmp_path)["HOME"] == str(tmp_path)


def test_a_child_has_a_name_where_the_list_of_users_is_hidden(tmp_path: Path) -> None:
    """`torch.compile` asks for one; in a jail its number is in no list."""
    code = "import getpass, pwd; pwd.getpwuid = lambda _: {}[0]; print(getpass.getuser())"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "worker"


def test_no_open_file_is_inherited(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    listing = (
        "from pathlib import Path\n"
        "print([str(link.readlink()) for link in Path('/proc/self/fd').iterdir() if link.is_symlink()])"
    )
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)
        ended = python(listing, tmp_path)
    assert ended.returncode == 0
    assert b"secret" not in ended.stdout


@pytest.mark.parametrize("given", [True, False])
def test_the_kernel_log_is_left_open_where_it_is_asked_for(tmp_path: Path, given: bool) -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("this user may not read the kernel's log")
    code = "import os\ntry: print(os.fstat(9).st_rdev)\nexcept OSError as exc: print(exc.strerror)"
    ended = python(code, tmp_path, Limits(wall_s=20, kernel_log=given))
    assert ended.stdout.decode().strip() == (str(os.makedev(1, 11)) if given else "Bad file descriptor")


def test_there_is_no_network(tmp_path: Path) -> None:
    if not network_isolated():
        pytest.skip("this system refuses network namespaces")
    names = python("import socket; print([name for _, name in socket.if_nameindex()])", tmp_path)
    assert names.stdout in (b"['lo']\n", b"[]\n")


def test_no_core_is_dumped(tmp_path: Path) -> None:
    ended = python("import resource; print(resource.getrlimit(resource.RLIMIT_CORE))", tmp_path)
    assert ended.stdout == b"(0, 0)\n"


def test_a_missing_program_is_our_fault(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="no such program"):
        run(["no-such-program"], scratch=tmp_path, limits=LIMITS)


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cudal2_agent.sandbox.workers.process import Limits, run\n"
        'child = \'import os, time; open("pid", "w").write(str(os.getpid())); time.sleep(60)\'\n'
        "run([sys.executable, '-c', child], scratch=Path(sys.argv[1]), limits=Limits(wall_s=60))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=child_environment(tmp_path))
    try:
        deadline = time.monotonic() + 20
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        pid = int((tmp_path / "pid").read_text())
        assert is_alive(pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert is_gone_soon(pid)
