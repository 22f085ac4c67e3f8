"""Six layers of Gemma 2B with its vocabulary.

Up to 64 `tokens` are sequences of one, as in decoding; more are one sequence.
"""

import torch
from transformer import Sizes, Transformer


def model() -> torch.nn.Module:
    sizes = Sizes(
        2048, 16384, 6, 8, 1, "gelu_tanh", gated=True, bias=False, bias_of_attention=False, rotary=True, vocabulary=256000
    )
    return Transformer(sizes).bfloat16()


def inputs(tokens: int) -> torch.Tensor:
    return torch.randint(0, 256000, (tokens, 1) if tokens <= 64 else (1, tokens))
