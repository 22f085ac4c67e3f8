"""Four layers of Llama 3 8B and a vocabulary of 32,000: `tokens` are one sequence."""

import torch
from transformer import Sizes, Transformer


def model() -> torch.nn.Module:
    sizes = Sizes(4096, 14336, 4, 32, 8, "silu", gated=True, bias=False, bias_of_attention=False, rotary=True, vocabulary=32000)
    return Transformer(sizes).bfloat16()


def inputs(tokens: int) -> torch.Tensor:
    return torch.randint(0, 32000, (1, tokens))
