"""A home on a network file system: commands say in one line what to do, and with a local folder two machines share the home."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.run.state import open_checkpoints
from cudal2_agent.contract import file_system
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.sandbox.workers.turns import DeviceTurn
from cudal2_agent.store.store import open_store

ROOT = Path(__file__).resolve().parents[3]
RUNS = 3
# A machine: a process whose table of mounts is the test's. The first argument names that, the rest is a command line.
MACHINE = """
import sys
from pathlib import Path
from cudal2_agent.contract import file_system
file_system.MOUNTS = Path(sys.argv[1])
from cudal2_agent.agent.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def network_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that counts as one on NFS, mounted at the folder above it."""
    home = tmp_path / "shared" / "home"
    home.mkdir(parents=True)
    table = tmp_path / "mountinfo"
    table.write_text(
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
        f"90 27 0:50 / {home.parent.resolve()} rw,relatime shared:4 - nfs4 server:/home rw,vers=4.2\n"
    )
    monkeypatch.setattr(file_system, "MOUNTS", table)
    monkeypatch.setenv("CUDAL2_HOME", str(home))
    monkeypatch.delenv("CUDAL2_LOCAL", raising=False)
    monkeypatch.delenv("CUDAL2_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    return home


@pytest.mark.parametrize(
    "command",
    [
        "optimize --shape 64x64x64 --device none",
        "runs list",
        "index search wgmma",
        "index add 4.2.0",
        "trajectories stats",
        "campaign run --shapes 64x64x64 --gpus emulator",
        "campaign status",
        "library build --out library",
    ],
)
def test_a_command_that_would_lock_says_so_in_one_line(network_home: Path, command: str, capsys) -> None:
    assert main(command.split()) == 2
    error = capsys.readouterr().err.splitlines()[-1]  # `index add` tells its progress before
    assert error.startswith("error: ")
    assert f"would lie on a network file system (nfs4 at {network_home.parent})" in error
    assert "set CUDAL2_LOCAL to a folder on a local disk" in error
    assert not list(network_home.iterdir())


@pytest.mark.usefixtures("network_home")
def test_doctor_names_it_and_the_folder(tmp_path: Path, monkeypatch, capsys) -> None:
    def check() -> dict[str, object]:
        main(["doctor", "--json"])
        return next(one for one in json.loads(capsys.readouterr().out)["checks"] if one["name"] == "databases and locks")

    found = check()
    assert found["needed"]
    assert not found["ok"]
    assert "nfs4" in found["detail"]
    assert "CUDAL2_LOCAL" in found["remedy"]
    monkeypatch.setenv("CUDAL2_LOCAL", str(tmp_path / "disk"))
    assert check()["ok"]


def test_no_part_locks_there_whatever_names_the_place(network_home: Path) -> None:
    with pytest.raises(UsageError, match="CUDAL2_STORE to a PostgreSQL address"):
        open_store(f"sqlite:///{network_home / 'x.sqlite'}")
    with pytest.raises(UsageError, match="network file system"):
        open_store(f"sqlite:///file:{network_home / 'x.sqlite'}?uri=true")
    with pytest.raises(UsageError, match="network file system"), open_checkpoints(network_home / "checkpoints.sqlite"):
        pass
    with pytest.raises(UsageError, match="network file system"), DeviceTurn(str(network_home / "locks"), 0).taken():
        pass


def test_what_is_locked_lies_in_the_local_folder(network_home: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CUDAL2_LOCAL", str(tmp_path / "disk"))
    settings = load_settings()
    places = (settings.store_url, settings.checkpoint_path, settings.knowledge_dir, settings.locks_dir)
    assert all(str(tmp_path / "disk") in str(place) for place in (*places, settings.worker_options().turns))
    assert settings.runs_dir.is_relative_to(network_home)


def test_a_store_of_a_network_disk_can_be_merged(network_home: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    with monkeypatch.context() as local:
        local.setattr(file_system, "MOUNTS", Path("/no/such/file"))
        assert main(["optimize", "--shape", "64x64x64", "--device", "none", "--budget", "1", "--no-knowledge"]) == 0
    monkeypatch.setenv("CUDAL2_LOCAL", str(tmp_path / "disk"))
    assert main(["trajectories", "merge", str(network_home / "trajectories.sqlite")]) == 0
    capsys.readouterr()
    assert main(["runs", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


@pytest.mark.slow
def test_two_machines_on_one_home_lose_nothing(network_home: Path, tmp_path: Path) -> None:
    """They share the compile cache and the runs' folder, which are written whole; each has its own databases and locks."""
    command = ["optimize", "--shape", "64x64x64", "--device", "emulator", "--budget", "2", "--no-knowledge"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDAL2_HOME": str(network_home)}
    for _ in range(RUNS):
        machines = [
            subprocess.Popen(
                [sys.executable, "-c", MACHINE, str(file_system.MOUNTS), *command],
                env={**environment, "CUDAL2_LOCAL": str(tmp_path / f"disk{number}")},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for number in range(2)
        ]
        said = [machine.communicate(timeout=300)[0].decode() for machine in machines]
        assert [machine.returncode for machine in machines] == [0, 0], said
    assert len(list((network_home / "runs").iterdir())) == 2 * RUNS
    assert not list(network_home.rglob("*.sqlite*"))
    for number in range(2):
        for name in ("trajectories.sqlite", "checkpoints.sqlite"):
            with closing(sqlite3.connect(tmp_path / f"disk{number}" / name)) as database:
                assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        with open_store(f"sqlite:///{tmp_path / f'disk{number}' / 'trajectories.sqlite'}") as store:
            runs = list(store.runs())
            assert len(runs) == RUNS
            assert [len(store.steps(run.run_id)) for run in runs] == [2] * RUNS
