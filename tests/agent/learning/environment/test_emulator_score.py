"""Real kernels of one small shape on the emulator: their values, in this process and in another one."""

from pathlib import Path

import pytest

from cudal2_agent.agent.learning.environment.kernel_environment import EnvironmentBatch
from cudal2_agent.agent.learning.environment.sandbox_score import open_score
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Wrong
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.named_schedules import schedules_for

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
TASK = GemmTask(m=64, n=64, k=64, arch=Arch.SM_80)
SCHEDULE = {"family": "mma_sync", "block_m": 64, "block_n": 64}
NAIVE = """```cuda
// cudal2: {"arch": "sm_80", "launches": [{"entry": "gemm",
//   "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [16, 16, 1],
//   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"},
//            {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]}]}
#include <cuda_fp16.h>
extern "C" __global__ void gemm(const __half* a, const __half* b, __half* d, int m, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 1.0f;
  for (int i = 0; i < k; ++i) sum += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);
  d[row * n + column] = __float2half(sum);
}
```
"""


def test_a_batch_on_the_emulator_and_its_answers_in_another_process(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, device="emulator", verify_seed=7)
    with open_score(settings, arch=Arch.SM_80) as score:
        batch = EnvironmentBatch(score, [TASK], 4, turns=1)
        batch.reset([TASK] * 4)
        right, wrong, unreadable, repaired = batch.step([SCHEDULE, NAIVE, "```\nvoid\n```", NAIVE.replace("1.0f", "0.0f")])
        assert not score.measures
        with pytest.raises(UsageError, match="this score is for sm_80"):
            score.score(TASK.model_copy(update={"arch": Arch.SM_90A}), [])
    assert (right.info.basis, right.info.message, right.done) == ("predicted", "", True)
    assert right.info.predicted_us is not None
    assert right.value is not None
    assert repaired.value is not None
    assert 0 > right.value > repaired.value > FLOOR, "a naive kernel is right and slower"
    assert (wrong.value, wrong.info.basis) == (FLOOR, "failed")
    assert isinstance(wrong.info.outcomes[0].evaluation, Wrong)
    assert (unreadable.value, unreadable.info.status) == (FLOOR, "malformed")
    candidate = schedules_for(TASK, score.chip).expand(SCHEDULE)
    assert isinstance(candidate, Candidate)
    with open_score(settings, arch=Arch.SM_80, devices=["emulator/0"]) as score:
        [again] = score.score(TASK, [candidate])
        [fresh] = score.score(TASK.model_copy(update={"k": 32}), [candidate])
    assert (again.cached, again.value) == (True, right.value)
    assert not fresh.cached
