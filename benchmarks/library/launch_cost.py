"""Time of the host per launch: torch.matmul, the library's launcher in C++, and the one in Python.

Enqueues bursts of launches that the driver's queue holds, waits for the GPU outside the timed part, and takes the median burst.
Kernels are drawn from each family for three shapes, so that some have tensor maps and some a workspace.

Run from the repository's root: python -m benchmarks.library.launch_cost [--device 0] [--bursts 50]
Without a GPU: python -m benchmarks.library.launch_cost --fake, which measures the launchers alone on the driver of the tests.
Prints a table. Unit: microseconds per call.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cudal2.launcher.compiled import CompiledLauncher
from cudal2.launcher.interpreted import InterpretedLauncher
from cudal2.launcher.launcher import DRIVER
from cudal2.launcher.loaded_kernel import BuiltKernel
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import ResolvedPlan, TensorMapArg, plan_from_json, resolve
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions

SHAPES = ((64, 64, 64), (256, 512, 1024), (128, 128, 8192))
BURST = 200  # launches; the queue of a stream holds about a thousand
SEED = 18


class LaunchCost(NamedTuple):
    """Median time of one way to compute one product. `kernel`: what its launch needs."""

    shape: str
    way: str
    kernel: str
    us: float


def median_us(call: Callable[[], object], synchronize: Callable[[], object], bursts: int) -> float:
    """Median host time of a call over bursts; the first burst warms up."""
    found = []
    for _ in range(bursts + 1):
        synchronize()
        start = time.perf_counter()
        for _ in range(BURST):
            call()
        found.append((time.perf_counter() - start) / BURST * 1e6)
    synchronize()
    return statistics.median(found[1:])


def needs(plan: ResolvedPlan) -> str:
    maps = sum(isinstance(arg, TensorMapArg) for launch in plan.launches for arg in launch.args)
    workspace = f", workspace (zero: {plan.zero})" if plan.workspace_bytes else ""
    return f"{len(plan.launches)} launch(es), {maps} tensor maps{workspace}"


def on_the_gpu(device: int, bursts: int) -> Iterator[LaunchCost]:
    """Rows of torch and of one kernel per family and shape."""
    import torch

    torch.cuda.set_device(device)
    stream = torch.cuda.current_stream()
    launchers: tuple[CompiledLauncher | InterpretedLauncher, ...] = (
        CompiledLauncher(device, DRIVER),
        InterpretedLauncher(device, DRIVER),
    )
    for m, n, k in SHAPES:
        a, b, d = (torch.randn(size, device="cuda", dtype=torch.float16) for size in ((m, k), (k, n), (m, n)))
        ways: dict[str, Callable[[], object]] = {
            "torch.matmul": partial(torch.matmul, a, b),
            "torch.matmul(out=)": partial(torch.matmul, a, b, out=d),
        }
        for way, call in ways.items():
            yield LaunchCost(f"{m}x{n}x{k}", way, "", median_us(call, torch.cuda.synchronize, bursts))
        for kernel in drawn_kernels(GemmTask(m=m, n=n, k=k), device):
            for launcher in launchers:
                call = call_of(launcher.load(kernel), (a.data_ptr(), b.data_ptr(), d.data_ptr()), stream.cuda_stream)
                us = median_us(call, torch.cuda.synchronize, bursts)
                yield LaunchCost(f"{m}x{n}x{k}", launcher.name, needs(kernel.plan), us)


def drawn_kernels(task: GemmTask, device: int) -> Iterator[BuiltKernel]:
    """One kernel of each family that supports the task, drawn from its space."""
    from cudal2_agent.policies.schedule.families.registry import families
    from cudal2_agent.sandbox.building.builder import Builder
    from cudal2_agent.sandbox.cuda.device import Device

    chip = Device(device).chip
    task = task.model_copy(update={"arch": chip.arch})
    spaces = [(family, list(family.space(task, chip))) for family in families(chip.arch) if family.supports(task)]
    written = [family.write(random.Random(SEED).choice(space), task) for family, space in spaces if space]
    with tempfile.TemporaryDirectory() as cache:
        for _, built in Builder(CompileOptions(cache_dir=cache), chip).build(written, task):
            if isinstance(built, Built) and (plan := built.plan_for(task, chip.sms)):
                yield BuiltKernel(Path(built.artifact_path).read_bytes(), plan, task)


def call_of(kernel: Any, addresses: tuple[int, int, int], stream: int) -> Callable[[], object]:
    a, b, d = addresses
    return lambda: kernel.launch(a, b, d, stream)


def on_the_fake(bursts: int) -> Iterator[LaunchCost]:
    """Rows of both launchers on a driver that does nothing: what is left is the launcher's own time."""
    from tests.doubles.fake_driver import FakeDriver, fake_cubin, fake_driver_file

    fake = FakeDriver(fake_driver_file())
    fake.record(False)
    out = {"tensor": "D", "access": "write"}
    maps = [{"tensor_map": {"of": of, "box": [64, 64], "swizzle": 128}} for of in "AB"]
    scratch = {"bytes": 1024, "zero": True}
    plans: tuple[tuple[list[Any], list[int], dict[str, Any]], ...] = (
        ([{"tensor": "A"}, {"tensor": "B"}, out], [8, 8, 8], {}),
        ([*maps, out], [128, 128, 8], {}),
        ([*maps, out, {"workspace": 0}], [128, 128, 8, 8], {"workspace": scratch}),
    )
    for (m, n, k), (args, sizes, more) in zip(SHAPES, plans, strict=True):
        task = GemmTask(m=m, n=n, k=k)
        launch = {"entry": "gemm", "grid": [4, 1, 1], "block": [128, 1, 1], "cluster": [2, 1, 1], "args": args}
        plan = resolve(plan_from_json({"arch": "sm_90a", "launches": [launch], **more}), task, LIMITS[Arch.SM_90A], 132)
        for opened in (CompiledLauncher, InterpretedLauncher):
            kernel = opened(0, fake.file).load(BuiltKernel(fake_cubin({"gemm": sizes}), plan, task))
            us = median_us(call_of(kernel, (2**20, 2**21, 2**22), 0), lambda: None, bursts)
            yield LaunchCost(task.shape, opened.name, needs(plan), us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--bursts", type=int, default=50)
    parser.add_argument("--fake", action="store_true")
    told = parser.parse_args()
    print("| shape | by | its launch | us per call |\n|---|---|---|---|")
    for row in on_the_fake(told.bursts) if told.fake else on_the_gpu(told.device, told.bursts):
        print(f"| {row.shape} | {row.way} | {row.kernel} | {row.us:.2f} |", flush=True)


if __name__ == "__main__":
    main()
