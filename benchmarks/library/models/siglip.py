"""The encoder of SigLIP so400m of 384 pixels, without the patches' own product: `tokens` are images of 729 vectors."""

import torch
from transformer import Sizes, Transformer


def model() -> torch.nn.Module:
    return Transformer(Sizes(1152, 4304, 27, 16, 16, "gelu_tanh", causal=False)).half()


def inputs(tokens: int) -> torch.Tensor:
    return torch.randn(max(1, tokens // 729), 729, 1152).half()
