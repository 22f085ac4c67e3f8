"""Every executed example of the module prompts is proved on the emulator by all tests, at two sizes."""

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.policies.chat.prompts.modules import EXAMPLES, example_source
from tests.sandbox.emulator.modules import graphs
from tests.sandbox.emulator.proving import TIERS, Build, passed, prove

TASKS = {
    "pointwise": (graphs.gelu(1003), graphs.gelu(4)),
    "row_reduction": (graphs.row_mean(19, 100), graphs.row_mean(3, 7)),
    "norm": (graphs.layer_norm(5, 300), graphs.layer_norm(2, 768)),
    "softmax": (graphs.row_softmax(10, 301), graphs.row_softmax(3, 5)),
    "pool": (graphs.max_pool(3, 9, 14), graphs.max_pool(1, 4, 5)),
    "scan": (graphs.row_scan(3, 600), graphs.row_scan(2, 33)),
    "fused_product": (graphs.linear_relu(70, 66, 35), graphs.linear_relu(5, 3, 16)),
    "library_tail": (graphs.linear_norm(13, 40, 24), graphs.linear_norm(9, 33, 7)),
}
CASES = [pytest.param(name, task, id=f"{name}-{size}") for name, tasks in TASKS.items() for size, task in enumerate(tasks)]


def test_every_example_is_tried() -> None:
    assert set(TASKS) == {name for example in EXAMPLES.values() for name in example}


@pytest.mark.parametrize(("name", "task"), CASES)
def test_an_example_passes_every_test(name: str, task: ModuleTask, build: Build) -> None:
    source = example_source(name, task)
    assert passed(prove(build(source, parse_plan(source), task), task, seed=1)) == (TIERS, "schedules")


BY_CUB = """/* cudal2: {"arch": "sm_90a", "launches": [{"entry": "mean", "grid": ["rows", 1, 1], "block": [128, 1, 1], "args": [
 {"tensor": "x"}, {"tensor": "out", "access": "write"}, {"scalar": "columns"}]}]} */
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void mean(const float* x, float* out, int columns) {
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ typename Reduce::TempStorage memory;
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += 128) sum += x[blockIdx.x * columns + i];
  sum = Reduce(memory).Sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum / columns;
}
"""


@pytest.mark.slow
def test_block_primitives_of_cccl_compile_and_are_proved(build: Build) -> None:
    """The rules offer them; NVRTC takes seconds for their headers."""
    task = graphs.row_mean(7, 300)
    assert passed(prove(build(BY_CUB, parse_plan(BY_CUB), task), task, seed=1)) == (TIERS, "schedules")
