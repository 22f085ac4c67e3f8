"""The reduced task on which the schedule of a large one is proved, and the limits beyond which a task is large.

Covered: a task of up to `WHOLE_WORK` is run whole in every test. Beyond it all tests run whole grids on a task
that keeps each size's residue modulo the tile, with two tiles or more along M and N (as many as `REDUCED_WORK` allows) and
a K that fills the pipeline of each split several times; persistent CTAs walk several tiles there: the plan is resolved for
few SMs. Where that saves less than half of the work, the task itself is run whole up to `AFFORDABLE_WORK`. Beyond, the reduced
task has one tile and an edge, or a shorter K.
Not covered: a source that has its shape compiled in and is not rewritten; a reduced run proves nothing (`needs_rewriting`). A
task for which there is neither has a sample only.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.expression import divides_evenly, evaluate, holds
from cudal2_agent.contract.plan.plan import Expression, LaunchPlan, ResolvedPlan, ScalarArg
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask

# In multiply-adds, of which an output counts for `OUTPUT_WORK` more: its store, its shadow and its comparison cost as much.
WHOLE_WORK = 100_000_000
REDUCED_WORK = 40_000_000
AFFORDABLE_WORK = 300_000_000  # of a task that is run whole because none that is worth it is smaller
LARGEST_REDUCED_WORK = 600_000_000
OUTPUT_WORK = 128
UNLIMITED_SMS = 2**20
K_PERIOD = 256
# Tiles along M and N at least, and the length that K is cut to, besides its residue: the best first.
_FORMS = ((2, 512), (1, 512), (2, 256), (1, 256))
_LARGEST_TILE = 1024
_SCALES = (1, 2, 4)  # of the tile, where the plan requires sizes to be multiples of more than it
_PROBED_SIZES = 8  # of a step, before it is taken
_VECTOR = 16  # elements in the widest vector of memory, whose alignment a reduced size keeps
_PINNED = re.compile(r"\s*([MNK])\s*==\s*\d+\s*|\s*\d+\s*==\s*([MNK])\s*")
_CHIPS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Tile:
    """Rows and columns of D that one row or column of clusters makes, as far as the plan shows."""

    rows: int
    columns: int


def runs_whole(task: GemmTask, plan: LaunchPlan) -> bool:
    """Whether every test runs the whole grid."""
    return is_small(task) or (work_of(task) <= AFFORDABLE_WORK and _smaller(task, plan, _FORMS[:1]) is None)


def is_small(task: GemmTask) -> bool:
    """Whether the whole grid is run whatever the plan is."""
    return work_of(task) <= WHOLE_WORK


def work_of(task: GemmTask) -> int:
    """Multiply-adds of a whole grid, its outputs counted as `OUTPUT_WORK` each."""
    return task.m * task.n * (task.products * task.k + OUTPUT_WORK)


def reduced_task(task: GemmTask, plan: LaunchPlan) -> GemmTask | None:
    """The task to prove a large one's schedule on; None where the task is run whole or no smaller one would do.

    Conditions of the plan that pin a size (`M==4096`) are left to the rewriting of the candidate (`needs_rewriting`).
    """
    return None if runs_whole(task, plan) else _smaller(task, plan, _FORMS)


def _smaller(task: GemmTask, plan: LaunchPlan, forms: Sequence[tuple[int, int]]) -> GemmTask | None:
    """The first task of these forms that is allowed and has at most half of the work."""
    tile = tile_of(plan, task)
    for tiles, long_k in forms:
        for scale in _SCALES:
            wider = Tile(tile.rows * scale, tile.columns * scale)
            for k in _lengths(plan, task, tile, tiles, long_k):
                reduced = _grown(task, wider, tiles, k)
                if work_of(reduced) <= min(work_of(task) / 2, LARGEST_REDUCED_WORK) and _allowed(plan, reduced):
                    return reduced
    return None


def _lengths(plan: LaunchPlan, task: GemmTask, tile: Tile, tiles: int, long_k: int) -> list[int]:
    """Values of K to try: as long as the splits of a tile like it and the work allows, then shorter ones."""
    least = task.k if task.k <= long_k else long_k + task.k % K_PERIOD
    splits = (_ctas(plan, task) or 1) // (math.ceil(task.m / tile.rows) * math.ceil(task.n / tile.columns))
    outputs = _reduced(task.m, tile.rows, tiles) * _reduced(task.n, tile.columns, tiles)
    lengths = [k for k in range(least, task.k + 1, long_k) if k <= least + long_k * (splits - 1)]
    affordable = [k for k in lengths if outputs * (task.products * k + OUTPUT_WORK) <= REDUCED_WORK]
    return list(reversed(affordable or lengths[:1]))


def _grown(task: GemmTask, tile: Tile, tiles: int, k: int) -> GemmTask:
    """So many tiles or more along M and N with the task's residues, then more of them, while there is little work."""
    most, depth = min(REDUCED_WORK, work_of(task) // 2), task.products * k + OUTPUT_WORK
    m, n = _reduced(task.m, tile.rows, tiles), _reduced(task.n, tile.columns, tiles)
    while True:
        more = [
            (min(task.m, m + math.lcm(tile.rows, _VECTOR)), n),
            (m, min(task.n, n + math.lcm(tile.columns, _VECTOR))),
        ]
        more = [size for size in more if size != (m, n) and size[0] * size[1] * depth <= most]
        if not more:
            return task.model_copy(update={"m": m, "n": n, "k": k})
        m, n = min(more, key=lambda size: max(size[0] / tile.rows, size[1] / tile.columns))


def needs_rewriting(candidate: Candidate, task: GemmTask, reduced: GemmTask) -> bool:
    """Whether the source may have a size compiled in that the reduced task changes.

    It takes a size at run time where every launch has it as a scalar argument and no grid is written in numbers; a number
    of the source that equals the size is taken for the size.
    """
    changed = {name for name, old, new in _sizes(task, reduced) if old != new}
    if any(_pinned(condition) in changed for condition in candidate.plan.requires):
        return True
    for launch in candidate.plan.kernels:
        given = {str(arg.scalar).strip() for arg in launch.args if isinstance(arg, ScalarArg)}
        if not changed <= given:
            return True
        if any(isinstance(size, int) and size > 1 for size in launch.grid[:2]):
            return True
    code = re.sub(r"/\*.*?\*/|//[^\n]*", " ", candidate.source, flags=re.DOTALL)
    numbers = {int(number) for number in re.findall(r"(?<![\w.])(\d{2,9})(?![\w.])", code)}
    return any(old in numbers for name, old, _ in _sizes(task, reduced) if name in changed)


def resolve_for_few_sms(plan: LaunchPlan, task: GemmTask) -> ResolvedPlan:
    """The plan for the smallest chip that can launch it, so that persistent CTAs take several tiles. Raises: PlanError.

    Where the number of SMs changes nothing the plan is for the whole chip, which is what `%nsmid` then says.
    """
    for sms in _CHIPS:
        try:
            return _whole_where_equal(resolve(plan, task, LIMITS[task.arch], sms), plan, task)
        except PlanError:
            continue
    return resolve(plan, task, LIMITS[task.arch], UNLIMITED_SMS)


def _whole_where_equal(few: ResolvedPlan, plan: LaunchPlan, task: GemmTask) -> ResolvedPlan:
    """The plan for the whole chip if it differs from one for few SMs only in their number."""
    try:
        whole = resolve(plan, task, LIMITS[task.arch], REFERENCE_CHIPS[task.arch].sms)
    except PlanError:
        return few
    return whole if few.model_copy(update={"sms": whole.sms}) == whole else few


def resolve_for_sampling(plan: LaunchPlan, resolved: ResolvedPlan, task: GemmTask, max_work: int) -> ResolvedPlan:
    """The resolved plan. If a persistent cluster then takes more than `max_work`, the plan for so many SMs that each cluster
    takes one tile. Raises: PlanError.
    """
    launch = resolved.launches[-1]
    if work_of(task) // (math.prod(launch.grid) // math.prod(launch.cluster)) <= max_work:
        return resolved
    return resolve(plan, task, LIMITS[task.arch], UNLIMITED_SMS)


def tile_of(plan: LaunchPlan, task: GemmTask) -> Tile:
    """Found from how the plan's grid grows with M and with N; 256 if the grid does not show it."""
    return Tile(_tile_along(plan, task, "M"), _tile_along(plan, task, "N"))


def _tile_along(plan: LaunchPlan, task: GemmTask, name: str) -> int:
    """How far a size goes on from where the CTAs change once to where they change again, among sizes that the plan takes.

    Grids grow with sizes, so the search halves.
    """
    size = {"M": task.m, "N": task.n}[name]
    step = next((step for step in _steps(plan) if _takes(plan, task, name, size % step, step)), None)
    if step is None:
        return 256
    first = size % step or step
    ends = list[int]()
    for _ in range(2):
        begin = ends[-1] + 1 if ends else 0
        ctas = _ctas(plan, task, {name: first + begin * step})
        low, high = begin, begin + -(-_LARGEST_TILE // step)
        if _ctas(plan, task, {name: first + high * step}) == ctas:
            return 256
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _ctas(plan, task, {name: first + middle * step}) == ctas else (low, middle)
        ends.append(low)
    return (ends[1] - ends[0]) * step


def _steps(plan: LaunchPlan) -> list[int]:
    """Steps of a size over which the plan may be defined: 1, and the numbers in its expressions and their products."""
    texts = [str(each) for each in (*plan.kernels[0].grid, *plan.requires)]
    numbers = {int(number) for text in texts for number in re.findall(r"\d{1,4}", text)}
    return sorted(
        {1} | {product for one in numbers for other in {1} | numbers if 0 < (product := one * other) <= _LARGEST_TILE}
    )


def _takes(plan: LaunchPlan, task: GemmTask, name: str, residue: int, step: int) -> bool:
    """Whether the grid is whole, and sizes are the multiples that the plan requires, at the smallest sizes of a residue."""
    multiples = [condition for condition in plan.requires if "%" in condition]
    try:
        for each in range(_PROBED_SIZES):
            names = _names(task, {name: (residue or step) + each * step})
            whole = all(evaluate(part, names) and divides_evenly(part, names) for part in plan.kernels[0].grid)
            if not whole or not all(holds(condition, names) for condition in multiples):
                return False
    except PlanError:
        return False
    return True


def _ctas(plan: LaunchPlan, task: GemmTask, changed: Mapping[str, int] = MappingProxyType({})) -> int | None:
    """CTAs of the first launch where no SM is short; None where the grid is not defined for the sizes."""
    names = _names(task, changed)
    grid: tuple[Expression, ...] = plan.kernels[0].grid
    try:
        return math.prod(evaluate(each, names) for each in grid)
    except PlanError:
        return None


def _names(task: GemmTask, changed: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
    return {"M": task.m, "N": task.n, "K": task.k, "SMS": UNLIMITED_SMS, **changed}


def _reduced(size: int, tile: int, tiles: int) -> int:
    """The smallest size of so many tiles or more with the same residue."""
    period = math.lcm(tile, _VECTOR)
    reduced = size % period + period * math.ceil(tiles * tile / period)
    return min(size, reduced)


def _allowed(plan: LaunchPlan, task: GemmTask) -> bool:
    loose = unpinned(plan)
    try:
        resolve_for_few_sms(loose, task)
    except PlanError:
        return False
    return all(holds(condition, _names(task)) for condition in loose.requires)


def unpinned(plan: LaunchPlan) -> LaunchPlan:
    """The plan without the conditions that fix a size."""
    return plan.model_copy(update={"requires": tuple(each for each in plan.requires if _pinned(each) is None)})


def _pinned(condition: str) -> str | None:
    """The size that a condition fixes."""
    match = _PINNED.fullmatch(condition)
    return (match[1] or match[2]) if match else None


def _sizes(task: GemmTask, reduced: GemmTask) -> tuple[tuple[str, int, int], ...]:
    return (("M", task.m, reduced.m), ("N", task.n, reduced.n), ("K", task.k, reduced.k))
