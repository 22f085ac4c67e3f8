"""`cudal2-agent calibrate` on a GPU: half a minute of it measures, is kept, and goes on."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.store import open_store

pytestmark = pytest.mark.gpu


def test_half_a_minute_measures_shapes_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    assert main(["calibrate", "--minutes", "0.5", "--device", "cuda:0", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["shapes"] >= 1
    assert result["schedules"] >= 8 * result["shapes"]
    with open_store(load_settings().store_url) as store:
        runs = [run for run in store.runs() if run.policy == "calibrate"]
    assert {run.status for run in runs} == {"finished"}
    assert main(["calibrate", "--minutes", "0.5", "--device", "cuda:0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["schedules"] == result["schedules"]
