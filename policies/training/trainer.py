"""From a store to a policy: groups, training, what it is worth on shapes it never saw, and the file."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from pydantic import Field

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.policies.exports.splits import TEST, ShapeSplit
from cudal2_agent.policies.schedule.learned.boosted_trees import ScheduleTrees
from cudal2_agent.policies.schedule.learned.features import FINGERPRINT
from cudal2_agent.policies.schedule.learned.network import Network
from cudal2_agent.policies.schedule.learned.policy_file import PolicyCard, as_read, read_weights, write_weights
from cudal2_agent.policies.training.checkpoints import Checkpoints, TrainingLog
from cudal2_agent.policies.training.group_cache import GroupCache
from cudal2_agent.policies.training.groups import ScheduleGroup, read_runs
from cudal2_agent.policies.training.judging import judged
from cudal2_agent.policies.training.schedule_network import ScheduleNetwork
from cudal2_agent.policies.training.schedule_training import EpochReport, ScheduleTraining
from cudal2_agent.policies.training.training_plan import TREES, TrainingPlan, stages_of
from cudal2_agent.policies.training.tree_training import grown_trees
from cudal2_agent.store.store import Store

JUDGED_EVERY = 10  # epochs


class TrainingOptions(Record):
    """What is trained on what. `chip`: of which runs count; None for all. `start`: a policy that is trained on.

    `test_share`, `test_shapes`: what is held out, as in exports. `jobs`: processes that make features.
    """

    name: str
    plan: TrainingPlan = TrainingPlan()
    chip: str | None = None
    start: str | None = None
    test_share: float = Field(0.1, ge=0, lt=1)
    test_shapes: tuple[str, ...] = ()
    jobs: int = Field(1, ge=1)


class TrainingProgress(Record):
    """Where a training is. `figures`: on held-out shapes, of the epochs that are judged."""

    stage: str
    done: int
    total: int
    loss: float | None = None
    figures: dict[str, float] = {}


OnProgress = Callable[[TrainingProgress], None]


def train_schedule(
    store: Store, options: TrainingOptions, out: Path, cache: Path, product: str, tell: OnProgress
) -> PolicyCard:
    """Trains a policy from the store's runs and writes it to `out`; its checkpoints and log lie beside it.

    Raises: UsageError where the store holds nothing to learn from, or `out` belongs to another training; TrainingFailed.
    """
    groups = _groups(store, options, cache, tell)
    split = ShapeSplit(options.test_share, options.test_shapes, options.plan.seed)
    tested = [group for group in groups if split.of((group.task.m, group.task.n, group.task.k)) == TEST]
    trained = [group for group in groups if split.of((group.task.m, group.task.n, group.task.k)) != TEST]
    if not trained:
        raise UsageError("all shapes are held out; lower --test-share, or name fewer --test-shapes")
    if options.start is None and not options.plan.stages:
        raise UsageError("trees alone are no policy; name one with --start, or a stage of the network with --stages")
    start = read_weights(Path(options.start)) if options.start else None
    base = start.card if start else None
    folder = out.with_name(f"{out.name}.training")
    training = ScheduleTraining(
        options.plan, trained, Checkpoints(folder, _identity(options, groups)), start.network.tensors if start else None
    )
    log = TrainingLog(folder)

    def on_epoch(report: EpochReport, network: ScheduleNetwork) -> None:
        figures = _figures(network, tested) if report.epoch % JUDGED_EVERY == 0 or report.epoch == report.epochs else {}
        log.add(report.stage, report.epoch, {"loss": report.loss, **figures})
        tell(TrainingProgress(stage=report.stage, done=report.epoch, total=report.epochs, loss=report.loss, figures=figures))

    try:
        network = training.run(on_epoch)
    finally:
        log.close()
    trees = start.trees if start else None
    if options.plan.trees:
        trees = _grown(Network(as_read(network.tensors())), options.plan.seed, trained, tested, tell)
    card = PolicyCard(
        name=options.name,
        fingerprint=FINGERPRINT,
        chips=tuple(sorted({group.chip for group in trained} | set(base.chips if base else ()))),
        tasks=dict(sorted(Counter(_kind(group.task) for group in trained).items())),
        runs=len(trained),
        schedules=sum(len(group.costs) for group in trained),
        stages=(*_before(options.plan, base), *stages_of(options.plan, trees=trees is not None)),
        seed=options.plan.seed,
        held_out=len({group.task.shape for group in tested}),
        figures=_figures(network, tested),
        base=base.name if base else None,
        created=datetime.now(UTC).date().isoformat(),
        product=product,
    )
    write_weights(out, network.tensors(), card, trees)
    return card


def _before(plan: TrainingPlan, base: PolicyCard | None) -> tuple[str, ...]:
    """The stages that made the network, where it is left as another policy has it."""
    return tuple(stage for stage in base.stages if stage != TREES) if base and not plan.stages else ()


def _grown(
    network: Network, seed: int, trained: Sequence[ScheduleGroup], tested: Sequence[ScheduleGroup], tell: OnProgress
) -> ScheduleTrees:
    """Trees of the trained groups. What those that estimate times are worth on held-out groups is told."""
    tell(TrainingProgress(stage=TREES, done=0, total=1))
    trees = grown_trees(trained, network, seed)
    tell(TrainingProgress(stage=TREES, done=1, total=1, figures=judged(tested, lambda group: trees.behind(group.features))))
    return trees


def _groups(store: Store, options: TrainingOptions, cache: Path, tell: OnProgress) -> list[ScheduleGroup]:
    runs = [run for run in read_runs(store) if options.chip in (None, run.chip.name)]
    if not runs:
        of_chip = f" of a {options.chip}" if options.chip else ""
        raise UsageError(
            f"the store has no finished run{of_chip}; `cudal2-agent campaign run` and `trajectories import` add some"
        )

    def on_group(done: int) -> None:
        tell(TrainingProgress(stage="features", done=done, total=len(runs)))

    groups = GroupCache(cache).groups(runs, options.plan.seed, options.jobs, on_group)
    if not groups:
        raise UsageError("no run of the store has timed schedules to learn from; `cudal2-agent optimize` on a GPU makes some")
    return groups


def _figures(network: ScheduleNetwork, groups: Sequence[ScheduleGroup]) -> dict[str, float]:
    opinion = Network(network.tensors())
    return judged(groups, lambda group: np.asarray(group.prior + opinion(group.features).error))


def _identity(options: TrainingOptions, groups: Sequence[ScheduleGroup]) -> str:
    """What a training is made of: its options and its data."""
    data = [[group.run_id, group.costs.tolist()] for group in groups]
    return digest([options.model_dump(mode="json", exclude={"jobs"}), data, FINGERPRINT], 64)


def _kind(task: GemmTask) -> str:
    return f"{task.mode.value} {task.accumulate.value} {task.layout.value}"
