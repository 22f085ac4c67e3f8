"""Which products of a model are searched, and which entries its library has. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from cudal2_agent.agent.library.advise.advice import Advice, ProductAdvice, why_outside
from cudal2_agent.agent.library.advise.library_times import task_of
from cudal2_agent.agent.library.advise.search_plan import GPU_S_PER_SHAPE
from cudal2_agent.agent.model_tuning.tune_records import JudgedProduct
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import Arch, GemmTask

# What a campaign of ten searches per GPU takes for a shape, over the GPU time alone: proofs and compilers on few processors.
_SLACK = 1.5


def tasks_of(advice: Advice, arch: Arch) -> dict[GemmTask, float]:
    """The products that a kernel may compute, each with the time of its calls, the longest first. Unit: microseconds."""
    weights: dict[GemmTask, float] = {}
    for one in advice.products:
        task = None if why_outside(one.product) else task_of(one.product, arch)
        if task is not None:
            weights[task] = weights.get(task, 0.0) + _weight_us(one)
    return dict(sorted(weights.items(), key=lambda item: -item[1]))


def to_search(advice: Advice, arch: Arch, seconds: float, gpus: int) -> tuple[dict[GemmTask, float], int]:
    """The products without a known kernel whose searches fit into the time, the longest first; and how many do not fit.

    Of those that fit not even one, one is begun. `seconds`: infinite for no limit.
    """
    missing = {one.product for one in advice.products if one.status == "missing"}
    asked = {
        task: weight
        for task, weight in tasks_of(advice, arch).items()
        if any(task_of(product, arch) == task for product in missing)
    }
    room = len(asked) if seconds == float("inf") else max(1, int(seconds * gpus / (GPU_S_PER_SHAPE * _SLACK)))
    fitting = dict(list(asked.items())[:room]) if seconds > 0 else {}
    return fitting, len(asked) - len(fitting)


def entries_for(
    tasks: Iterable[GemmTask], base: Mapping[GemmTask, LibraryEntry], found: Sequence[LibraryEntry]
) -> dict[GemmTask, LibraryEntry]:
    """The entry of each task: of two the one with the higher lower bound over AutoTuning. Those that do not win are none."""
    newer = {one.task: one for one in found}
    chosen: dict[GemmTask, LibraryEntry] = {}
    for task in tasks:
        known = [one for one in (base.get(task), newer.get(task)) if one is not None and one.wins]
        if known:
            chosen[task] = max(known, key=lambda one: one.evaluation.speedup.low)
    return chosen


def slower_than_parts(rows: Iterable[JudgedProduct]) -> frozenset[str]:
    """The entries with an activation that are slower than the library's own kernel of their sums and PyTorch's pass behind it.

    The pass takes what PyTorch's times differ by.
    """
    served = {row.task: row for row in rows if row.served}
    slower = set()
    for task, row in served.items():
        parts = {"activation": None, "gated": False, "n": task.products * task.n}
        sums = served.get(task.model_copy(update=parts)) if task.activation is not None else None
        if sums is not None and _us(row) > _us(sums) + max(0.0, _torch_us(row) - _torch_us(sums)):
            slower.add(row.entry)
    return frozenset(slower)


def _weight_us(one: ProductAdvice) -> float:
    return (one.autotuning.us if one.autotuning else 0.0) * one.calls


def _us(row: JudgedProduct) -> float:
    assert row.time_us is not None  # it is served
    return row.time_us


def _torch_us(row: JudgedProduct) -> float:
    assert row.torch_us is not None
    return row.torch_us
