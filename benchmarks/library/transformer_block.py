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
from cudal2.torch import torch_session
from cudal2.torch.device_dispatch import DeviceDispatch
from cudal2.torch.inductor.inductor_choices import cudal2_mm_out
from cudal2.torch.matrix_signature import DTYPE_OF
from cudal2_agent.agent.library.paired_programs import Program, graph_of, paired_times
from cudal2_agent.agent.model_tuning.gpu_shares import gpu_shares
from cudal2_agent.contract.records.task import ElementType, Layout

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


def measure_block(
    size: BlockSize, mode: str, device: str, rounds: int, model: str = "block", element: ElementType = ElementType.F16
) -> dict[str, Any]:
    """One row: times of a training step with and without the library, how far the gradients differ, and what was served."""
    torch.manual_seed(18)
    dtype = DTYPE_OF[element]
    block = MODELS[model](size.hidden, device, dtype)
    x = torch.randn(size.batch, size.sequence, size.hidden, device=device, dtype=dtype, requires_grad=True)
    plain_step, served_step, called = _steps(block, x, mode, device)
    expected = _gradients(block, x, plain_step)
    with cudal2.enable():
        difference = gradient_difference(_gradients(block, x, served_step), expected)
        (kernels, algorithms), fell_back = _calls_by_pass(), Counter(cudal2.status().fallbacks)
        called()
    kernels_then, algorithms_then = _calls_by_pass()
    row: dict[str, Any] = {
        "model": model,
        "hidden": size.hidden,
        "batch": size.batch,
        "sequence": size.sequence,
        "element": element.value,
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
    if device == "cuda" and mode != "compile":
        with cudal2.enable():
            row["gpu_time"] = gpu_shares(called).model_dump()
    return row


def _steps(block: nn.Module, x: torch.Tensor, mode: str, device: str) -> tuple[Program, Program, Program]:
    """A training step without and with the library, ready to be timed, and one that calls what the second one runs.

    A graph calls nothing: its kernels are those of the eager step.
    """

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
        return plain, served, served
    step = step_of(block)
    with cudal2.enable():
        step()
    torch_session.service().builds.wait(600)
    for parameter in (*block.parameters(), x):
        parameter.grad = torch.zeros_like(parameter)
    if mode == "eager":
        return step, step, step
    plain = graph_of(step, device)
    with cudal2.enable():
        return plain, graph_of(step, device), step


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


def _calls_by_pass() -> tuple[Counter[str], Counter[str]]:
    """Calls that kernels of the library ran, and those of its algorithms; by pass, which the layout tells in a linear layer."""
    service = torch_session.service()
    found = [one for one in map(service.devices.find, service.platform.devices()) if isinstance(one, DeviceDispatch)]

    def by_pass(calls: dict[str, int]) -> Counter[str]:
        counts = Counter[str]()
        for device in found:
            for id_, count in calls.items():
                counts[PASS_OF[device.library.entry(id_).task.layout]] += count
        return counts

    return by_pass(service.counts.served()), by_pass(service.counts.by_algorithm())
