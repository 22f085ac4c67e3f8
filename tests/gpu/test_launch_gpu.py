"""The launcher, the guarded buffers and the device record on a real GPU."""

from pathlib import Path

import cupy
import pytest
from cuda.bindings import driver

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import TensorMapSpec
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.plan.tensor_view import map_layout
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.cuda.contender import Contender
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.driver import DriverFault, call
from cudal2_agent.sandbox.cuda.evaluator import load
from cudal2_agent.sandbox.cuda.guard.buffers import MIN_BAND_BYTES, Guarded, GuardedOperands
from cudal2_agent.sandbox.cuda.launcher import Kernel, ParameterMismatch
from cudal2_agent.sandbox.cuda.tensor_map import encode_tensor_map, named_buffers

pytestmark = pytest.mark.gpu

OUT = '{"tensor": "D", "access": "write"}'
HEAD = """#include <cuda_fp16.h>
#include <cuda.h>
#if __CUDA_ARCH__ >= 900
#define FOLLOW() asm volatile("griddepcontrol.launch_dependents;\\n griddepcontrol.wait;" ::: "memory")
#else
#define FOLLOW()
#endif
"""
# Every CTA increments its counter in the workspace and writes the old value.
COUNTING = """
extern "C" __global__ void count(__half* d, unsigned* counters) {
  FOLLOW();
  if (threadIdx.x == 0) d[blockIdx.x] = __float2half(float(counters[blockIdx.x]++));
}
"""
# Adds one to all of D, one row per CTA; a lost dependency loses additions.
ADDING = """
extern "C" __global__ void add(__half* d, int n) {
  FOLLOW();
  __half* row = d + blockIdx.x * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = __hadd(row[i], __half(1.0f));
}
"""
CLUSTER_RANK = """
extern "C" __global__ void rank(__half* d) {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) d[blockIdx.x] = __float2half(float(rank));
}
"""
SCALARS = """
extern "C" __global__ void scalars(__half* d, int i, unsigned u, long long l, float f) {
  const bool right = i == -7 && u == 4294967295u && l == -1099511627776ll && f == 3.0f;
  if (threadIdx.x == 0) d[0] = __float2half(right ? 1.0f : 0.0f);
}
"""
# Loads one 8x4 box of A whose corner lies at (column 8, row 2) through a tensor map, and writes it to D.
BOX = """
extern "C" __global__ void box(const __grid_constant__ CUtensorMap map, __half* d, int column, int row) {
  __shared__ alignas(128) __half tile[4 * 8];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned at = unsigned(__cvta_generic_to_shared(&barrier)), to = unsigned(__cvta_generic_to_shared(tile));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 64;" ::"r"(at));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(at) : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(at) : "memory");
  d[threadIdx.x] = tile[threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(0)


@pytest.fixture
def task(device: Device) -> GemmTask:
    return GemmTask(m=16, n=64, k=32, arch=device.arch)


@pytest.fixture
def make(device: Device, task: GemmTask, tmp_path: Path):
    """A kernel on the device from a body and its plan's launch, through check, compiler and inspection."""

    def compile_(body: str, launches: str, more: str = "") -> Built:
        source = f'// cudal2: {{"arch": "{device.arch}", "launches": [{launches}]{more}}}\n{HEAD}{body}'
        candidate = Candidate.from_source(source, Origin(policy="test"))
        builder = Builder(CompileOptions(cache_dir=str(tmp_path / "compile")), device.chip)
        [(_, built)] = builder.build([candidate], task)
        assert isinstance(built, Built), built
        return built

    def make_kernel(body: str, launches: str, more: str = "") -> Contender:
        return load(compile_(body, launches, more), task, device)

    make_kernel.build = compile_
    return make_kernel


def launch(entry: str, args: str, grid: str = "[16, 1, 1]", more: str = "") -> str:
    return f'{{"entry": "{entry}", "grid": {grid}, "block": [32, 1, 1], "args": [{args}]{more}}}'


def needs_hopper(device: Device) -> None:
    if not LIMITS[device.arch].tensor_maps:
        pytest.skip(f"{device.arch} has no tensor maps, clusters or programmatic launch")


def captured(device: Device, bound, times: int, **how):
    device.stream.begin_capture()
    for _ in range(times):
        bound.enqueue(device.stream.ptr, **how)
    return device.stream.end_capture()


def test_the_device_tells_where_it_measures(device):
    environment, chip = device.environment, device.chip
    assert environment.arch == device.arch == chip.arch
    assert environment.sms == chip.sms > 0
    assert environment.memory_bytes > 2**30
    assert environment.cublas.count(".") == 2
    assert chip.dram_tbps > 0.1
    assert chip.tensor_tflops > 10
    assert device.pci_bus_id.count(":") == 2
    assert device.poison() is None


