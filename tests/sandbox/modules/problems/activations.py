import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, 4, 3, stride=2, padding=1, output_padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.group = nn.GroupNorm(2, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(self.group(F.mish(self.norm(self.conv(x)))))
        x = F.max_pool2d(F.gelu(x), 2) + F.adaptive_avg_pool2d(F.silu(x), (1, 1))
        x = F.softplus(F.elu(x)) * F.hardswish(x) + F.avg_pool2d(F.hardtanh(x), 3, 1, 1)
        return F.softmax(x.flatten(1), dim=1).cumsum(1)


batch = 2
channels = 3


def get_inputs():
    return [torch.rand(batch, channels, 6, 6)]


def get_init_inputs():
    return [channels]
