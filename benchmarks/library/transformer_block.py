"""A transformer block without biases, forward and backward, with and without the library.

Attention and the gated feed-forward part are those of today's language models. One product gives queries, keys and values; one
follows attention, one leads into the feed-forward part and one out of it: four products forward, eight backward.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import cudal2
from benchmarks.library.paired_rounds import Program, graph_of, paired_times
from contract.task import Layout
from cudal2.torch import torch_session
from cudal2.torch.inductor_choices import cudal2_mm_out
from cudal2.torch.product_service import DeviceDispatch

MODES = ("eager", "compile", "graphs")
PASS_OF = {Layout.TN: "forward", Layout.NN: "dX", Layout.NT: "dW"}
WARM_RUNS = 2
_HEAD = 64


@dataclass(frozen=True)
class BlockSize:
    """`tokens`: batch times sequence."""

    hidden: int
    batch: int
    sequence: int

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Shape: (batch, sequence, hidden) in and out."""

    def __init__(self, hidden: int, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        kind: dict[str, Any] = {"device": device, "dtype": dtype, "bias": False}
        self.heads = max(1, hidden // _HEAD)
        self.before_attention = nn.RMSNorm(hidden, device=device, dtype=dtype)
        self.before_feeding = nn.RMSNorm(hidden, device=device, dtype=dtype)
        self.queries_keys_values = nn.Linear(hidden, 3 * hidden, **kind)
        self.attended = nn.Linear(hidden, hidden, **kind)
        self.gate_and_up = nn.Linear(hidden, 8 * hidden, **kind)
        self.down = nn.Linear(4 * hidden, hidden, **kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(batch, sequence, 3, self.heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.attended(seen.transpose(1, 2).reshape(batch, sequence, hidden))
        gate, up = self.gate_and_up(self.before_feeding(x)).chunk(2, dim=-1)
        fed: torch.Tensor = x + self.down(functional.silu(gate) * up)
        return fed


class LlamaLayers(nn.Module):  # type: ignore[misc]
    """Two layers of a Hugging Face model from a configuration, with random weights. Shape: as `TransformerBlock`."""

    def __init__(self, hidden: int, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaModel

        config = LlamaConfig(
            hidden_size=hidden,
            intermediate_size=4 * hidden,
            num_hidden_layers=2,
            num_attention_heads=max(1, hidden // _HEAD),
            vocab_size=128,
            use_cache=False,
        )
        layers: Any = LlamaModel(config)
        self.layers = layers.to(device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(inputs_embeds=x).last_hidden_state
        return out


MODELS: dict[str, Callable[[int, str, torch.dtype], nn.Module]] = {"block": TransformerBlock, "llama": LlamaLayers}


def measure_block(size: BlockSize, mode: str, device: str, rounds: int, model: str = "block") -> dict[str, Any]:
    """One row: times of a training step with and without the library, how far the gradients differ, and what was served."""
    torch.manual_seed(18)
    dtype = torch.float16
    block = MODELS[model](size.hidden, device, dtype)
    x = torch.randn(size.batch, size.sequence, size.hidden, device=device, dtype=dtype, requires_grad=True)
    plain_step, served_step = _steps(block, x, mode, device)
    expected = _gradients(block, x, plain_step)
    (kernels, algorithms), fell_back = _served_calls(), Counter(cudal2.status().fallbacks)
    with cudal2.enable():
        difference = gradient_difference(_gradients(block, x, served_step), expected)
    kernels_then, algorithms_then = _served_calls()
    row: dict[str, Any] = {
        "model": model,
        "hidden": size.hidden,
        "batch": size.batch,
        "sequence": size.sequence,
        "mode": mode,
        "gradient_difference": difference,
        "largest_gradient": max(float(one.abs().max()) for one in expected),
        "served_by_pass": dict(kernels_then - kernels + (algorithms_then - algorithms)),
        "by_algorithm": dict(algorithms_then - algorithms),
        "fell_back": {cause.value: count for cause, count in (Counter(cudal2.status().fallbacks) - fell_back).items()},
    }
    row["times"] = paired_times(
        plain_step, served_step, calls=1, rounds=rounds, device=device, around=cudal2.enable, warm_runs=WARM_RUNS
    ).as_json()
    if device == "cuda":
        row["gpu_time_share"] = gpu_time_share(plain_step, served_step)
    return row


def _steps(block: nn.Module, x: torch.Tensor, mode: str, device: str) -> tuple[Program, Program]:
    """A training step without and with the library, ready to be timed."""

    def step_of(forward: Callable[[torch.Tensor], torch.Tensor]) -> Program:
        def step() -> None:
            forward(x).float().square().sum().backward()  # a mean's gradients would vanish in half precision

        return step

    if mode == "compile":
        # An option of one of them, not a setting of both: PyTorch shares code between compilations with equal options.
        served = step_of(torch.compile(block, options={"external_matmul": [cudal2_mm_out]}))
        plain = step_of(torch.compile(block))
        for program in (plain, served):
            program()
        if torch_session.service().builds.waiting():
            raise RuntimeError("kernels were not built when the block was compiled; run `cudal2-agent library prepare`")
        return plain, served
    step = step_of(block)
    with cudal2.enable():
        step()
    torch_session.service().builds.wait(600)
    for parameter in (*block.parameters(), x):
        parameter.grad = torch.zeros_like(parameter)
    if mode == "eager":
        return step, step
    plain = graph_of(step, device)
    with cudal2.enable():
        return plain, graph_of(step, device)


def _gradients(block: nn.Module, x: torch.Tensor, step: Program) -> list[torch.Tensor]:
    every = [*block.parameters(), x]
    for one in every:
        if one.grad is not None:
            one.grad.zero_()
    step()
    return [one.grad.clone() for one in every if one.grad is not None]


def gradient_difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Largest difference of a gradient, over the largest entry of it."""
    pairs = zip(found, expected, strict=True)
    return max(float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-12)) for a, b in pairs)


def _served_calls() -> tuple[Counter[str], Counter[str]]:
    """Calls that kernels of the library ran, and those of its algorithms; by pass, which the layout tells in a linear layer."""
    service = torch_session.service()
    found = [one for one in map(service.device, service.platform.devices()) if isinstance(one, DeviceDispatch)]

    def by_pass(calls: dict[str, int]) -> Counter[str]:
        counts = Counter[str]()
        for device in found:
            for id_, count in calls.items():
                counts[PASS_OF[device.library.entry(id_).task.layout]] += count
        return counts

    return by_pass(service.served()), by_pass(service.by_algorithm())


def gpu_time_share(plain: Program, served: Program) -> dict[str, float]:
    """GPU time of the kernels that only the served step runs, by their names, of all its kernels, and of the plain step's.

    An algorithm of cuBLASLt may have a kernel that the plain step runs, too, so that `library_us` is a lower bound.
    Unit: microseconds.
    """
    without = _kernel_us(plain)
    with cudal2.enable():
        with_library = _kernel_us(served)
    library_us = sum(us for name, us in with_library.items() if name not in without)
    return {"library_us": library_us, "all_us": sum(with_library.values()), "plain_us": sum(without.values())}


def _kernel_us(step: Program) -> dict[str, float]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return {event.key: float(event.self_device_time_total) for event in profile.key_averages()}
