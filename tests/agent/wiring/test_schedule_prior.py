"""Which prior a search starts from: by name, by chip, and what is said of files that cannot be used."""

import logging
from pathlib import Path

import pytest

from cudal2_agent.agent.wiring.schedule_prior import open_prior
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from tests.doubles.learned_policies import write_policy

H200 = REFERENCE_CHIPS[Arch.SM_90A]
OTHER = H200.model_copy(update={"name": "H20"})
TASK = GemmTask(m=64, n=64, k=64)


def settings(home: Path, prior: str = "auto") -> Settings:
    return Settings(home=home, schedule_prior=prior)


def test_a_chip_that_nothing_learned_from_has_the_analytic_prior(tmp_path: Path) -> None:
    assert open_prior(settings(tmp_path))(TASK, OTHER) is ANALYTIC
    assert open_prior(settings(tmp_path, "analytic"))(TASK, H200) is ANALYTIC


def test_a_known_chip_has_what_learned_from_it_own_policies_first(tmp_path: Path) -> None:
    assert open_prior(settings(tmp_path))(TASK, H200).name == "h200"
    write_policy(tmp_path / "policies" / "a.safetensors", name="mine")
    write_policy(tmp_path / "policies" / "b.safetensors", name="other", chips=("H20",))
    assert open_prior(settings(tmp_path))(TASK, H200).name == "mine"
    assert open_prior(settings(tmp_path))(TASK, OTHER).name == "other"


def test_files_that_cannot_be_used_are_said_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_policy(tmp_path / "policies" / "old.safetensors", name="old", fingerprint="0" * 16)
    (tmp_path / "policies" / "torn.safetensors").write_bytes(b"half")
    with caplog.at_level(logging.WARNING):
        assert open_prior(settings(tmp_path))(TASK, H200).name == "h200"
    assert "torn.safetensors holds no prior" in caplog.text
    assert "prior old was trained by version 0.1.0 on other features" in caplog.text


def test_a_named_policy_must_be_usable_and_another_chip_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match="there is no prior 'none'"):
        open_prior(settings(tmp_path, "none"))
    write_policy(tmp_path / "policies" / "old.safetensors", name="old", fingerprint="0" * 16)
    with pytest.raises(UsageError, match="other features"):
        open_prior(settings(tmp_path, "old"))
    path = write_policy(tmp_path / "far.safetensors", name="far", chips=("H100",))
    with caplog.at_level(logging.WARNING):
        assert open_prior(settings(tmp_path, str(path)))(TASK, H200).name == "far"
    assert "prior far was trained on H100, not on H200" in caplog.text
