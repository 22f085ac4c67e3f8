"""What the emulator does with a module's buffers around a run: states, scratch, library calls, order between launches."""

import math
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

import torch

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.sandbox.emulator.executor import Interleavings
from cudal2_agent.sandbox.emulator.loading import load_kernel
from cudal2_agent.sandbox.emulator.modules.emulated_module import EmulatedModule
from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from cudal2_agent.sandbox.modules.executor import Run
from cudal2_agent.sandbox.verification.executor import Fill
from tests.sandbox.emulator.modules.corpus.kernel import launch
from tests.sandbox.emulator.modules.graphs import Shape, buffer, module, node, value
from tests.sandbox.emulator.proving import Build

HEAD = "#include <cuda.h>\n"
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'


Made = Callable[..., EmulatedModule]


@pytest.fixture
def made(build: Build) -> Made:
    """A backend over `source` with launches and fields of its plan."""

    def make(source: str, launches: list[dict[str, Any]], task: ModuleTask | None = None, **fields: Any) -> EmulatedModule:
        task = task or counted()
        plan = plan_from_json({"arch": "sm_90a", "launches": launches, **fields})
        built = build(HEAD + source, plan, task)
        kernel = load_kernel(built, resolve(plan, task, LIMITS[task.arch], sms=132), task)
        return EmulatedModule(kernel, Interleavings(task, 1, time.monotonic() + 30))

    return make


def counted(shape: Shape = (4, 8), element: str = "f32") -> ModuleTask:
    """out = x + 1, and a state that counts calls."""
    return module(
        "counted",
        {"rows": shape[0], "columns": math.prod(shape[1:])},
        [
            buffer("x", shape, element=element),
            buffer("calls", (), "state", "i64"),
            buffer("out", shape, "output", element),
        ],
        [
            node("more", "add.Tensor", value("calls"), 1, shape=(), element="i64"),
            node("made", "add.Tensor", value("x"), 1, shape=shape, element=element),
        ],
        {"out": "made", "calls": "more"},
    )


def values(calls: int = 5, shape: Shape = (4, 8)) -> dict[str, Any]:
    return {"x": torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape), "calls": torch.tensor(calls)}


def wrong(run: Run, expected: dict[str, Any]) -> list[str]:
    return [name for name, want in expected.items() if not torch.equal(run.outputs[name], want)]


ADD = """
extern "C" __global__ void add(const float* x, long long* calls, float* out, int count) {
  %s
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) out[at] = x[at] + 1;
  if (at == 0) ++*calls;
}
"""
ADD_ARGS = ("x", "calls=", "out=", ".rows*columns")


def test_a_state_starts_at_its_value_in_every_run(made: Made) -> None:
    backend = made(ADD % "", [launch("add", 1, 64, *ADD_ARGS)])
    for calls in (5, 9):
        for fill in (Fill.POISON, Fill.STALE):
            run = backend.run(values(calls), fill=fill)
            assert run.violations == ()
            assert wrong(run, {"out": values()["x"] + 1, "calls": torch.tensor(calls + 1)}) == []


def test_states_of_a_run_that_a_second_one_may_overlap_are_those_of_one_run(made: Made) -> None:
    """The launch does not wait, so that the emulator lets another run follow to compare their accesses."""
    backend = made(ADD % WAIT, [launch("add", 1, 64, *ADD_ARGS, programmatic=True)])
    run = backend.run(values(5))
    assert run.violations == ()
    assert wrong(run, {"out": values()["x"] + 1, "calls": torch.tensor(6)}) == []


def test_a_launch_that_does_not_wait_for_what_precedes_the_plan_is_refused(made: Made) -> None:
    run = made(ADD % "", [launch("add", 1, 64, *ADD_ARGS, programmatic=True)]).run(values())
    assert [each.kind for each in run.violations] == ["dependency"]


def test_a_write_to_an_input_is_a_violation(made: Made) -> None:
    source = ADD.replace("++*calls", "const_cast<float*>(x)[0] = 0, ++*calls") % ""
    run = made(source, [launch("add", 1, 64, *ADD_ARGS)]).run(values())
    assert [each.kind for each in run.violations] == ["input-written"]
    assert "write to x, which is read only" in run.violations[0].message


SCRATCH = [{"name": "h", "shape": ["rows", "columns"], "element": "f32"}]
EYE = {"name": "eye", "shape": ["columns", "columns"], "element": "f32"}
WRITE_EYE = """
extern "C" __global__ void eye(float* eye, int columns, int rows) {
  for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) eye[i] = i / columns == i % columns;
}
"""
TIMES = {"call": "mm", "inputs": [{"tensor": "x"}, {"tensor": "eye"}], "out": {"tensor": "h"}}


