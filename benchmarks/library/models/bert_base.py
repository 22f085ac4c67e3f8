"""BERT base as an encoder: `tokens` are four sequences."""

import torch
from transformer import Sizes, Transformer


def model() -> torch.nn.Module:
    sizes = Sizes(768, 3072, 12, 12, 12, causal=False, norm_after=True, vocabulary=30522, head=False)
    return Transformer(sizes).half()


def inputs(tokens: int) -> torch.Tensor:
    return torch.randint(0, 30522, (4, tokens // 4))
