"""The encoder of Whisper large: `tokens` are one sequence of vectors, 1,500 for thirty seconds."""

import torch
from transformer import Sizes, Transformer


def model() -> torch.nn.Module:
    return Transformer(Sizes(1280, 5120, 32, 20, 20, causal=False)).half()


def inputs(tokens: int) -> torch.Tensor:
    return torch.randn(1, tokens, 1280).half()
