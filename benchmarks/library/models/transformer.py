"""A transformer in plain PyTorch, for the models of this folder: their sizes, random weights, fused attention.

It runs the same kernels whether or not a CUDA graph is captured. transformers 5.24 does not: under capture it hands
PyTorch a mask, and attention is not fused.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

THETA = 10000.0
APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}


@dataclass(frozen=True)
class Sizes:
    """`pairs`: heads of keys and values. `activation`: `gelu`, `gelu_tanh` or `silu`; `gated`: times a second product.

    `vocabulary`: of token ids and of the last product; None for a model of vectors. `norm_after`: as BERT does.
    """

    hidden: int
    feeding: int
    layers: int
    heads: int
    pairs: int
    activation: str = "gelu"
    gated: bool = False
    causal: bool = True
    bias: bool = True
    bias_of_attention: bool = True
    rotary: bool = False
    norm_after: bool = False
    vocabulary: int | None = None
    head: bool = True

    def activated(self, x: Tensor) -> Tensor:
        if self.activation == "silu":
            return functional.silu(x)
        return functional.gelu(x, approximate=APPROXIMATIONS[self.activation])


class Layer(nn.Module):  # type: ignore[misc]
    """Shape: (batch, sequence, hidden) in and out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, self.head = sizes, sizes.hidden // sizes.heads
        self.widths = (sizes.hidden, sizes.pairs * self.head, sizes.pairs * self.head)
        self.queries_keys_values = nn.Linear(sizes.hidden, sum(self.widths), bias=sizes.bias or sizes.bias_of_attention)
        self.attended = nn.Linear(sizes.hidden, sizes.hidden, bias=sizes.bias)
        self.up = nn.Linear(sizes.hidden, sizes.feeding * (2 if sizes.gated else 1), bias=sizes.bias)
        self.down = nn.Linear(sizes.feeding, sizes.hidden, bias=sizes.bias)
        norm = nn.RMSNorm if sizes.gated else nn.LayerNorm
        self.norms = nn.ModuleList([norm(sizes.hidden), norm(sizes.hidden)])

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        if self.sizes.norm_after:
            x = self.norms[0](x + self._attention(x, turns))
            return self.norms[1](x + self._feeding(x))
        x = x + self._attention(self.norms[0](x), turns)
        return x + self._feeding(self.norms[1](x))

    def _attention(self, x: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, sequence, hidden = x.shape
        parts = self.queries_keys_values(x).split(self.widths, -1)
        queries, keys, values = (one.view(batch, sequence, -1, self.head).transpose(1, 2) for one in parts)
        if turns is not None:
            queries, keys = _turned(queries, turns), _turned(keys, turns)
        shared = self.sizes.pairs != self.sizes.heads
        found = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=self.sizes.causal and sequence > 1, enable_gqa=shared
        )
        return self.attended(found.transpose(1, 2).reshape(batch, sequence, hidden))

    def _feeding(self, x: Tensor) -> Tensor:
        if self.sizes.gated:
            gate, up = self.up(x).chunk(2, -1)
            return self.down(self.sizes.activated(gate) * up)
        return self.down(self.sizes.activated(self.up(x)))


class Transformer(nn.Module):  # type: ignore[misc]
    """Token ids (batch, sequence), or vectors (batch, sequence, hidden), to logits or vectors."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        words = sizes.vocabulary
        self.words = nn.Embedding(words, sizes.hidden) if words is not None else None
        self.layers = nn.ModuleList([Layer(sizes) for _ in range(sizes.layers)])
        self.norm = nn.RMSNorm(sizes.hidden) if sizes.gated else nn.LayerNorm(sizes.hidden)
        self.last = nn.Linear(sizes.hidden, words, bias=False) if words is not None and sizes.head else None

    def forward(self, given: Tensor) -> Tensor:
        x = self.words(given) if self.words is not None else given
        turns = self._turns(x) if self.sizes.rotary else None
        for layer in self.layers:
            x = layer(x, turns)
        x = self.norm(x)
        return x if self.last is None else self.last(x)

    def _turns(self, x: Tensor) -> tuple[Tensor, Tensor]:
        half = self.sizes.hidden // self.sizes.heads // 2
        speeds = THETA ** (torch.arange(half, device=x.device) / -half)
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * speeds
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    (left, right), (cosine, sine) = x.chunk(2, -1), turns
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), -1)
