"""What a model is told of schedules that were measured: those of the shipped library, then those of the store."""

from pathlib import Path

from cudal2_agent.agent.wiring.policy import _known_schedules
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from cudal2_agent.store.store import open_store

H200 = REFERENCE_CHIPS[Arch.SM_90A]
TASK = GemmTask(m=256, n=512, k=1024, arch=Arch.SM_90A)


def test_the_library_knows_this_shape_and_near_ones_with_their_baselines(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with open_store(settings.store_url) as store:
        found = list(_known_schedules(settings, store)(TASK, H200))
        none = list(_known_schedules(settings.model_copy(update={"precedents": 0}), store)(TASK, H200))
        other = list(_known_schedules(settings, store)(TASK, H200.model_copy(update={"name": "H20"})))
    assert found[0].task.shape == TASK.shape
    assert found[0].speedup > 1.0
    assert found[0].baseline_us is not None
    assert all(one.task.layout is Layout.NN for one in found)
    assert schedules_for(TASK, H200).brief(found[0].schedule) is not None
    assert none == other == []
