"""GPT-2 medium with its vocabulary: `tokens` are four sequences."""

import torch
from transformer import Sizes, Transformer


def model() -> torch.nn.Module:
    return Transformer(Sizes(1024, 4096, 24, 16, 16, activation="gelu_tanh", vocabulary=50257)).half()


def inputs(tokens: int) -> torch.Tensor:
    return torch.randint(0, 50257, (4, tokens // 4))
