"""Calibration and scores on a GPU."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.learning.environment.kernel_environment import EnvironmentBatch
from cudal2_agent.agent.learning.environment.sandbox_score import open_score
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Measured, TimedOut
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from cudal2_agent.store.store import open_store
from tests.agent.learning.environment.test_emulator_score import NAIVE
from tests.gpu.test_batches_gpu import HANG

# ---- `cudal2-agent calibrate` on a GPU: half a minute of it measures, is kept, and goes on ---------------------------------
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


# ---- the environment on a GPU: rewards of schedules and of a model's sources, and answers of a process of its own ----------
TASK = GemmTask(m=256, n=256, k=256, arch=Arch.SM_90A)


def test_a_batch_on_a_gpu_and_its_answers_in_another_process(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, device="cuda:0", verify_timeout_s=20)
    with open_score(settings) as score:
        named = [dict(one.values) for one in schedules_for(TASK, score.chip).best(3)]
        right = NAIVE.replace("1.0f", "0.0f").replace("sm_80", "sm_90a")
        batch = EnvironmentBatch(score, [TASK], 6, turns=1)
        batch.reset([TASK] * 6)
        *fast, naive, wrong, hang = batch.step([*named, right, NAIVE.replace("sm_80", "sm_90a"), f"```cuda\n{HANG}```\n"])
        assert score.measures
    assert [step.info.basis for step in fast] == ["measured"] * 3
    assert all(step.value is not None and -1.5 < step.value < 1.5 for step in fast)
    assert isinstance(naive.info.outcomes[0].evaluation, Measured)
    assert naive.value is not None, "the emulator confirms it"
    assert naive.value < min(step.value for step in fast if step.value is not None)
    assert (wrong.value, wrong.info.status) == (FLOOR, "wrong")
    assert isinstance(hang.info.outcomes[0].evaluation, TimedOut)
    candidates = [schedules_for(TASK, score.chip).expand(values) for values in named]
    with open_score(settings, devices=("cuda:0",)) as score:
        again = score.score(TASK, [one for one in candidates if isinstance(one, Candidate)])
        [fresh] = score.score(TASK.model_copy(update={"k": 512}), [one for one in candidates[:1] if isinstance(one, Candidate)])
    assert [(one.cached, one.value) for one in again] == [(True, step.value) for step in fast]
    assert not fresh.cached
