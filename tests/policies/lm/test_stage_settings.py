"""Settings of a stage: those that an older version kept are read."""

import json

import pytest

from cudal2_agent.policies.lm.stages.stage_settings import StageSettings


@pytest.mark.parametrize("server", [None, "http://127.0.0.1:8000"])
def test_settings_with_a_field_of_an_older_version_are_read(server: str | None) -> None:
    kept = {"stage": "grpo", "steps": 100, "vllm_server": server}
    read = StageSettings.model_validate_json(json.dumps(kept))
    assert read == StageSettings(stage="grpo", steps=100)
    assert "vllm_server" not in read.model_dump()
