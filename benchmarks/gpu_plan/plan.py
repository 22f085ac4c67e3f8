"""The campaigns that the committed rows still lack on a chip, in the order in which they are run.

A stage is a list of campaigns that run at the same time, each on GPUs of its own.
"""

import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from statistics import mean

from benchmarks.h200.grid import grid_shapes, shapes_in
from benchmarks.h200.h100_table import h100_shapes
from benchmarks.h200.summary import is_headline
from cudal2_agent.agent.campaign.report.newest_rows import counting
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.task import GemmTask, Layout, TimingMode
from cudal2_agent.policies.schedule.families.registry import written

FOLDER = Path(__file__).parents[1] / "h200"
H100_ROWS = FOLDER / "h100_rows"  # apart from those of an H200
STABILITY = FOLDER / "stability"  # rows of shapes that were searched several times, which count nowhere else
STABLE_SHAPES, STABLE_SEED = 40, 40
EXPECTED_GPU_S = 5.0  # of a shape, where no row says


class PlannedCampaign(Record):
    """A campaign to be run. `gpus`: how many it takes; None for all. Campaigns of one `home` share a store.

    `prior`: as the setting `schedule_prior`.
    """

    name: str
    home: str
    shapes: tuple[str, ...]
    layout: Layout = Layout.NN
    mode: TimingMode = TimingMode.OFFLINE
    budget: int = 16
    finalists: int = 3
    seed: int = 0
    gpus: int | None = None
    prior: str = "auto"


Stage = tuple[PlannedCampaign, ...]


def stages_of(chip: str, rows: Sequence[ShapeResult], gpus: int, measured: Collection[str] = ()) -> list[Stage]:
    """The stages that are left for a chip on so many GPUs. Raises: UsageError for a chip without a plan.

    `rows`: those that are committed. `measured`: campaigns of `STABILITY` that are.
    """
    of_chip = [row for row in rows if row.environment and row.environment.startswith(f"{chip} ")]
    if chip == "H200":
        return [stage for stage in (*_layouts(of_chip), _stale(of_chip), _server(of_chip), *_stable(gpus, measured)) if stage]
    if chip == "H100":
        return [stage for stage in _h100(of_chip) if stage]
    raise UsageError(f"there is no plan for a GPU named {chip!r}; there are plans for H200 and H100")


def gpu_seconds(campaign: PlannedCampaign, rows: Sequence[ShapeResult]) -> float:
    """What a campaign is expected to take, by the rows of its mode."""
    known = [row.gpu_seconds for row in rows if row.task.mode is campaign.mode]
    return len(campaign.shapes) * (mean(known) if known else EXPECTED_GPU_S)


def stable_shapes() -> list[str]:
    """Shapes of the grid by which seeds, budgets and numbers of GPUs are compared."""
    return random.Random(STABLE_SEED).sample(grid_shapes(), STABLE_SHAPES)


def _lacking(
    shapes: Sequence[str], rows: Sequence[ShapeResult], layout: Layout = Layout.NN, mode: TimingMode = TimingMode.OFFLINE
) -> tuple[str, ...]:
    known = {row.task.shape for row in rows if row.best and row.task.layout is layout and row.task.mode is mode}
    return tuple(shape for shape in shapes if shape not in known)


def _layouts(rows: Sequence[ShapeResult]) -> Iterator[Stage]:
    for layout in (Layout.TN, Layout.NT):
        if left := _lacking(shapes_in(layout.value), rows, layout):
            yield (PlannedCampaign(name=layout.value, home="main", shapes=left, layout=layout),)


def is_stale(row: ShapeResult) -> bool:
    """Whether a winner's family writes another source today, so that a library cannot hold the kernel that was measured."""
    winners = [one for one in (row.best, row.best_without) if one is not None and one.schedule is not None]
    return any(_id_today(one, row.task) != one.candidate_id for one in winners)


def _id_today(winner: Winner, task: GemmTask) -> str | None:
    try:
        return written(winner.schedule or {}, task).id
    except ValueError:
        return None


def _stale(rows: Sequence[ShapeResult]) -> Stage:
    """Shapes of the grid in layout nn whose newest row has a stale winner."""
    own = [row for row in counting(rows) if is_headline(row) and row.task.mode is TimingMode.OFFLINE]
    left = tuple(row.task.shape for row in own if is_stale(row))
    return (PlannedCampaign(name="stale", home="main", shapes=left, seed=8),) if left else ()


def _server(rows: Sequence[ShapeResult]) -> Stage:
    left = _lacking(random.Random(STABLE_SEED).sample(grid_shapes(), len(grid_shapes())), rows, mode=TimingMode.SERVER)
    return (PlannedCampaign(name="server", home="main", shapes=left, mode=TimingMode.SERVER, budget=8),) if left else ()


def _stable(gpus: int, measured: Collection[str]) -> Iterator[Stage]:
    """The same shapes in empty stores: three seeds on 1, 2 and 4 GPUs, as many at a time as fit; then a larger budget."""
    shapes = tuple(stable_shapes())

    def seeded(count: int, seed: int) -> PlannedCampaign:
        name = f"gpus-{count}"
        return PlannedCampaign(name=name, home=name, shapes=shapes, budget=24, finalists=4, seed=seed, gpus=count)

    together: Stage = ()
    for campaign in (seeded(count, seed) for seed, count in enumerate((1, 2, 4), 1) if count <= gpus):
        if campaign.name in measured:
            continue
        if sum(one.gpus or 0 for one in (*together, campaign)) > gpus:
            yield together
            together = ()
        together = (*together, campaign)
    yield together
    if "budget-72" not in measured:
        yield (PlannedCampaign(name="budget-72", home="budget-72", shapes=shapes, budget=72, finalists=6, seed=1),)


def _h100(rows: Sequence[ShapeResult]) -> Iterator[Stage]:
    """First the shapes that stand beside the paper's figures, in both modes; then the grid, for a library."""
    if left := _lacking(h100_shapes(), rows):
        yield (PlannedCampaign(name="h100", home="h100", shapes=left, prior="h200"),)
    if left := _lacking(h100_shapes(), rows, mode=TimingMode.SERVER):
        yield (PlannedCampaign(name="h100-server", home="h100", shapes=left, mode=TimingMode.SERVER, budget=8, prior="h200"),)
    beside = set(h100_shapes())
    if left := _lacking([shape for shape in grid_shapes() if shape not in beside], rows):
        yield (PlannedCampaign(name="h100-grid", home="h100", shapes=left, prior="h200"),)
