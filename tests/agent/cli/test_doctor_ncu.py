"""What `doctor` says of Nsight Compute: absent, present, present but forbidden."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.wiring import doctor


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The check of the tool; `doctor` still reports that optimize works."""
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\necho 'Version 2025.3.1.0 (build 36398880)'\n")
    ncu.chmod(0o755)

    def check(setting: str | None, allowed: bool | None = None) -> dict[str, object]:
        monkeypatch.setenv("CUDAL2_NCU", setting or str(ncu))
        monkeypatch.setattr(doctor, "counters_allowed", lambda: allowed)
        assert main(["doctor", "--json"]) == 0
        checks = json.loads(capsys.readouterr().out)["checks"]
        return next(one for one in checks if one["name"] == "Nsight Compute (ncu)")

    return check


def test_absent(check) -> None:
    found = check("/no/such/ncu")
    assert not found["ok"]
    assert not found["needed"]
    assert "CUDAL2_NCU" in found["remedy"]


@pytest.mark.parametrize(("allowed", "said"), [(True, "counters may be read"), (None, "shows when a kernel is profiled")])
def test_present(check, allowed, said) -> None:
    found = check(None, allowed)
    assert found["ok"]
    assert found["detail"].startswith("2025.3.1.0 at /")
    assert said in found["detail"]


def test_forbidden(check) -> None:
    found = check(None, False)
    assert not found["ok"]
    assert "only administrators" in found["detail"]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found["remedy"]
