"""GPU time of a program by the operators that it is in: products that a library serves, PyTorch's own, attention, the rest."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from cudal2.torch import torch_session
from cudal2_agent.agent.model_tuning.tune_records import GpuShares

_RANGE = "cudal2 "
_PRODUCTS = ("mm", "addmm")
_BATCHED = ("bmm", "baddbmm")


def kind_of(operator: str) -> str:
    """What an operator of ATen counts as: a name of `GpuShares` without its unit; empty for the rest."""
    if operator in _PRODUCTS:
        return "other"
    if operator in _BATCHED:
        return "batched"
    if "attention" in operator:
        return "attention"
    return "grouped" if "grouped_mm" in operator else ""


def served_calls() -> int:
    """Products that this process's library has run: by its kernels, and by its algorithms of cuBLASLt."""
    counts = torch_session.service().counts
    return sum(counts.served().values()) + sum(counts.by_algorithm().values())


def gpu_shares(program: Callable[[], object]) -> GpuShares:
    """Of one run."""
    named = _NamedOperators()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler, named:
        program()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    found = dict.fromkeys(("served", "other", "batched", "attention", "grouped"), 0.0)
    whole = 0.0
    for event in profiler.events():
        ours = event.name.startswith(_RANGE)
        if ours and event.device_type == DeviceType.CPU:
            found[named.kinds[int(event.name.removeprefix(_RANGE))]] += float(event.device_time_total)
        elif event.device_type == DeviceType.CUDA and not ours:  # a range is told again as the GPU saw it
            whole += float(event.time_range.elapsed_us())
    rest = max(0.0, whole - sum(found.values()))
    return GpuShares(**{f"{kind}_us": us for kind, us in found.items()}, rest_us=rest)


class _NamedOperators(TorchDispatchMode):  # type: ignore[misc]
    """Each product and each attention in a profiler's range of its own. `kinds`: what each counts as, by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = kind_of(func.overloadpacket.__name__)
        if not kind:
            return func(*args, **(kwargs or {}))
        number, before = len(self.kinds), served_calls()
        self.kinds.append(kind)
        with record_function(f"{_RANGE}{number}"):
            out = func(*args, **(kwargs or {}))
        if served_calls() > before:
            self.kinds[number] = "served"
        return out
