"""The files of workers: every test is one operation that a worker tries in its jail."""

import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Unmeasured
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.jail.kind import confinement
from cudal2_agent.sandbox.local import open_sandbox
from cudal2_agent.sandbox.workers.pool import WorkerPool
from cudal2_agent.sandbox.workers.worker_jail import emulator_jail, gpu_jail
from tests.doubles import unmeasured
from tests.sandbox.jail.attempts import attempt

SCRIPT = str(Path(__file__).with_name("scripted_worker.py"))
needs_core = pytest.mark.skipif(
    find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core was not built here"
)

pytestmark = pytest.mark.skipif(not confinement().landlock_abi, reason="this kernel has no Landlock")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def options(tmp_path: Path) -> WorkerOptions:
    return WorkerOptions(readable=(str(tmp_path / "cache"),))


def tries(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache" / "kernel.ptx").write_text("x")
    return {
        "cache": f"open({str(tmp_path / 'cache' / 'kernel.ptx')!r}).read()",
        "other": f"os.listdir({str(tmp_path)!r})",
        "passwd": "open('/etc/passwd').read()",
        "own": "open('own', 'w').write('x')",
        "into the cache": f"open({str(tmp_path / 'cache' / 'new')!r}, 'w')",
        "fork": "os.fork() or os._exit(0)",
        "socket": "import socket; socket.socket(socket.AF_UNIX).close()",
        "import": "import cudal2_agent.contract.records.task, json, sqlite3",
    }


def test_the_emulators_worker_writes_nothing_and_starts_nothing(tmp_path: Path, scratch: Path) -> None:
    outcome = attempt(tries(tmp_path), scratch, emulator_jail(options(tmp_path)))
    refused = {name: said for name, said in outcome.items() if said != "worked"}
    assert refused == dict.fromkeys(("other", "passwd", "own", "into the cache"), "EACCES") | {
        "fork": "EPERM",
        "socket": "EPERM",
    }


def test_a_gpus_worker_writes_to_its_scratch_and_the_caches_of_what_compiles_in_it(tmp_path: Path, scratch: Path) -> None:
    more = {name: f"open({str(tmp_path / name / 'new')!r}, 'w')" for name in ("cupy", "torchinductor")}
    more |= {"null": "open('/dev/null', 'w').write('x')"}
    caches = {"CUPY_CACHE_DIR": str(tmp_path / "cupy"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torchinductor")}
    jail = gpu_jail(options(tmp_path), scratch, caches)
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


def test_a_cache_that_is_not_there_yet_is_made_and_readable(tmp_path: Path, scratch: Path) -> None:
    jail = emulator_jail(options(tmp_path))
    (tmp_path / "cache" / "later").mkdir()
    (tmp_path / "cache" / "later" / "kernel.ptx").write_text("x")
    code = f"open({str(tmp_path / 'cache' / 'later' / 'kernel.ptx')!r}).read()"
    assert attempt({"it": code}, scratch, jail) == {"it": "worked"}


def test_a_toolkit_that_the_environment_names_is_readable(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/apps/cuda/lib64::relative")
    readable = gpu_jail(WorkerOptions(readable=()), scratch, {}).read or ()
    assert "/apps/cuda/lib64" in readable
    assert "" not in readable
    assert "relative" not in readable


def test_installed_packages_are_readable_wherever_they_lie(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, own = tmp_path / "installed", tmp_path / "own"
    (installed / "some-1.0.dist-info").mkdir(parents=True)
    own.mkdir()
    for folder in (installed, own):
        (folder / "module.py").write_text("")
        monkeypatch.syspath_prepend(folder)
    code = {folder.name: f"open({str(folder / 'module.py')!r}).read()" for folder in (installed, own)}
    assert attempt(code, scratch, emulator_jail(options(tmp_path))) == {"installed": "worked", "own": "EACCES"}


def test_the_settings_name_the_caches_and_not_the_store(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    readable = settings.worker_options().readable or ()
    assert any(Path(settings.compile_options().cache_dir).is_relative_to(folder) for folder in readable)
    assert not any((tmp_path / "trajectories.sqlite").is_relative_to(folder) for folder in readable)


_CHOOSY = (
    "import os, runpy, sys\n"
    "if 'SANDBOX_JAILED' in os.environ: sys.exit('the driver wants more')\n"
    f"sys.argv = [{SCRIPT!r}, 'ready', *sys.argv[1:]]\n"
    f"runpy.run_path({SCRIPT!r}, run_name='__main__')\n"
)


def test_a_worker_that_does_not_start_in_its_jail_starts_without_one_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cudal2_agent.sandbox.workers.pool.BACK_OFF_S", 0.01)
    with closing(WorkerPool([WorkerOptions()], command=[sys.executable, "-P", "-c", _CHOOSY])) as pool:
        assert pool.ready().environment
    [warning] = caplog.messages
    assert "runs without a jail:" in warning
    assert "the driver wants more" in warning


@needs_core
def test_the_emulators_worker_proves_a_kernel_in_its_jail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only programs and the compile cache are readable; a worker without a jail would warn."""
    compiled = CompileOptions(cache_dir=str(tmp_path / "cache" / "compile"))
    task = GemmTask(m=40, n=24, k=32, arch=Arch.SM_80)
    common = {"quick": TimeOptions(), "full": TimeOptions(), "predict": lambda *_: unmeasured(1.0).prediction}
    with closing(
        open_sandbox(
            arch=task.arch,
            device="emulator",
            compile_options=compiled,
            verify_options=VerifyOptions(),
            worker=options(tmp_path),
            emit=lambda _event: None,
            **common,
        )
    ) as sandbox:
        source = (Path(__file__).parents[1] / "emulator" / "kernels" / "plain_tiled.cu").read_text()
        [(_, built)] = sandbox.build([Candidate.from_source(source, Origin(policy="test"))], task)
        assert isinstance(built, Built)
        evaluation = sandbox.verify(built, task)
    assert isinstance(evaluation, Unmeasured), evaluation
    assert evaluation.verified_by == "emulator"
    assert caplog.messages == []
