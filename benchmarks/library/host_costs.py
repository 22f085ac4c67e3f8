"""Host time of one product of two small matrices, by the way that a call takes. Unit: microseconds.

On a GPU the queue is drained between samples, so that a full queue never makes the host wait. On the CPU a call computes its
product too, so only differences of fallbacks count there.
"""

import statistics
import time
from collections.abc import Callable

import torch

import cudal2
from cudal2.dispatch.dispatcher import Dispatcher
from cudal2.torch import torch_session
from cudal2.torch.aten_override import unregister
from cudal2.torch.product_service import ProductService

CALLS, SAMPLES = 200, 11


def host_costs(
    device: str, served: tuple[torch.Tensor, torch.Tensor], left: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, float]:
    """Costs with operands that the service in use serves, and with ones that it leaves to PyTorch."""
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
        with cudal2.enable():
            costs["torch.mm enabled, served"] = cost(device, torch.mm, *served)
            costs["torch.mm enabled, left to torch"] = cost(device, torch.mm, *left)
        costs["torch.mm disabled again"] = cost(device, torch.mm, *left)
    return {name: round(value, 3) for name, value in costs.items()}


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
    found = service.device(device)
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