def _by_library(rows: str = "columns", **after: Any) -> list[dict[str, Any]]:
    """h = x * identity by the library, where a launch before it makes the identity; then out = h + 1."""
    return [
        launch("eye", 1, 32, "eye=", ".columns", f".{rows}"),
        TIMES,
        launch("add", 1, 64, "h", *ADD_ARGS[1:], **after),
    ]


@pytest.mark.parametrize("programmatic", [False, True])
def test_library_calls_run_between_their_launches(made: Made, programmatic: bool) -> None:
    """A launch behind a call has no programmatic edge, so that it need not wait."""
    backend = made(WRITE_EYE + ADD % "", _by_library(programmatic=programmatic), scratch=[*SCRATCH, EYE])
    for fresh in (True, False):
        run = backend.run(values(), fresh_scratch=fresh)
        assert run.violations == ()
        assert wrong(run, {"out": values()["x"] + 1}) == []


def test_what_a_call_reads_unwritten_shows_in_the_result(made: Made) -> None:
    backend = made(WRITE_EYE + ADD % "", _by_library(rows="columns-1"), scratch=[*SCRATCH, EYE])
    run = backend.run(values())
    assert run.violations or wrong(run, {"out": values()["x"] + 1})


def test_scratch_of_the_run_before_is_unwritten(made: Made) -> None:
    source = ADD.replace("int count)", "int count, float* h)") % ""
    source = source.replace("out[at] = x[at] + 1;", "out[at] = h[at] == 7 ? 0 : x[at] + 1, h[at] = 7;")
    backend = made(source, [launch("add", 1, 64, *ADD_ARGS, "h=")], scratch=SCRATCH)
    backend.run(values())
    run = backend.run(values(), fresh_scratch=False)
    assert [each.kind for each in run.violations] == ["uninitialised-read"]
    assert "of h" in run.violations[0].message


def test_an_argument_may_point_into_a_buffer(made: Made) -> None:
    """A repeat takes one row after another; the last one is out of bounds where it begins a row too late."""
    row = {"offset_bytes": "4*I*columns"}
    parts = [{"tensor": "x", **row}, {"tensor": "out", "access": "write", **row}]
    step = launch("row", 1, 32, *parts, ".columns")
    count = launch("count", 1, 1, "calls=")
    source = """
extern "C" __global__ void row(const float* x, float* out, int columns) {
  if (threadIdx.x < columns) out[threadIdx.x] = x[threadIdx.x] + 1;
}
extern "C" __global__ void count(long long* calls) { ++*calls; }
"""
    repeated = {"repeat": "rows", "launches": [step]}
    run = made(source, [repeated, count]).run(values())
    assert run.violations == ()
    assert wrong(run, {"out": values()["x"] + 1, "calls": torch.tensor(6)}) == []
    beyond = source.replace("x[threadIdx.x] + 1", "x[threadIdx.x + columns] + 1")
    assert [each.kind for each in made(beyond, [repeated, count]).run(values()).violations] == ["global-out-of-bounds"]


def test_a_plan_may_have_more_launches_than_the_core_tells_apart(made: Made) -> None:
    shape = (40, 8)
    source = ADD % "" + 'extern "C" __global__ void more(long long* calls) { ++*calls; --*calls; }'
    many = {"repeat": "rows", "launches": [launch("more", 1, 1, "calls=")]}
    run = made(source, [many, launch("add", 5, 64, *ADD_ARGS)], counted(shape)).run(values(shape=shape))
    assert run.violations == ()
    assert wrong(run, {"out": values(shape=shape)["x"] + 1, "calls": torch.tensor(6)}) == []
    many["launches"][0]["programmatic"] = True
    with pytest.raises(Unsupported, match="programmatic launches behind the first 31"):
        made(source, [many, launch("add", 5, 64, *ADD_ARGS)], counted(shape))


TMA = """
extern "C" __global__ void add(const __grid_constant__ CUtensorMap x, long long* calls, float* out) {
  __shared__ alignas(128) float tile[4 * 8];
  __shared__ alignas(8) unsigned long long bar;
  const unsigned at = (unsigned)__cvta_generic_to_shared(&bar), to = (unsigned)__cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(at) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" :: "r"(at) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(&x), "r"(0), "r"(0), "r"(at) : "memory");
    ++*calls;
  }
  __syncthreads();
  asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0; @!done bra again; }"
               :: "r"(at) : "memory");
  out[threadIdx.x] = tile[threadIdx.x] + 1;
}
"""


@pytest.mark.parametrize("shape", [(4, 8), (2, 2, 8)])
def test_a_tensor_map_is_over_a_buffer_as_a_matrix_of_its_last_dimension(made: Made, shape: Shape) -> None:
    mapped = {"tensor_map": {"of": "x", "box": [8, 4]}}
    backend = made(TMA, [launch("add", 1, 32, mapped, "calls=", "out=")], counted(shape))
    run = backend.run(values(shape=shape))
    assert run.violations == ()
    assert wrong(run, {"out": values(shape=shape)["x"] + 1}) == []
