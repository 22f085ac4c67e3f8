"""A worker of this machine's GPU as one elsewhere: over a command's pipes, and for several agents through a folder."""

import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.wiring.remote import close_links
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.errors import ProfilerUnavailable
from cudal2_agent.contract.events import WorkerRestarted, ignore
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.sandbox.remote.remote_sandbox import RemoteSandbox
from tests.gpu.test_batches_gpu import ranked

pytestmark = pytest.mark.gpu
TASK = GemmTask(m=1024, n=1024, k=512, arch=Arch.SM_90A)
ROOT = Path(__file__).parents[2]


def worker(folder: Path, *flags: str) -> list[str]:
    program = [sys.executable, "-m", "cudal2_agent.agent.cli.main", "worker", "--device", "cuda:0"]
    return ["env", f"CUDAL2_HOME={folder}", f"PYTHONPATH={ROOT}", *program, *flags]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "near"))
    yield tmp_path
    close_links()


def settings_for(device: str) -> Settings:
    return load_settings(device=device)


def test_a_command_times_as_this_machine_does(home: Path) -> None:
    """A race elsewhere and one here, of the same kernels, give the same times within 5 %."""
    times = {}
    for name, device in (("here", "cuda:0"), ("there", f"exec:{shlex.join(worker(home / 'far'))}")):
        with open_sandbox_of(TASK.arch, settings_for(device), ignore) as sandbox:
            assert sandbox.can_measure
            built: list[Any] = ranked(sandbox, TASK, 0.0, 0.5)  # type: ignore[arg-type]
            assert all(isinstance(one, Measured) for _, one in sandbox.screen(built, TASK))
            times[name] = [statistics.median(one.timing.samples_us) for one in sandbox.race(built, TASK)]  # type: ignore[union-attr]
            assert sandbox.artifact(built[0])[:4] == b"\x7fELF"  # type: ignore[index]
            try:
                assert sandbox.profile(built[0], TASK).launches
            except ProfilerUnavailable as exc:
                print(exc)
    assert times["there"] == pytest.approx(times["here"], rel=0.05)


def test_a_worker_that_is_killed_costs_no_candidate(home: Path) -> None:
    events: list[Any] = []
    with open_sandbox_of(TASK.arch, settings_for(f"exec:{shlex.join(worker(home / 'far'))}"), events.append) as sandbox:
        assert isinstance(sandbox, RemoteSandbox)
        built: list[Any] = ranked(sandbox, TASK, 0.0, 0.3, 0.6)  # type: ignore[arg-type]
        outcomes = sandbox.screen(built, TASK)
        assert isinstance(next(outcomes)[1], Measured)
        sandbox._link._talk._process.kill()  # type: ignore[attr-defined]
        assert [type(one) for _, one in outcomes] == [Measured, Measured]
    assert len([one for one in events if isinstance(one, WorkerRestarted)]) == 1


def test_agents_of_one_folder_share_a_gpu_and_nothing_is_timed_beside_something_else(home: Path) -> None:
    """Times of four agents at once are those of one alone, and one worker serves all of their calls."""
    spool = home / "spool"
    serving = subprocess.Popen(
        worker(home / "far", "--spool", str(spool), "--once", "--idle", "20", "--json"), stdout=subprocess.PIPE
    )
    with open_sandbox_of(TASK.arch, settings_for(f"spool:{spool}"), ignore) as sandbox:
        built: list[Any] = ranked(sandbox, TASK, 0.0)  # type: ignore[arg-type]
        begin_s = time.monotonic()
        alone = sandbox.evaluate(built[0], TASK, "quick")
        alone_s = time.monotonic() - begin_s
        with ThreadPoolExecutor(4) as agents:
            together = list(agents.map(lambda _: sandbox.evaluate(built[0], TASK, "quick"), range(4)))
    assert isinstance(alone, Measured)
    for one in together:
        assert isinstance(one, Measured)
        assert one.time_us == pytest.approx(alone.time_us, rel=0.05)
    print(f"one call: {alone_s:.2f} s; {len(together)} more served together")
    assert serving.wait(60) == 0
