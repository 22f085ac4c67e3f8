"""Large; groups must divide channels, and two sizes must be equal."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size, groups=groups)
        self.linear = nn.Linear(widths[0], widths[1])

    def forward(self, x):
        return self.linear(self.conv(x).mean((2, 3)))


batch, side = 2**10, 128
channels = 256
widths = [256, 64 + 1]
kernel_size = 3
groups = 4


def get_inputs():
    return [torch.rand(batch, channels, side, side)]


def get_init_inputs():
    return []