def test_cupy_and_the_driver_share_one_context(device):
    array = cupy.arange(8, dtype=cupy.uint8)
    call(driver.cuMemsetD8Async, array.data.ptr, 7, 8, device.stream.ptr)
    assert array.get().tolist() == [7] * 8


def test_scalars_arrive(device, task, make):
    scalars = '{"scalar": -7}, {"scalar": 4294967295, "type": "u32"}, {"scalar": -1099511627776, "type": "i64"}'
    kernel = make(SCALARS, launch("scalars", f'{OUT}, {scalars}, {{"scalar": 3, "type": "f32"}}'))
    guarded = GuardedOperands(task)
    kernel.bind(guarded.operands).enqueue(device.stream.ptr)
    device.synchronize()
    assert float(guarded.operands.d[0, 0]) == 1.0


def test_other_parameters_than_the_plan_passes_are_refused_at_load(device, task, make):
    built = make.build(COUNTING, launch("count", f'{OUT}, {{"workspace": 0}}'), ', "workspace": {"bytes": 64}')
    plan = resolve(built.candidate.plan, task, LIMITS[device.arch], device.chip.sms)
    fewer = plan.launches[0].model_copy(update={"args": plan.launches[0].args[:1]})
    with pytest.raises(ParameterMismatch, match=r"takes parameters of \[8, 8\] bytes; its plan passes \[8\]"):
        Kernel("k", Path(built.artifact_path).read_bytes(), plan.model_copy(update={"launches": (fewer,)}), task)


def test_what_is_no_cubin_is_refused_and_leaves_the_context_healthy(device, task, make):
    built = make.build(COUNTING, launch("count", f'{OUT}, {{"workspace": 0}}'), ', "workspace": {"bytes": 64}')
    plan = resolve(built.candidate.plan, task, LIMITS[device.arch], device.chip.sms)
    with pytest.raises(DriverFault):
        Kernel("k", b"\x7fELF" + bytes(1000), plan, task)
    assert device.poison() is None


@pytest.mark.parametrize("programmatic", ["", ', "programmatic": true'])
@pytest.mark.parametrize("graph", [False, True])
def test_a_zeroed_workspace_is_zero_before_every_run(device, task, make, programmatic, graph):
    if programmatic:
        needs_hopper(device)
    kernel = make(
        COUNTING,
        launch("count", f'{OUT}, {{"workspace": 64}}', more=programmatic),
        ', "workspace": {"bytes": 128, "zero": true}',
    )
    guarded = GuardedOperands(task, kernel.workspace_bytes)
    bound = kernel.bind(guarded.operands)
    if graph:
        captured(device, bound, 50).launch(device.stream)
    else:
        for _ in range(50):
            bound.enqueue(device.stream.ptr)
    device.synchronize()
    assert guarded.operands.d.ravel()[:16].get().tolist() == [0.0] * 16
    assert guarded.violations() == ()
    assert not kernel.programmatic, "the only launch comes right after the memset"


@pytest.mark.parametrize("how", [None, False])
@pytest.mark.parametrize("graph", [False, True])
def test_programmatic_launches_in_a_row_keep_their_order(device, task, make, graph, how):
    needs_hopper(device)
    one = launch("add", f'{OUT}, {{"scalar": "N"}}', more=', "programmatic": true')
    kernel = make(ADDING, f"{one}, {one}")
    assert kernel.programmatic
    guarded = GuardedOperands(task)
    guarded.operands.d.fill(0)
    bound = kernel.bind(guarded.operands)
    if graph:
        captured(device, bound, 100, programmatic=how).launch(device.stream)
    else:
        for _ in range(100):
            bound.enqueue(device.stream.ptr, programmatic=how)
    device.synchronize()
    assert (guarded.operands.d.get() == 200.0).all()


def test_a_programmatic_launch_may_follow_an_event_in_a_graph(device, task, make):
    needs_hopper(device)
    kernel = make(ADDING, launch("add", f'{OUT}, {{"scalar": "N"}}', more=', "programmatic": true'))
    guarded = GuardedOperands(task)
    guarded.operands.d.fill(0)
    bound, event = kernel.bind(guarded.operands), cupy.cuda.Event()
    external = driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
    device.stream.begin_capture()
    call(driver.cuEventRecordWithFlags, event.ptr, device.stream.ptr, external)
    bound.enqueue(device.stream.ptr)
    bound.enqueue(device.stream.ptr)
    device.stream.end_capture().launch(device.stream)
    device.synchronize()
    assert (guarded.operands.d.get() == 2.0).all()


