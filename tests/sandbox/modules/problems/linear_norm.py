import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.linear = nn.Linear(features, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))


batch = 4
features = 8
hidden = 2 * 8


def get_inputs():
    return [torch.rand(batch, features)]


def get_init_inputs():
    return [features, hidden]
