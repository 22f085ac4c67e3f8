import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * rows))

    def forward(self, x):
        return torch.relu(x * self.weight[:columns])


rows = 65536 * 1024
columns = 2048
batch = 65536 * 65536


def get_inputs():
    return [torch.rand(batch, columns)]


def get_init_inputs():
    return []