@pytest.mark.parametrize("size", [2, 8, 16])
def test_clusters_are_as_large_as_the_plan_says(device, task, make, size):
    needs_hopper(device)
    kernel = make(CLUSTER_RANK, launch("rank", OUT, more=f', "cluster": [{size}, 1, 1]'))
    guarded = GuardedOperands(task)
    kernel.bind(guarded.operands).enqueue(device.stream.ptr)
    device.synchronize()
    assert guarded.operands.d.ravel()[:16].get().tolist() == [float(index % size) for index in range(16)]


@pytest.mark.parametrize(("column", "row"), [(8, 2), (0, 0), (24, 12), (24, 14), (32, 16)])
def test_a_tensor_map_reads_its_box_and_zeros_outside(device, task, make, column, row):
    needs_hopper(device)
    tensor_map = '{"tensor_map": {"of": "A", "box": [8, 4]}}'
    scalars = f'{{"scalar": {column}}}, {{"scalar": {row}}}'
    kernel = make(BOX, launch("box", f"{tensor_map}, {OUT}, {scalars}", grid="[1, 1, 1]"))
    guarded = GuardedOperands(task)
    a = cupy.arange(1, task.m * task.k + 1, dtype=cupy.float16).reshape(task.m, task.k)
    guarded.load(a, cupy.ones((task.k, task.n), cupy.float16))
    kernel.bind(guarded.operands).enqueue(device.stream.ptr)
    device.synchronize()
    padded = cupy.zeros((task.m + 8, task.k + 16), cupy.float16)
    padded[: task.m, : task.k] = a
    expected = padded[row : row + 4, column : column + 8]
    assert (guarded.operands.d.ravel()[:32].reshape(4, 8) == expected).all()
    assert guarded.violations() == ()


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("l2", [0, 64, 128, 256])
def test_the_driver_accepts_every_descriptor_that_plans_may_ask_for(device, layout, swizzle, l2):
    needs_hopper(device)
    task = GemmTask(m=16, n=64, k=32, arch=device.arch, layout=layout)
    operands = GuardedOperands(task).operands
    for name, array in zip("ABD", (*operands.stored(layout), operands.d), strict=True):
        spec = TensorMapSpec(of=name, box=((swizzle or 128) // 2, 256), swizzle=swizzle, l2=l2)
        assert len(encode_tensor_map(spec, map_layout(spec, named_buffers(task)), array.data.ptr).rstrip(b"\0")) > 16


@pytest.mark.parametrize(
    "view",
    [
        {"dims": (64,), "box": (64,)},
        {"dims": (32, 16, 2), "strides": (64, 32), "box": (32, 16, 2), "swizzle": 64},
        {"dims": (8, 16, 8, 2), "box": (8, 8, 8, 2)},
    ],
)
def test_the_driver_accepts_views_of_the_workspace(device, view):
    needs_hopper(device)
    spec = TensorMapSpec(of="workspace", element="f16", offset_bytes=256, **view)
    array = GuardedOperands(GemmTask(m=64, n=64, k=64, arch=device.arch), workspace_bytes=8192).operands.workspace
    assert len(encode_tensor_map(spec, map_layout(spec, {}), array.data.ptr).rstrip(b"\0")) > 16


def test_a_tensor_map_of_an_unaligned_pointer_is_refused(device, task):
    needs_hopper(device)
    spec = TensorMapSpec(of="A", box=(8, 8))
    layout, pointer = map_layout(spec, named_buffers(task)), GuardedOperands(task).operands.a.data.ptr + 2
    with pytest.raises(DriverFault, match="cuTensorMapEncodeTiled"):
        encode_tensor_map(spec, layout, pointer)


@pytest.mark.parametrize("size", [2, 1000, 10_000_000])
def test_bands_on_the_device_show_one_byte(device, size):
    guarded = Guarded(size)
    assert guarded.payload.data.ptr % 256 == 0
    for offset, told in ((-1, "1 byte(s) before"), (size, "1 byte(s) past"), (size + 99, "100 byte(s) past")):
        call(driver.cuMemsetD8Async, guarded.payload.data.ptr + offset, 0xEE, 1, device.stream.ptr)
        assert told in str(guarded.violation())
        guarded.repair()
    call(driver.cuMemsetD8Async, guarded.payload.data.ptr, 0xEE, size, device.stream.ptr)
    assert guarded.violation() is None
    assert guarded._after.size >= MIN_BAND_BYTES
