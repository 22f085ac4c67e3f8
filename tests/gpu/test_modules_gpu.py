"""Modules on a GPU: right kernels pass and are measured beside PyTorch's baselines, wrong ones and tricks are refused."""

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("cupy")
pytest.importorskip("torch")

from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import MODULE_BASELINES, Measured, Prediction, Wrong
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.cuda.batch_evaluator import BatchEvaluator
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.local import open_sandbox
from cudal2_agent.sandbox.modules.cases import NORMAL, draw
from cudal2_agent.sandbox.modules.executor import Run
from cudal2_agent.sandbox.modules.pieces import WHOLE_BYTES, PieceJudge, judge_of
from cudal2_agent.sandbox.workers.messages import CandidateBatch, Evaluate, Verified
from tests.gpu.modules_by_hand import EXAMPLES, OUT, SMALL, candidate, launch, scalar
from tests.sandbox.modules.small_tasks import node, of, task

pytestmark = pytest.mark.gpu
VERIFY = VerifyOptions(rounds=3)
QUICK = TimeOptions(rounds=5, round_us=1000.0, all_baselines=False, side=False)


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(0)


@pytest.fixture(scope="module")
def builder(device, tmp_path_factory) -> Iterator[Builder]:
    opened = Builder(CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache")), jobs=4), device.chip)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def evaluator(device) -> BatchEvaluator:
    return BatchEvaluator(device, lambda _message: None)


@pytest.fixture(scope="module")
def evaluate(evaluator, builder):
    def run(one, task, time=None, verify=VERIFY):
        built = builder.build_one(one, task)
        assert isinstance(built, Built), built
        return evaluator.evaluate(Evaluate(built=built, task=task, verify=verify, time=time))

    return run


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_right_kernel_passes_every_test(evaluate, name):
    example = EXAMPLES[name](**SMALL[name])
    answer = evaluate(example.right, example.task)
    assert isinstance(answer, Verified), answer
    assert {test.tier for test in answer.tests} >= {"exact", "accuracy", "guards", "freshness", "repeatability"}


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name in EXAMPLES for fault in EXAMPLES[name](**SMALL[name]).wrong]
)
def test_a_wrong_kernel_is_refused(evaluate, name, fault):
    example = EXAMPLES[name](**SMALL[name])
    answer = evaluate(example.wrong[fault], example.task)
    assert not isinstance(answer, Verified)
    assert isinstance(answer.evaluation, Wrong)
    if fault == "no-wait":
        assert answer.evaluation.test.tier == "programmatic"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_right_kernel_is_measured(evaluate, name):
    example = EXAMPLES[name](**SMALL[name])
    measured = evaluate(example.right, example.task, QUICK).evaluation
    assert isinstance(measured, Measured), measured
    assert {timing.name for timing in measured.baselines} == set(MODULE_BASELINES[1:3]), measured.notes


def test_a_server_measures_single_launches(evaluate):
    example = EXAMPLES["softmax"](**SMALL["softmax"])
    task = example.task.model_copy(update={"mode": TimingMode.SERVER})
    measured = evaluate(example.right, task, QUICK.model_copy(update={"server_launches": 8})).evaluation
    assert isinstance(measured, Measured), measured
    assert measured.ruler.zero_us is not None


def test_candidates_race_and_the_wrong_one_is_out(evaluator, builder):
    example = EXAMPLES["max_pool"](**SMALL["max_pool"])
    both = (example.right, example.wrong["one-of-four"])
    built = [builder.build_one(one, example.task) for one in both]
    request = CandidateBatch(effort="race", built=tuple(built), task=example.task, verify=VERIFY, time=QUICK)
    done = {each.position: each.evaluation for each in evaluator.batch(request)}
    assert isinstance(done[0], Measured), done[0]
    assert isinstance(done[1], Wrong)


KEEPER = """extern "C" __global__ void keeper(const float* x, float* out, float* kept, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  if (kept[count + i] != 12345.0f) { kept[i] = x[i] < 0.0f ? 0.0f : x[i]; kept[count + i] = 12345.0f; }
  out[i] = kept[i];
}
"""


