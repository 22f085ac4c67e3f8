"""Host time of one product of two small matrices, by the way that a call takes. Unit: microseconds.

On a GPU the queue is drained between samples, so that a full queue never makes the host wait. On the CPU a call computes its
product too, so only differences of fallbacks count there.

Without a GPU, and with a C++ compiler: python -m benchmarks.library.host_costs. There a launch that does nothing stands in the
place of a kernel.
"""

import ctypes
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import cudal2
from benchmarks.harness import execute, script
from cudal2.dispatch.dispatcher import Dispatcher
from cudal2.library.prepared_kernels import CachedKernel
from cudal2.torch import compiled_build, torch_session
from cudal2.torch.aten_override import OPERATORS, AtenOverride, unregister
from cudal2.torch.compiled_kernels import CompiledKernels
from cudal2.torch.product_service import ProductService
from cudal2_agent.contract.records.task import GemmTask
from tests.doubles.host_products import HostKernel, HostPlatform, HostProducts

CALLS, SAMPLES = 200, 11
_CPU_TASK = GemmTask(m=16, n=16, k=16)
_EMPTY = """
using Word = unsigned long;
extern "C" void launch(void*, Word, Word, Word, Word, void*, int* launched, char*, Word) { *launched = 1; }
"""


def host_costs(
    device: str,
    served: tuple[torch.Tensor, torch.Tensor],
    left: tuple[torch.Tensor, torch.Tensor],
    compiled: CompiledKernels | None = None,
) -> dict[str, float]:
    """Costs with operands that the service in use serves, and with ones that it leaves to PyTorch.

    `compiled`: the replaced kernels in C++; None leaves their rows out.
    """
    operator = torch.ops.cudal2.matmul.default
    service = torch_session.service()
    unregister()
    with torch.no_grad():
        costs = {
            "torch.mm": cost(device, torch.mm, *left),
            "torch.mm, same operands as served": cost(device, torch.mm, *served),
            "cudal2.matmul, served": cost(device, cudal2.matmul, *served),
            "cudal2.matmul, left to torch": cost(device, cudal2.matmul, *left),
            "torch.ops.cudal2.matmul, served": cost(device, operator, *served),
            "service alone, left": cost(device, service.product, *left),
            "decision alone": decision_us(service, served[0].get_device()),
        }
        costs |= enabled_costs(device, served, left, None)
        if compiled is not None:
            costs |= enabled_costs(device, served, left, compiled)
        costs["torch.mm, at the end"] = cost(device, torch.mm, *left)  # a host that became faster meanwhile tells here
    return {name: round(value, 3) for name, value in costs.items()}


def enabled_costs(
    device: str,
    served: tuple[torch.Tensor, torch.Tensor],
    left: tuple[torch.Tensor, torch.Tensor],
    compiled: CompiledKernels | None,
) -> dict[str, float]:
    """Costs of `torch.mm` while it is replaced, and after that. `compiled`: None for the kernels in Python."""
    unregister()
    override = AtenOverride(torch_session.service(), OPERATORS, compiled)
    way = f"enabled in {' and '.join(override.languages)}"
    costs = {
        f"torch.mm {way}, served": cost(device, torch.mm, *served),
        f"torch.mm {way}, left to torch": cost(device, torch.mm, *left),
    }
    override.stop()
    costs[f"torch.mm {way}, disabled again"] = cost(device, torch.mm, *left)
    unregister()
    return costs


def cost(device: str, call: Callable[..., object], *operands: torch.Tensor) -> float:
    """Median over samples of the time per call."""
    samples = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(CALLS):
            call(*operands)
        samples.append((time.perf_counter() - start) / CALLS * 1e6)
        if device == "cuda":
            torch.cuda.synchronize()
    return statistics.median(samples)


def decision_us(service: ProductService, device: int) -> float:
    """Time of one lookup of a decision that was made before."""
    found = service.devices.find(device)
    dispatcher: Dispatcher | None = getattr(found, "dispatcher", None)
    if dispatcher is None:
        return float("nan")
    decide = dispatcher.decide
    samples = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(CALLS):
            decide(64, 64, 64, 0)
        samples.append((time.perf_counter() - start) / CALLS * 1e6)
    return statistics.median(samples)


class EmptyKernel(HostKernel):
    """A launch that does nothing, in Python and in C."""

    def __init__(self, task: GemmTask, entry: tuple[int, int]) -> None:
        super().__init__(task, failing=False)
        self.c_entry = entry  # type: ignore[assignment]

    def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:
        pass


class EmptyPlatform(HostPlatform):
    """The CPU with kernels that do nothing. `entry`: as of a loaded kernel."""

    def __init__(self, entry: tuple[int, int]) -> None:
        super().__init__()
        self._entry = entry

    def load(self, device: int, kernel: CachedKernel, task: GemmTask) -> EmptyKernel:  # noqa: ARG002
        return EmptyKernel(task, self._entry)


def main() -> None:
    script(__file__, __doc__).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        compiled = CompiledKernels(compiled_build.build(folder / "kernels", "CPU"))
        products = HostProducts(folder, [_CPU_TASK], platform=EmptyPlatform(_empty_entry(folder)))
        torch_session.use_service(products.service)
        size = _CPU_TASK.m
        served = torch.randn(size, size).half(), torch.randn(size, size).half()
        for name, value in host_costs("cpu", served, (torch.randn(2, 2), torch.randn(2, 2)), compiled).items():
            print(f"{value:8.2f}  {name}")


def _empty_entry(folder: Path) -> tuple[int, int]:
    source, library = folder / "empty.cpp", folder / "empty.so"
    source.write_text(_EMPTY, encoding="utf-8")
    compiler = next(found for name in compiled_build.COMPILERS if (found := shutil.which(name)))
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return ctypes.cast(ctypes.CDLL(str(library)).launch, ctypes.c_void_p).value or 0, 0


if __name__ == "__main__":
    execute(main)
