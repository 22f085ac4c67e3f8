"""For which tasks and chips a policy is used."""

from pathlib import Path

from contract.chip import REFERENCE_CHIPS
from contract.task import AccumulatorType, Arch, GemmTask, TimingMode
from policies.schedule.learned.learned_prior import LearnedPrior
from policies.schedule.learned.policy_file import kind_of, read_weights
from tests.doubles.learned_policies import write_policy

H200 = REFERENCE_CHIPS[Arch.SM_90A]
TASK = GemmTask(m=64, n=64, k=64)


def test_a_policy_knows_its_chips_and_the_kinds_of_task_that_it_is_for(tmp_path: Path) -> None:
    for_all = LearnedPrior(*read_weights(write_policy(tmp_path / "all.safetensors")))
    server = LearnedPrior(*read_weights(write_policy(tmp_path / "server.safetensors", kinds=("server f32",))))
    of_server = TASK.model_copy(update={"mode": TimingMode.SERVER})
    assert for_all.knows(TASK, H200)
    assert for_all.knows(of_server, H200)
    assert not for_all.knows(TASK, H200.model_copy(update={"name": "H100"}))
    assert kind_of(of_server) == "server f32"
    assert server.knows(of_server, H200)
    assert not server.knows(TASK, H200)
    assert not server.knows(of_server.model_copy(update={"accumulate": AccumulatorType.F16}), H200)