def test_a_result_that_is_kept_in_scratch_is_refused(evaluate):
    task, count = EXAMPLES["relu"](rows=16, columns=256).task, 16 * 256
    args = [{"tensor": "x"}, OUT, {"tensor": "kept", "access": "write"}, scalar(count)]
    scratch = [{"name": "kept", "shape": [2 * count], "element": "f32"}]
    answer = evaluate(candidate(KEEPER, launch("keeper", count // 256, *args), scratch=scratch), task)
    assert answer.evaluation.test.tier == "freshness"


STRAY = """extern "C" __global__ void stray(const float* x, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = x[i] < 0.0f ? 0.0f : x[i];
  if (i == 0) out[count] = 1.0f;
}
"""


def test_a_write_past_an_output_is_refused(evaluate):
    task, count = EXAMPLES["relu"](rows=16, columns=256).task, 16 * 256
    one = candidate(STRAY, launch("stray", count // 256, {"tensor": "x"}, OUT, scalar(count)))
    assert evaluate(one, task).evaluation.test.name == "canary"


def stray_input():
    """Writes one of its parameters, which is mapped read-only."""
    example = EXAMPLES["linear_norm"](**SMALL["linear_norm"])
    source = example.right.source.replace("  float sum = 0.0f,", "  ((float*)gain)[0] = 1.0f;\n  float sum = 0.0f,")
    assert source != example.right.source
    return example.right.model_copy(update={"source": source})


def test_a_worker_in_its_jail_measures_a_module_beside_what_it_compiles(device, tmp_path):
    """A worker may start compilers, and reads and writes no more than its own folders."""
    cache = tmp_path / "kernels"
    opened = open_sandbox(
        arch=device.arch,
        device="cuda:0",
        compile_options=CompileOptions(cache_dir=str(cache)),
        verify_options=VERIFY,
        quick=QUICK,
        full=QUICK,
        worker=WorkerOptions(readable=(str(cache),)),
        predict=lambda *_: Prediction(predicted_us=1.0, model="floor", floor_us=1.0),
        emit=ignore,
    )
    try:
        example = EXAMPLES["linear_norm"](**SMALL["linear_norm"])
        built = dict(opened.build([example.right, stray_input()], example.task))
        measured = opened.evaluate(built[0], example.task, "quick")
        assert isinstance(measured, Measured), measured
        assert {timing.name for timing in measured.baselines} == set(MODULE_BASELINES[1:3]), measured.notes
        stray = opened.evaluate(built[1], example.task, "quick")
        assert stray.status == "crashed"
    finally:
        opened.close()


@pytest.mark.parametrize(
    ("op", "args", "shape"),
    [
        ("aten._softmax.default", [1, False], (32768, 16384)),
        ("aten.relu.default", [], (32768, 16384)),
        ("aten.amax.default", [[0]], (16384,)),
    ],
)
def test_references_of_two_gigabytes_take_little_memory_and_find_a_fault_anywhere(device, op, args, shape):
    import torch

    made = task([node("out", op, [of("x"), *args], shape)], {"x": (32768, 16384)})
    place = torch.device("cuda", device.index)
    values = draw(made, NORMAL, 1, place)
    held = torch.cuda.memory_allocated(place)
    torch.cuda.reset_peak_memory_stats(place)
    begin = time.monotonic()
    judge = judge_of(made, values, 1)
    assert isinstance(judge, PieceJudge)
    out = judge.eager["out"]
    assert judge.accepts({"out": out})
    torch.cuda.synchronize(place)
    assert time.monotonic() - begin < 5
    assert torch.cuda.max_memory_allocated(place) - held < 2 * WHOLE_BYTES + out.nbytes
    flat = out.reshape(-1)
    for index in (0, len(flat) // 2 + 1, len(flat) - 1):
        before = flat[index].clone()
        flat[index] = before + 1
        assert judge.judge(Run({"out": out})).wrong == 1
        flat[index] = before
