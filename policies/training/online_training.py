"""Training by trying: a policy proposes groups of schedules, a `Score` evaluates them, and the policy follows what paid.

Group-relative policy optimisation with the policy before training as reference. A step takes some tasks in turn, and draws a
group for each without replacement, so that no schedule is paid for twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from pydantic import Field

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import TrainingFailed
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.score import Score, Scored
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.learned.features import features_of
from cudal2_agent.policies.schedule.learned.learned_prior import LearnedPrior
from cudal2_agent.policies.schedule.learned.network import Network, Tensors
from cudal2_agent.policies.schedule.learned.policy_file import PolicyCard, read_weights, write_weights
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.training.checkpoints import Checkpoint, Checkpoints, TrainingLog
from cudal2_agent.policies.training.group_tensors import GroupTensors, advantages
from cudal2_agent.policies.training.losses import TEMPERATURE, group_relative
from cudal2_agent.policies.training.schedule_network import ScheduleNetwork

EXPLORATION = 3.0  # times the temperature of the policy, at which it draws: else it would only repeat its favourites
MIN_SCORED = 2  # of a group; one alone has nothing to be compared with


class OnlinePlan(Record):
    """`steps` with `tasks` groups of `group` candidates each. `updates`: of the weights for each step's groups.

    `rivals`: schedules of the space beside a group, over which the policy is normalised.
    """

    steps: int = Field(10, ge=1)
    tasks: int = Field(4, ge=1)
    group: int = Field(8, ge=MIN_SCORED)
    updates: int = Field(4, ge=1)
    rivals: int = Field(128, ge=0)
    rate: float = Field(1e-4, gt=0)
    seed: int = 0


@dataclass(frozen=True)
class StepReport:
    """One step. `value`: mean of what is known of its candidates, or None. `cached`: those answered from earlier ones."""

    step: int
    steps: int
    value: float | None
    scored: int
    failed: int
    cached: int


OnStep = Callable[[StepReport], None]
STAGE = "online"


class OnlineTraining:
    """One training. It goes on from its last checkpoint: a step's candidates depend on seed, step and weights alone."""

    def __init__(
        self, plan: OnlinePlan, tasks: Sequence[GemmTask], card: PolicyCard, start: Tensors, checkpoints: Checkpoints
    ) -> None:
        self._plan, self._tasks, self._card = plan, list(tasks), card
        self._start, self._checkpoints = start, checkpoints

    def run(self, score: Score, on_step: OnStep = lambda _: None) -> ScheduleNetwork:
        """The trained network.

        Raises: TrainingFailed where the loss is not a number; MachineError, WorkerError of the score. What was learned stays in
        the last checkpoint, and what was scored in the score's cache.
        """
        torch.set_num_threads(1)
        network, reference = ScheduleNetwork.of(self._start), ScheduleNetwork.of(self._start).eval()
        optimiser = torch.optim.Adam(network.parameters(), lr=self._plan.rate)
        begun = self._checkpoints.latest()
        if begun is not None:
            network.load_state_dict(begun.network)
            optimiser.load_state_dict(begun.optimiser)
        for step in range(begun.epoch if begun else 0, self._plan.steps):
            groups, report = self._tried(network.eval(), reference, score, step)
            self._update(network.train(), optimiser, groups, step)
            self._checkpoints.keep(Checkpoint(0, step + 1, network.state_dict(), optimiser.state_dict(), {}), now=True)
            on_step(report)
        network.eval()
        return network

    def _tried(
        self, network: ScheduleNetwork, reference: ScheduleNetwork, score: Score, step: int
    ) -> tuple[list[tuple[GroupTensors, torch.Tensor, torch.Tensor]], StepReport]:
        """The step's groups, each with the scores of the proposing policy and of the reference."""
        prior = LearnedPrior(self._card, Network(network.tensors()))
        groups, scored, known = [], [], list[float]()
        for place in range(self._plan.tasks):
            task = self._tasks[(step * self._plan.tasks + place) % len(self._tasks)]
            rng = np.random.default_rng([self._plan.seed, step, place])
            drawn, rivals = self._drawn(task, prior, score, rng)
            answers = score.score(task, [entry.family.write(entry.schedule, task) for entry in drawn])
            pairs = [(entry, one.value) for entry, one in zip(drawn, answers, strict=True) if one.value is not None]
            scored += answers
            known += [value for _, value in pairs]
            if len(pairs) >= MIN_SCORED:
                group = _tensors(pairs, rivals, task, score)
                with torch.no_grad():
                    groups.append((group, _scores(network, group), _scores(reference, group)))
        return groups, self._report(step, scored, known)

    def _drawn(
        self, task: GemmTask, prior: LearnedPrior, score: Score, rng: np.random.Generator
    ) -> tuple[list[PoolEntry], list[PoolEntry]]:
        """A group drawn from the policy without replacement, and other schedules of the space."""
        pool = SchedulePool(families(task.arch), task, score.chip, self._plan.seed, prior)
        noisy = -np.log(pool.predicted_us) / (EXPLORATION * TEMPERATURE) + rng.gumbel(size=len(pool.entries))
        order = np.argsort(-noisy, kind="stable")
        rest = rng.permutation(order[self._plan.group :])[: self._plan.rivals]
        return [pool.entries[int(i)] for i in order[: self._plan.group]], [pool.entries[int(i)] for i in rest]

    def _update(
        self,
        network: ScheduleNetwork,
        optimiser: torch.optim.Optimizer,
        groups: Sequence[tuple[GroupTensors, torch.Tensor, torch.Tensor]],
        step: int,
    ) -> None:
        for _ in range(self._plan.updates if groups else 0):
            losses = [group_relative(_scores(network, group), before, group, fixed) for group, before, fixed in groups]
            loss = torch.stack(losses).mean()
            if not torch.isfinite(loss):
                raise TrainingFailed(f"the loss is not a number in step {step + 1}; the last checkpoint is kept: lower --rate")
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    def _report(self, step: int, scored: Sequence[Scored], known: Sequence[float]) -> StepReport:
        return StepReport(
            step=step + 1,
            steps=self._plan.steps,
            value=float(np.mean(known)) if known else None,
            scored=len(known),
            failed=sum(one.basis == "failed" for one in scored),
            cached=sum(one.cached for one in scored),
        )


