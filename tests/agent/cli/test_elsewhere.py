"""The real verb `worker` behind a command and before a folder: a kernel is proved there on the emulator."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.wiring.remote import close_links

ROOT = Path(__file__).parents[3]
KERNEL = ROOT / "tests" / "sandbox" / "emulator" / "kernels" / "plain_tiled.cu"
SHAPE = ["--shape", "40x24x32", "--arch", "sm_80", "--seed", "3"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core is not built here"
    ),
]


@pytest.fixture
def worker(home: Path, tmp_path: Path) -> Iterator[list[str]]:
    """The command of a worker with a home of its own."""
    program = [sys.executable, "-m", "cudal2_agent.agent.cli.main", "worker", "--device", "emulator"]
    yield ["env", f"CUDAL2_HOME={tmp_path / 'far'}", f"PYTHONPATH={ROOT}", *program]
    close_links()
    assert not (home / "cache" / "compile").exists(), "nothing was compiled on this side"


def test_a_kernel_is_proved_behind_a_command(worker: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(KERNEL), *SHAPE, "--device", f"exec:{shlex.join(worker)}"]) == 0
    assert "plain_tiled.cu: verified by the emulator" in capsys.readouterr().out


def test_a_kernel_is_proved_through_a_folder(worker: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spool = tmp_path / "spool"
    serving = subprocess.Popen(
        [*worker, "--spool", str(spool), "--once", "--idle", "8", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert main(["verify", str(KERNEL), *SHAPE, "--device", f"spool:{spool}"]) == 0
    assert "plain_tiled.cu: verified by the emulator" in capsys.readouterr().out
    out, _ = serving.communicate(timeout=60)
    assert b'"calls":2' in out
    assert serving.returncode == 0
