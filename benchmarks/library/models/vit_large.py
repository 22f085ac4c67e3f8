"""ViT large of 16x16 patches, without the patches' own product: `tokens` are images of 197 vectors."""

import torch
from transformer import Sizes, Transformer


def model() -> torch.nn.Module:
    return Transformer(Sizes(1024, 4096, 24, 16, 16, causal=False)).half()


def inputs(tokens: int) -> torch.Tensor:
    return torch.randn(max(1, tokens // 197), 197, 1024).half()