def train_online(
    policy: Path, plan: OnlinePlan, tasks: Sequence[GemmTask], score: Score, out: Path, name: str, product: str, on_step: OnStep
) -> PolicyCard:
    """Trains a policy on with a score and writes it to `out`; its checkpoints and log lie beside it.

    Raises: UsageError where the policy cannot be used, or `out` belongs to another training; as `OnlineTraining.run`.
    """
    base, network, trees = read_weights(policy)
    shapes = [task.model_dump(mode="json") for task in tasks]
    identity = digest([STAGE, plan.model_dump(mode="json"), shapes, base.model_dump(mode="json")], 64)
    folder = out.with_name(f"{out.name}.training")
    training = OnlineTraining(plan, tasks, base, network.tensors, Checkpoints(folder, identity))
    log = TrainingLog(folder)

    def step_done(report: StepReport) -> None:
        counts = {"scored": report.scored, "failed": report.failed, "cached": report.cached}
        log.add(STAGE, report.step, {**counts, **({} if report.value is None else {"value": report.value})})
        on_step(report)

    try:
        trained = training.run(score, step_done)
    finally:
        log.close()
    chips = tuple(sorted({*base.chips, score.chip.name}))
    stages = (*base.stages, STAGE)
    changes = {"name": name, "chips": chips, "stages": stages, "seed": plan.seed, "figures": {}, "base": base.name}
    card = base.model_copy(update={**changes, "created": datetime.now(UTC).date().isoformat(), "product": product})
    write_weights(out, trained.tensors(), card, trees)
    return card


def _tensors(
    pairs: Sequence[tuple[PoolEntry, float | None]], rivals: Sequence[PoolEntry], task: GemmTask, score: Score
) -> GroupTensors:
    features, prior = features_of([*(entry for entry, _ in pairs), *rivals], task, score.chip)
    costs = -torch.tensor([value for _, value in pairs], dtype=torch.float32)
    return GroupTensors(
        count=len(pairs),
        features=torch.from_numpy(features).float(),
        prior=torch.from_numpy(prior).float(),
        costs=costs,
        advantages=advantages(costs),
        baseline=0.0,
    )


def _scores(network: ScheduleNetwork, group: GroupTensors) -> torch.Tensor:
    errors: torch.Tensor = network(group.features)[0] + group.prior
    return errors
