"""The launcher of the library on a GPU: the sandbox's results, graphs, threads, a poisoned context."""

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy")

from cudal2.launcher.interpreted import InterpretedLauncher  # noqa: E402
from cudal2.launcher.launcher import DRIVER, open_launcher  # noqa: E402
from cudal2.launcher.loaded_kernel import BuiltKernel  # noqa: E402
from cudal2_agent.contract.records.build import Built  # noqa: E402
from cudal2_agent.contract.records.task import GemmTask, Layout  # noqa: E402
from cudal2_agent.contract.settings.options import CompileOptions  # noqa: E402
from cudal2_agent.policies.schedule.families.registry import families  # noqa: E402
from cudal2_agent.sandbox.building.builder import Builder  # noqa: E402
from cudal2_agent.sandbox.cuda.contender import Operands  # noqa: E402
from cudal2_agent.sandbox.cuda.device import Device  # noqa: E402
from cudal2_agent.sandbox.cuda.evaluator import load  # noqa: E402

pytestmark = pytest.mark.gpu

EACH = 4  # kernels per family and task
THREADS = 32
LAUNCHES_PER_THREAD = 500
TASKS = (
    {"m": 256, "n": 256, "k": 512},
    {"m": 64, "n": 64, "k": 4096},
    {"m": 200, "n": 136, "k": 200, "layout": "tn", "element": "bf16"},
    {"m": 256, "n": 392, "k": 200, "layout": "nt"},
)


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(0)


@pytest.fixture(scope="module")
def builder(device, tmp_path_factory) -> Iterator[Builder]:
    opened = Builder(CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache")), jobs=8), device.chip)
    yield opened
    opened.close()


@pytest.fixture(params=["C++", "Python"])
def launcher(request):
    if request.param == "Python":
        return InterpretedLauncher(0, DRIVER)
    opened = open_launcher(0)
    if opened.name != "C++":
        pytest.skip("the C++ launcher is not built")
    return opened


def drawn(builder: Builder, device: Device, task: GemmTask) -> list[tuple[Built, BuiltKernel]]:
    """Kernels of every family, drawn by a seed, those with atomic sums left out: their results differ between runs."""
    rng, written = random.Random(task.id), []
    for family in families(device.arch):
        if family.supports(task):
            space = list(family.space(task, device.chip))
            written += [family.write(schedule, task) for schedule in rng.sample(space, min(EACH, len(space)))]
    found = [built for _, built in builder.build(written, task) if isinstance(built, Built)]
    assert found
    return [(built, built_kernel(built, device, task)) for built in found if not built.candidate.plan.atomics]


def built_kernel(built: Built, device: Device, task: GemmTask) -> BuiltKernel:
    plan = built.plan_for(task, device.chip.sms)
    assert plan is not None
    return BuiltKernel(Path(built.artifact_path).read_bytes(), plan, task)


def random_operands(task: GemmTask, seed: int = 0) -> tuple[cupy.ndarray, cupy.ndarray]:
    """A and B as they lie in memory, as 16-bit words that hold small finite numbers of either type."""
    rng = cupy.random.RandomState(seed)
    a = (task.k, task.m) if task.layout.transposes_a else (task.m, task.k)
    b = (task.n, task.k) if task.layout.transposes_b else (task.k, task.n)
    return tuple(rng.randint(0, 2, size).astype(cupy.uint16) * 0x3C00 | 0x3800 for size in (a, b))


def by_the_sandbox(built: Built, device: Device, task: GemmTask, a: cupy.ndarray, b: cupy.ndarray) -> cupy.ndarray:
    contender = load(built, task, device)
    d = cupy.full((task.m, task.n), 0xFFFF, cupy.uint16)
    workspace = cupy.zeros(contender.workspace_bytes, cupy.uint8) if contender.workspace_bytes else None
    contender.bind(Operands.in_layout(Layout(task.layout), a, b, d, workspace)).enqueue(device.stream.ptr)
    device.synchronize()
    return d


@pytest.mark.parametrize("fields", TASKS, ids=lambda fields: "-".join(map(str, fields.values())))
def test_results_are_those_of_the_sandbox(device, builder, launcher, fields):
    task = GemmTask.model_validate({**fields, "arch": device.arch})
    a, b = random_operands(task)
    for built, kernel in drawn(builder, device, task):
        loaded, d = launcher.load(kernel), cupy.full((task.m, task.n), 0xFFFF, cupy.uint16)
        for _ in range(3):
            loaded.launch(a.data.ptr, b.data.ptr, d.data.ptr, device.stream.ptr)
        device.synchronize()
        assert (d == by_the_sandbox(built, device, task, a, b)).all(), built.candidate.label


@pytest.mark.parametrize("fields", TASKS[:2], ids=lambda fields: "-".join(map(str, fields.values())))
def test_a_captured_launch_replays_beside_launches_on_its_stream(device, builder, launcher, fields):
    task = GemmTask.model_validate({**fields, "arch": device.arch})
    a, b = random_operands(task)
    for built, kernel in drawn(builder, device, task):
        loaded = launcher.load(kernel)  # not launched before: a workspace is allocated inside the capture
        captured, direct = (cupy.full((task.m, task.n), 0xFFFF, cupy.uint16) for _ in range(2))
        device.synchronize()
        device.stream.begin_capture()
        loaded.launch(a.data.ptr, b.data.ptr, captured.data.ptr, device.stream.ptr)
        graph, other = device.stream.end_capture(), cupy.cuda.Stream(non_blocking=True)
        for _ in range(20):
            graph.launch(other)
            loaded.launch(a.data.ptr, b.data.ptr, direct.data.ptr, device.stream.ptr)
        device.synchronize()
        expected = by_the_sandbox(built, device, task, a, b)
        assert (captured == expected).all(), built.candidate.label
        assert (direct == expected).all(), built.candidate.label


def test_many_threads_on_two_streams(device, builder, launcher):
    task = GemmTask(m=64, n=64, k=4096, arch=device.arch)
    sets = [random_operands(task, seed) for seed in range(THREADS)]
    for built, kernel in drawn(builder, device, task):
        loaded, streams = launcher.load(kernel), [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        results = [cupy.full((task.m, task.n), 0xFFFF, cupy.uint16) for _ in range(THREADS)]
        device.synchronize()
        start = threading.Barrier(THREADS)

        def work(index: int, loaded=loaded, results=results, streams=streams, start=start) -> None:
            a, b = sets[index]
            start.wait()
            for _ in range(LAUNCHES_PER_THREAD):
                loaded.launch(a.data.ptr, b.data.ptr, results[index].data.ptr, streams[index % 2].ptr)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
        device.synchronize()
        for (a, b), d in zip(sets, results, strict=True):
            assert (d == by_the_sandbox(built, device, task, a, b)).all(), built.candidate.label


POISON = """
import pickle, sys
from cudal2_agent.contract.errors import LauncherError
from cudal2.launcher.launcher import open_launcher
loaded = open_launcher(0).load(pickle.load(sys.stdin.buffer))
try:
    for _ in range(100_000):
        loaded.launch(256, 256, 256, 0)
except LauncherError as error:
    print(error.status)
"""


def test_a_poisoned_context_is_told_by_name(device, builder):
    import pickle

    task = GemmTask(m=64, n=64, k=64, arch=device.arch)
    _, kernel = drawn(builder, device, task)[0]
    run = subprocess.run(
        [sys.executable, "-c", POISON], input=pickle.dumps(kernel), capture_output=True, check=True, timeout=120
    )
    assert run.stdout.decode().strip() in {"CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED"}
