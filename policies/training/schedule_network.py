"""The network of `policies.schedule.learned.network` in torch, for training. Both compute the same."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from cudal2_agent.policies.schedule.learned.network import DEVIATION, MAX_DEVIATION, MEAN, Floats32, Tensors, members_in
from cudal2_agent.policies.training.training_plan import NetworkSize

UNSEEN = 1e6  # deviation of a column that was constant, so that its scaled value is next to 0


class TrainedMember(nn.Module):  # type: ignore[misc]
    """One perceptron with its two heads."""

    def __init__(self, inputs: int, size: NetworkSize) -> None:
        super().__init__()
        widths = [inputs] + [size.width] * size.depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.error = nn.Linear(size.width, 1)
        self.embedding = nn.Linear(size.width, size.dimensions)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            hidden = self.dropout(nn.functional.silu(layer(hidden)))
        return self.error(hidden)[:, 0], self.embedding(hidden)


class ScheduleNetwork(nn.Module):  # type: ignore[misc]
    """An ensemble of members over scaled features.

    Shape: features (entries, columns) to errors (members, entries) and embeddings (entries, members × dimensions).
    """

    def __init__(self, mean: Floats32, deviation: Floats32, size: NetworkSize, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.register_buffer("mean", torch.from_numpy(mean))
        self.register_buffer("deviation", torch.from_numpy(deviation))
        self.members = nn.ModuleList(TrainedMember(len(mean), size) for _ in range(size.members))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        scaled = ((features - self.mean) / self.deviation).clamp(-MAX_DEVIATION, MAX_DEVIATION)
        outputs = [member(scaled) for member in self.members]
        return torch.stack([error for error, _ in outputs]), torch.cat([embedded for _, embedded in outputs], dim=1)

    def tensors(self) -> dict[str, Floats32]:
        """The weights by the names that the numpy network reads."""
        named = {name.removeprefix("members."): value for name, value in self.state_dict().items()}
        features = {MEAN: named.pop("mean"), DEVIATION: named.pop("deviation")}
        return {name: value.detach().numpy().astype(np.float32) for name, value in {**features, **named}.items()}

    @classmethod
    def of(cls, tensors: Tensors, dropout: float = 0.0) -> "ScheduleNetwork":
        """The network with these weights. Raises: KeyError, RuntimeError where they do not fit each other."""
        depth = sum(name.startswith("0.layers.") and name.endswith(".weight") for name in tensors)
        dimensions, width = tensors["0.embedding.weight"].shape
        size = NetworkSize(members=members_in(tensors), width=width, depth=depth, dimensions=dimensions, dropout=dropout)
        network = cls(tensors[MEAN], tensors[DEVIATION], size, seed=0)
        place = {name: f"members.{name}" if name[0].isdigit() else name.removeprefix("features.") for name in tensors}
        network.load_state_dict({place[name]: torch.from_numpy(np.array(value)) for name, value in tensors.items()})
        return network


def feature_scale(features: Floats32) -> tuple[Floats32, Floats32]:
    """Mean and deviation of each column. A column that is constant counts for nothing, also where it varies later."""
    mean, deviation = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
    return mean.astype(np.float32), np.where(deviation > 1e-4, deviation, UNSEEN).astype(np.float32)
