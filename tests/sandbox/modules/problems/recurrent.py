import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(8, 5)

    def forward(self, x):
        out, (last, _) = self.lstm(x)
        return self.gru(out)[0], last


steps = 7


def get_inputs():
    return [torch.randn(2, steps, 3)]


def get_init_inputs():
    return []
