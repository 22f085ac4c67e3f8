"""A policy trained on from another one, on the few runs of a chip or of a kind of task that it does not know."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cudal2_agent.policies.schedule.learned.network import Network, Tensors
from cudal2_agent.policies.schedule.prior import Floats
from cudal2_agent.policies.training.checkpoints import Checkpoints
from cudal2_agent.policies.training.groups import ScheduleGroup
from cudal2_agent.policies.training.judging import first_losses
from cudal2_agent.policies.training.schedule_training import ScheduleTraining
from cudal2_agent.policies.training.training_plan import ADAPTING, ANEW

QUARTER = 0.25  # of the way from the weights before to the trained ones
APART = 4  # every fourth group decides how far
MIN_APART = 4  # of these; fewer tell nothing
SURE = 2.0  # standard errors


def adapted(start: Tensors | None, groups: Sequence[ScheduleGroup], seed: int = 0) -> Tensors:
    """Weights between `start` and those that were trained on with the groups; new ones where it is None.

    A few dozen groups also teach what is chance in them. A policy that knew other shapes well then orders them worse. So
    weights go a quarter of the way only (before and after a training mixed: WiSE-FT, arXiv 2109.01903). They go the whole way
    where a training without every fourth group orders these surely better than a quarter of its way does.

    It takes seconds to two minutes, so that nothing is kept of one that is killed. Equal input gives equal weights.
    Raises: TrainingFailed where the loss is not a number.
    """
    if start is None:
        return _trained(None, groups, seed)
    whole = _whole_way(start, groups, seed)
    trained = _trained(start, groups, seed)
    return trained if whole else mixed(start, trained, QUARTER)


def mixed(before: Tensors, after: Tensors, share: float) -> Tensors:
    """Weights `share` of the way from one to the other."""
    return {name: (before[name] + share * (after[name] - before[name])).astype(np.float32) for name in after}


def _whole_way(start: Tensors, groups: Sequence[ScheduleGroup], seed: int) -> bool:
    """Whether trained weights order groups that they have not seen better than mixed ones, by twice the standard error."""
    apart = groups[::APART]
    if len(apart) < MIN_APART:
        return False
    trained = _trained(start, [group for place, group in enumerate(groups) if place % APART], seed)
    ways = (mixed(start, trained, QUARTER), trained)
    quarter, whole = (first_losses(apart, partial(scores_of, weights)) for weights in ways)
    gain = quarter - whole
    return bool(gain.mean() > SURE * gain.std(ddof=1) / len(apart) ** 0.5)


def _trained(start: Tensors | None, groups: Sequence[ScheduleGroup], seed: int) -> Tensors:
    plan = (ADAPTING if start is not None else ANEW).model_copy(update={"seed": seed})
    with TemporaryDirectory(prefix="cudal2-adapting-") as folder:
        training = ScheduleTraining(plan, groups, Checkpoints(Path(folder), "adapting"), start)
        return training.run().tensors()


def scores_of(tensors: Tensors, group: ScheduleGroup) -> Floats:
    """The policy's scores of a group's measured schedules: ln of their predicted times, up to a constant."""
    scores: Floats = group.prior + Network(tensors)(group.features).error
    return scores
