"""From what AutoTuning chose to the algorithms of a library: those that a call can run and that are worth it. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cudal2_agent.agent.library.entry_choice import LeftOut, Products, product_of
from cudal2_agent.agent.library.measured_kernels import MeasuredKernel, Origins
from cudal2_agent.contract.records.evaluation import AUTOTUNED, HEURISTIC, TORCH
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import AccumulatorType, GemmTask

# PyTorch's time over the algorithm's, of two medians without an interval. Of nine in ten of the H200's offline rows the paired
# 95 % interval reaches 2.3 % or less to a side, of half of them 0.3 %.
MIN_GAIN = 1.02
# Partial sums are added in f32. The others add them in the type of D, as kernels of a library never do.
REDUCTIONS = frozenset({"reduction none", "reduction compute_type"})

OTHER_LAYOUT = "AutoTuning was fastest with operands that it copied into another layout"
HALF_SUMS = "AutoTuning's algorithm adds partial sums in the type of D"
HALF_ACCUMULATOR = "PyTorch accumulates in f32"
EPILOGUE = "a stored algorithm adds no bias and applies no activation"
NO_GAIN_TUNED = "no algorithm was faster than PyTorch when it was tuned"
NO_GAIN = f"PyTorch is not {MIN_GAIN - 1:.0%} slower than AutoTuning"


@dataclass(frozen=True)
class AlgorithmChoice:
    """Algorithms by id, and the tasks whose recorded algorithm is none of them."""

    algorithms: tuple[StoredAlgorithm, ...]
    left_out: tuple[LeftOut, ...]


def choose_algorithms(
    kernels: Sequence[MeasuredKernel],
    origins: Callable[[MeasuredKernel], Origins],
    *,
    won: frozenset[GemmTask] = frozenset(),
    without: Products = frozenset(),
) -> AlgorithmChoice:
    """Of each task the algorithm of its newest race, as the fastest of several races would be the luckiest.

    `won`: tasks whose kernel beats AutoTuning. They and products of `without` get no algorithm.
    """
    chosen = list(_chosen(kernels, origins, won, without))
    algorithms = sorted((one for one in chosen if isinstance(one, StoredAlgorithm)), key=lambda one: one.id)
    return AlgorithmChoice(tuple(algorithms), tuple(one for one in chosen if isinstance(one, LeftOut)))


def _chosen(
    kernels: Sequence[MeasuredKernel],
    origins: Callable[[MeasuredKernel], Origins],
    won: frozenset[GemmTask],
    without: Products,
) -> Iterator[StoredAlgorithm | LeftOut]:
    newest = {one.task: one for one in sorted(kernels, key=lambda one: (one.row.finished_at, one.row.run_id or ""))}
    for task, kernel in newest.items():
        if task in won or product_of(task) in without:
            continue
        found = origins(kernel)
        if found.autotuned is not None and AUTOTUNED in kernel.row.baselines_us:
            refused = why_not_run(task, found.autotuned)
            yield LeftOut(task, refused) if refused else _worth(_algorithm(kernel, found.autotuned, found.opaque))


def why_not_run(task: GemmTask, words: str) -> str:
    """Why a call of a task cannot run an algorithm; empty where it can."""
    layout, *parts = words.split(", ")
    if layout != f"layout {task.layout}":
        return OTHER_LAYOUT
    if task.accumulate is not AccumulatorType.F32:
        return HALF_ACCUMULATOR
    if task.bias or task.activation is not None:
        return EPILOGUE
    return "" if REDUCTIONS & set(parts) else HALF_SUMS


def _worth(algorithm: StoredAlgorithm) -> StoredAlgorithm | LeftOut:
    worth = algorithm.rival_us is not None and algorithm.rival_us >= MIN_GAIN * algorithm.time_us
    return algorithm if worth else LeftOut(algorithm.task, NO_GAIN)


def _algorithm(kernel: MeasuredKernel, words: str, opaque: str | None) -> StoredAlgorithm:
    row, times_us = kernel.row, kernel.row.baselines_us
    return StoredAlgorithm(
        task=kernel.task,
        chip=kernel.chip,
        words=words,
        opaque=opaque,
        time_us=times_us[AUTOTUNED],
        torch_us=times_us.get(TORCH),
        heuristic_us=times_us.get(HEURISTIC),
        environment=row.environment or "",
        run_id=row.run_id or "",
        commit=row.commit,
        measured=row.finished_at.date(),
    )
