"""A score on a real Ray cluster of this machine; an actor is killed in the middle."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.learning.environment.sandbox_score import SandboxScore, open_score
from cudal2_agent.agent.learning.environment.score_cache import ScoreCache
from cudal2_agent.agent.learning.environment.scoring_actor import open_scoring_actors
from cudal2_agent.contract.errors import MachineError, UsageError
from cudal2_agent.contract.events import WorkerRestarted
from cudal2_agent.contract.records.evaluation import Crashed
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.processes.ray_actors import LOCAL
from tests.agent.learning.environment.scripted_scoring import (
    BREAKS,
    KILLS,
    KILLS_ONCE,
    candidates,
    evaluated,
    open_broken,
    open_scripted,
)
from tests.doubles import TASK

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'cudal2-agent[ray]'")
ROOT = Path(__file__).parents[4]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings are of Ray, about its own files


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    yield
    ray.shutdown()


def test_an_actor_that_dies_is_started_again_and_its_candidates_are_scored_again(tmp_path: Path) -> None:
    events: list[Any] = []
    kept = ScoreCache(tmp_path / "scores.sqlite")
    with open_scoring_actors(
        Settings(home=tmp_path), Arch.SM_90A, ["emulator/0", "emulator/1"], LOCAL, open_scripted
    ) as actors:
        score = SandboxScore(actors, kept, Arch.SM_90A, emit=events.append)
        outcomes = score.score(TASK, candidates(1, 2, 5, KILLS_ONCE, KILLS))
        with pytest.raises(MachineError, match=r"^the driver was lost$"):
            score.score(TASK, candidates(BREAKS))
        again = score.score(TASK, candidates(1, 6))
        score.close()
    assert [one.basis for one in outcomes] == ["measured", "measured", "measured", "measured", "failed"]
    assert isinstance(outcomes[4].evaluation, Crashed)
    assert [one.cached for one in again] == [True, False]
    assert events
    assert all(isinstance(event, WorkerRestarted) for event in events)
    assert os.getpid() not in {process for _, process in evaluated(tmp_path)}


def test_an_actor_that_cannot_open_its_sandbox_says_why(tmp_path: Path) -> None:
    with (
        open_scoring_actors(Settings(home=tmp_path), Arch.SM_90A, ["emulator/0"], LOCAL, open_broken) as actors,
        pytest.raises(MachineError, match=r"^there is no driver$"),
    ):
        SandboxScore(actors, ScoreCache(tmp_path / "scores.sqlite"), Arch.SM_90A)


def test_a_cluster_without_gpus_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no GPU"), open_score(Settings(home=tmp_path), arch=Arch.SM_90A, ray=LOCAL):
        pass
