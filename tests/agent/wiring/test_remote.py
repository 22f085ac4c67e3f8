"""The devices exec: and spool: as settings, flags and records name them; what opens, refuses and examines them."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.bench.published_files import read_trusted
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.learning.calibration.calibration_session import require_parts
from cudal2_agent.agent.wiring import remote, serving
from cudal2_agent.agent.wiring.gpus import default_arch
from cudal2_agent.agent.wiring.remote import close_links, is_remote, opening_of, settings_of
from cudal2_agent.agent.wiring.sandbox import device_of, open_sandbox_of, share_of
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.sandbox.remote.far_answers import MachineCheck
from cudal2_agent.sandbox.remote.spool_folder import SpoolFolder
from tests.doubles import CHIP, run_record
from tests.sandbox.remote.test_command_link import HELLO, OPENING, SCRIPT, Far
from tests.sandbox.remote.test_spool import WORKER


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield
    close_links()


def exec_device(folder: Path, *starts: str) -> str:
    folder.mkdir()
    Far(folder)  # writes the answers of the script
    return "exec:" + shlex.join([sys.executable, "-I", "-S", str(SCRIPT), str(folder), *starts])


@pytest.mark.parametrize("device", ["exec:", "exec:  ", "spool:", "ssh:gpu1", "exec"])
def test_a_device_without_a_command_or_a_folder_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match="device"):
        load_settings(device=device)


def test_the_working_folder_names_no_device_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may be a stranger's, and a device names a program."""
    for device in ("exec:rm -rf .", "spool:/tmp/x"):
        (tmp_path / "cudal2.toml").write_text(f'device = "{device}"\nbudget = 7\n')
        settings = load_settings()
        assert (settings.device, settings.budget) == ("auto", 7)
    assert "sets device" in caplog.messages[0]
    (tmp_path / "cudal2.toml").write_text('device = "emulator"\n')
    assert load_settings().device == "emulator"


def test_a_run_that_came_from_elsewhere_has_no_such_device() -> None:
    for device, kept in (("exec:rm -rf .", "auto"), ("cuda:3", "cuda:3")):
        run = run_record(settings={"device": device})
        assert run.travelled().settings.device == kept


def test_a_resumed_run_keeps_its_device() -> None:
    assert load_settings(device="exec:ssh gpu1 w").recorded().replayed()["device"] == "exec:ssh gpu1 w"


def test_a_command_with_a_slash_is_one_device() -> None:
    device = "exec:/usr/bin/ssh gpu1 /opt/cudal2-agent worker"
    assert device_of(device) == share_of(Settings(), device, 2).device == device
    assert (device_of("emulator/3"), is_remote("emulator")) == ("emulator", False)


def test_the_target_and_the_sandbox_share_one_worker(tmp_path: Path) -> None:
    device = exec_device(tmp_path / "far")
    assert default_arch(device) is HELLO.arch
    with open_sandbox_of(Arch.SM_90A, load_settings(device=device), ignore) as sandbox:
        assert sandbox.chip == CHIP
    with open_sandbox_of(Arch.SM_90A, load_settings(device=device), ignore):
        assert len(remote._links) == 1
    asked = (tmp_path / "far" / "asked.txt").read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["open", "close", "open", "close"]


def test_an_opening_has_limits_and_options_of_the_settings_and_nothing_else() -> None:
    near = load_settings(verify_timeout_s=7, compile_timeout_s=8, time_timeout_s=9, emulate_timeout_s=10, profile_timeout_s=11)
    opening = opening_of(Arch.SM_80, near, "waits", trust_host=True)
    far = settings_of(opening, load_settings(home=Path("/far"), verify_timeout_s=99, ncu="/far/ncu"))
    limits = (far.verify_timeout_s, far.compile_timeout_s, far.time_timeout_s, far.emulate.timeout_s, far.profiler.timeout_s)
    assert limits == (7, 8, 9, 10, 11)
    assert (str(far.home), far.profiler.ncu) == ("/far", "/far/ncu")


def test_host_files_need_the_trust_of_the_far_side() -> None:
    service = serving.service_of(load_settings(device="none"))
    with (
        pytest.raises(UsageError, match="start that worker with --trust-host"),
        service._open_local(
            OPENING.model_copy(update={"trust_host": True}),
            ignore,
            None,  # type: ignore[arg-type]
        ),
    ):
        pass


def test_a_worker_has_a_device_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--device", "exec:ssh gpu2 cudal2-agent worker"]) == 2
    assert "a worker has a device of its own machine" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--once"], ["--spool", "x"], ["--spool", "x", "--once", "--watch"], ["--watch"]])
def test_a_folder_is_served_once_or_watched(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", *flags]) == 2
    assert "one of --once and --watch" in capsys.readouterr().err


def test_what_needs_the_gpu_here_says_so() -> None:
    settings = load_settings(device="exec:ssh gpu1 cudal2-agent worker", trust_host=True)
    with pytest.raises(UsageError, match="run it there"):
        require_parts(settings)
    with pytest.raises(UsageError, match="run bench where the GPU is"):
        read_trusted([], settings.model_copy(update={"trust_host": True}))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--device", "cuda:0"], "write exec:COMMAND or spool:FOLDER"),
        (["--device", "spool:x", "--gpus", "0"], "leave out --gpus and --ray"),
    ],
)
def test_a_campaign_takes_devices_elsewhere_only(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["campaign", "run", "--shapes", "256x256x256", *flags]) == 2
    assert said in capsys.readouterr().err


def test_doctor_asks_the_far_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = remote.remote_checks(load_settings(device=exec_device(tmp_path / "far", "ends")))
    assert [(check.name, check.ok, check.needed) for check in ended] == [("worker elsewhere", False, True)]
    assert "Permission denied (publickey)" in ended[0].detail
    folder = SpoolFolder(tmp_path / "spool")
    folder.put_worker("gone", WORKER)
    monkeypatch.setattr(remote, "ANSWER_S", 0.1)
    [silent] = remote.remote_checks(load_settings(device=f"spool:{tmp_path / 'spool'}"))
    assert "no worker took a call within 0 s" in silent.detail


def test_checks_of_the_far_machine_are_listed_below_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.doubles import ScriptedSandbox
    from tests.sandbox.remote.through_json import CHECK, ThroughJson, service_over

    link: Any = ThroughJson(service_over(ScriptedSandbox()))
    monkeypatch.setattr(remote, "link_to", lambda *_: link)
    found = remote.remote_checks(load_settings(device="exec:ssh gpu1 cudal2-agent worker"))
    assert found[1:] == [CHECK.model_copy(update={"name": "  GPU"})]
    assert found[0] == MachineCheck(
        name="worker elsewhere", ok=True, needed=True, detail="exec:ssh gpu1 cudal2-agent worker answers", remedy="see below"
    )
