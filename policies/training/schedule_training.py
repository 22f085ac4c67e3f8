"""Trains the schedule policy: stages over the groups of a store, with checkpoints from which a killed training goes on."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cudal2_agent.contract.errors import TrainingFailed
from cudal2_agent.policies.schedule.learned.network import Tensors
from cudal2_agent.policies.training.checkpoints import Checkpoint, Checkpoints, State
from cudal2_agent.policies.training.group_tensors import GroupTensors, tensors_of
from cudal2_agent.policies.training.groups import ScheduleGroup
from cudal2_agent.policies.training.losses import contrastive, feedback, group_relative, pinned, supervised
from cudal2_agent.policies.training.schedule_network import ScheduleNetwork, feature_scale
from cudal2_agent.policies.training.training_plan import Stage, StagePlan, TrainingPlan

MAX_NORM = 5.0  # of a step's gradient
FEEDBACK_WEIGHT = 0.5
PINNED_WEIGHT = 2.0
WARM_UP = 0.1  # of a stage's steps, in which the rate of learning rises


@dataclass(frozen=True)
class EpochReport:
    """One epoch of a stage. `loss`: mean over the groups."""

    stage: Stage
    epoch: int
    epochs: int
    loss: float


OnEpoch = Callable[[EpochReport, ScheduleNetwork], None]


class ScheduleTraining:
    """One training. Every epoch draws from a seed of its own, so that a resumed one goes on as if nothing had happened.

    `start`: weights to begin with instead of random ones.
    """

    def __init__(
        self, plan: TrainingPlan, groups: Sequence[ScheduleGroup], checkpoints: Checkpoints, start: Tensors | None = None
    ) -> None:
        self._plan, self._groups, self._checkpoints, self._start = plan, groups, checkpoints, start

    def run(self, on_epoch: OnEpoch = lambda _report, _network: None) -> ScheduleNetwork:
        """The trained network.

        Raises: TrainingFailed where the loss is not a number; the last checkpoint stays. OSError on a full disk.
        """
        torch.set_num_threads(1)  # one thread is faster on matrices of this size, and gives equal sums
        network = self._network()
        begun = self._checkpoints.latest()
        for number, stage in enumerate(self._plan.stages):
            if begun is None or begun.stage <= number:
                self._run_stage(network, number, stage, begun if begun and begun.stage == number else None, on_epoch)
        if begun is not None and begun.stage == len(self._plan.stages):
            network.load_state_dict(begun.network)
        self._keep(network, len(self._plan.stages), 0, {}, {}, now=True)
        network.eval()
        return network

    def _network(self) -> ScheduleNetwork:
        if self._start is not None:
            return ScheduleNetwork.of(self._start, self._plan.size.dropout)
        features = [part for group in self._groups for part in (group.features, group.rival_features)]
        return ScheduleNetwork(*feature_scale(np.concatenate(features)), self._plan.size, self._plan.seed)

    def _run_stage(
        self, network: ScheduleNetwork, number: int, stage: StagePlan, begun: Checkpoint | None, on_epoch: OnEpoch
    ) -> None:
        optimiser = torch.optim.AdamW(network.parameters(), lr=stage.rate, weight_decay=self._plan.decay)
        reference = {name: value.clone() for name, value in network.state_dict().items()}
        if begun is not None:
            network.load_state_dict(begun.network)
            optimiser.load_state_dict(begun.optimiser)
            reference = begun.reference
        fixed = ScheduleNetwork.of(_loaded(network, reference).tensors()).eval()
        for epoch in range(begun.epoch if begun else 0, stage.epochs):
            loss = self._epoch(network, fixed, optimiser, number, stage, epoch)
            self._keep(network, number, epoch + 1, optimiser.state_dict(), reference, now=epoch + 1 == stage.epochs)
            on_epoch(EpochReport(stage.stage, epoch + 1, stage.epochs, loss), network)

    def _epoch(
        self,
        network: ScheduleNetwork,
        fixed: ScheduleNetwork,
        optimiser: torch.optim.Optimizer,
        number: int,
        stage: StagePlan,
        epoch: int,
    ) -> float:
        rng = np.random.default_rng([self._plan.seed, number, epoch])
        torch.manual_seed(int(rng.integers(2**31)))
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        batches = list(self._batches(rng))
        network.train()
        losses = []
        for place, batch in enumerate(batches):
            done = (epoch + place / len(batches)) / stage.epochs
            for settings in optimiser.param_groups:
                settings["lr"] = stage.rate * _share_of_rate(done)
            loss = _loss(network, fixed, stage.stage, batch, generator)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise TrainingFailed(
                    f"the loss of stage {stage.stage} is not a number in epoch {epoch + 1}; the last checkpoint is kept: "
                    "train on with a lower rate, or look at the data"
                )
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
            optimiser.step()
            losses.append(value)
        return sum(losses) / len(losses)

    def _batches(self, rng: np.random.Generator) -> Iterator[list[GroupTensors]]:
        order = rng.permutation(len(self._groups))
        for begin in range(0, len(order), self._plan.batch):
            chosen = [self._groups[int(place)] for place in order[begin : begin + self._plan.batch]]
            yield [tensors_of(group, self._plan.rivals, rng) for group in chosen]

    def _keep(self, network: ScheduleNetwork, stage: int, epoch: int, optimiser: State, reference: State, *, now: bool) -> None:
        self._checkpoints.keep(Checkpoint(stage, epoch, network.state_dict(), optimiser, reference), now=now)


def _loss(
    network: ScheduleNetwork, fixed: ScheduleNetwork, stage: Stage, batch: Sequence[GroupTensors], generator: torch.Generator
) -> Tensor:
    """Mean over the groups of a batch, which pass the network together."""
    features = torch.cat([group.features for group in batch])
    errors, embedding = network(features)
    with torch.no_grad():
        before = fixed(features)[0] if stage == "group-relative" else errors
    total, begin = torch.zeros(()), 0
    for group in batch:
        end = begin + len(group.prior)
        scores = errors[:, begin:end] + group.prior
        total = total + PINNED_WEIGHT * pinned(scores, group)
        if stage == "supervised":
            measured = slice(begin, begin + group.count)
            left = group.costs - scores[:, : group.count].detach().mean(dim=0)
            total = total + supervised(scores, group)
            total = total + FEEDBACK_WEIGHT * feedback(left, embedding[measured], group, generator)
        elif stage == "contrastive":
            total = total + contrastive(scores, group)
        else:
            total = total + group_relative(scores, before[:, begin:end] + group.prior, group)
        begin = end
    return total / len(batch)


def _share_of_rate(done: float) -> float:
    """Of the peak rate of learning: a rise, then half a cosine to 1 % of it."""
    if done < WARM_UP:
        return 0.05 + 0.95 * done / WARM_UP
    return 0.01 + 0.495 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


def _loaded(network: ScheduleNetwork, state: State) -> ScheduleNetwork:
    """A network of the same size with another state."""
    other = ScheduleNetwork.of(network.tensors())
    other.load_state_dict(state)
    return other
