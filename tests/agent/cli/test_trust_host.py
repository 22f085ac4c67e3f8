"""Host candidates on the command line: refused unless trusted, and marked wherever they are shown."""

from pathlib import Path

import pytest

from cudal2_agent.agent.cli.files import FileResult, evaluate_files, read_candidate, unproven_of
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.cli.render.file_answer import print_times
from cudal2_agent.agent.wiring import doctor
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.candidate import UNPROVEN, HostCandidate, Origin
from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.sandbox.jail.kind import Confinement, confinement
from tests.doubles import TASK, measured, unmeasured
from tests.sandbox.building.build_kernels import HOST

WORDS = ["--shape", "64x64x64", "--arch", "sm_80", "--device", "none"]


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDAL2_NVCC", "/no/such/nvcc")  # reached only where the user trusts it
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "host.cu").write_text(HOST)
    return str(tmp_path / "host.cu")


def test_it_is_refused_in_one_line(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", file, "--host", *WORDS]) == 2
    said = capsys.readouterr().err
    assert "--trust-host" in said
    assert "no such" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("verb", ["verify", "profile"])
def test_only_bench_takes_it(verb: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, file, "--host", "--trust-host", *WORDS]) == 2
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize("by", ["flag", "environment", "file"])
def test_it_is_built_where_the_user_says_so(by: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "environment":
        monkeypatch.setenv("CUDAL2_TRUST_HOST", "1")
    if by == "file":
        Path("cudal2.toml").write_text("trust_host = true\n")
        monkeypatch.setenv("CUDAL2_CONFIG", str(Path("cudal2.toml").absolute()))
    settings = load_settings(device="none", trust_host=True if by == "flag" else None)
    with pytest.raises(Cudal2Error, match="/no/such/nvcc"):
        evaluate_files([Path(file)], TASK, settings, timed=False, host=True)


def test_trust_alone_makes_no_file_a_host_candidate(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", file, "--trust-host", *WORDS]) == 2
    assert "plan" in capsys.readouterr().err


def test_a_run_trusts_no_host_candidate_whatever_the_settings_say() -> None:
    settings = Settings(trust_host=True, device="none")
    with open_sandbox_of(TASK.arch, settings, lambda _event: None) as sandbox:
        [(_, outcome)] = sandbox.build([HostCandidate(source=HOST, origin=Origin(policy="chat"))], TASK)
    assert isinstance(outcome, Rejected)
    assert outcome.rule == "host-candidate"


def test_it_is_marked_wherever_it_is_shown(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    candidate = read_candidate(Path(file), host=True)
    assert UNPROVEN in candidate.label  # reports, `runs show`, progress
    for evaluation in (measured(11.0), unmeasured(11.0)):
        result = FileResult(file=file, candidate_id=candidate.id, evaluation=evaluation, unproven=unproven_of(candidate))
        for as_json in (False, True):
            print_times([result], as_json)
            assert UNPROVEN in capsys.readouterr().out


def test_a_schedule_in_its_origin_does_not_hide_what_it_is() -> None:
    candidate = HostCandidate(source=HOST, origin=Origin(policy="schedule", schedule={"family": "mma_sync"}))
    assert UNPROVEN in candidate.label


def test_doctor_says_which_jail_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.jail().ok == (confinement().kind != "none")
    monkeypatch.setattr(doctor, "confinement", Confinement)
    absent = doctor.jail()
    assert not absent.ok
    assert not absent.needed
    assert "every file" in absent.detail
    assert "Landlock" in absent.remedy
    monkeypatch.setattr(doctor, "confinement", lambda: Confinement(mount_namespace=True))
    assert doctor.jail().detail == "mount namespace"
    assert "jail" in [check.name for check in doctor.examine(load_settings())]
