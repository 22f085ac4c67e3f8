"""A policy trained on from another one, on the few runs of a chip or of a kind of task that it does not know."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from policies.schedule.learned.network import Network, Tensors
from policies.schedule.prior import Floats
from policies.training.checkpoints import Checkpoints
from policies.training.groups import ScheduleGroup
from policies.training.schedule_training import OnEpoch, ScheduleTraining
from policies.training.training_plan import ADAPTING, ANEW


def adapted(
    start: Tensors | None,
    groups: Sequence[ScheduleGroup],
    seed: int = 0,
    on_epoch: OnEpoch = lambda _report, _network: None,
) -> Tensors:
    """Weights after `start` was trained on with the groups; new ones where it is None. Equal input gives equal weights.

    It takes seconds to a minute, so that nothing is kept of one that is killed.
    Raises: TrainingFailed where the loss is not a number.
    """
    plan = (ADAPTING if start is not None else ANEW).model_copy(update={"seed": seed})
    with TemporaryDirectory(prefix="cudal2-adapting-") as folder:
        training = ScheduleTraining(plan, groups, Checkpoints(Path(folder), "adapting"), start)
        return training.run(on_epoch).tensors()


def scores_of(tensors: Tensors, group: ScheduleGroup) -> Floats:
    """The policy's scores of a group's measured schedules: ln of their predicted times, up to a constant."""
    scores: Floats = group.prior + Network(tensors)(group.features).error
    return scores
