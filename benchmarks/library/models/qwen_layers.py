"""Eight layers of Qwen2.5 1.5B, whose attention has biases.

Up to 64 `tokens` are sequences of one, as in decoding; more are one sequence.
"""

import torch
from transformer import Sizes, Transformer


def model() -> torch.nn.Module:
    return Transformer(Sizes(1536, 8960, 8, 12, 2, "silu", gated=True, bias=False, rotary=True, vocabulary=151936)).bfloat16()


def inputs(tokens: int) -> torch.Tensor:
    return torch.randint(0, 151936, (tokens, 1) if tokens <= 64 else (1, tokens))
