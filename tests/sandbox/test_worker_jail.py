"""What workers may touch: every test is one thing that a worker tries in its own jail."""

import sys
from pathlib import Path

import pytest

from contract.options import WorkerOptions
from contract.settings import Settings
from sandbox.jail.kind import confinement
from sandbox.worker_jail import emulator_jail, gpu_jail
from tests.sandbox.jail.attempts import attempt

pytestmark = pytest.mark.skipif(not confinement().landlock_abi, reason="this kernel has no Landlock")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def options(tmp_path: Path) -> WorkerOptions:
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache" / "kernel.ptx").write_text("x")
    return WorkerOptions(readable=(str(tmp_path / "cache"),))


def tries(tmp_path: Path) -> dict[str, str]:
    return {
        "cache": f"open({str(tmp_path / 'cache' / 'kernel.ptx')!r}).read()",
        "other": f"os.listdir({str(tmp_path)!r})",
        "passwd": "open('/etc/passwd').read()",
        "own": "open('own', 'w').write('x')",
        "into the cache": f"open({str(tmp_path / 'cache' / 'new')!r}, 'w')",
        "fork": "os.fork() or os._exit(0)",
        "socket": "import socket; socket.socket(socket.AF_UNIX).close()",
        "import": "import contract.task, json, sqlite3",
    }


def test_the_emulators_worker_writes_nothing_and_starts_nothing(tmp_path: Path, scratch: Path) -> None:
    outcome = attempt(tries(tmp_path), scratch, emulator_jail(options(tmp_path)))
    refused = {name: said for name, said in outcome.items() if said != "worked"}
    assert refused == dict.fromkeys(("other", "passwd", "own", "into the cache"), "EACCES") | {
        "fork": "EPERM",
        "socket": "EPERM",
    }


def test_a_gpus_worker_writes_to_its_scratch_and_cupys_cache(tmp_path: Path, scratch: Path) -> None:
    more = {"cupy": f"open({str(tmp_path / 'cupy' / 'new')!r}, 'w')", "null": "open('/dev/null', 'w').write('x')"}
    jail = gpu_jail(options(tmp_path), scratch, {"CUPY_CACHE_DIR": str(tmp_path / "cupy")})
    outcome = attempt(tries(tmp_path) | more, scratch, jail)
    refused = {name: said for name, said in outcome.items() if said != "worked"}
    assert refused == dict.fromkeys(("other", "passwd", "into the cache"), "EACCES")


def test_without_caches_to_read_every_file_stays_readable(tmp_path: Path, scratch: Path) -> None:
    outcome = attempt(tries(tmp_path) | {"cache": "pass"}, scratch, gpu_jail(WorkerOptions(), scratch, {}))
    assert (outcome["passwd"], outcome["own"]) == ("worked", "worked")
    assert (
        attempt({"it": f"open({str(tmp_path / 'new')!r}, 'w')"}, scratch, gpu_jail(WorkerOptions(), scratch, {}))["it"]
        == "EACCES"
    )


def test_another_interpreter_is_readable(scratch: Path) -> None:
    named = WorkerOptions(python=sys.executable, readable=())
    assert str(Path(sys.executable).parents[1]) in (gpu_jail(named, scratch, {}).read or ())


def test_the_settings_name_the_caches_and_not_the_store(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    readable = settings.worker_options().readable or ()
    assert any(Path(settings.compile_options().cache_dir).is_relative_to(folder) for folder in readable)
    assert not any((tmp_path / "trajectories.sqlite").is_relative_to(folder) for folder in readable)
