"""The kernels of the batch-invariant mode: few schedules that together multiply matrices of any size on an architecture.

N and K of a weight decide the kind of instruction. M only decides the tile, by the waves of tiles that a chip then runs and
by what these load. Sizes are arguments of every kernel, and each is written for odd sizes, so that all guards are in it.

- N and K are multiples of 8: `wgmma_tma` on sm_90a, else `mma_sync` with wide copies. Narrow tiles of `wgmma_tma` are for few
  rows: most of them swap the operands, so that few rows of a tile are empty.
- K is a multiple of 8: `mma_sync` with wide copies along K. Other sizes: `mma_sync` element by element.

A transposed A (`nt`) has kernels for the first case only, where M is a multiple of 8 too. Elsewhere it is copied to rows. It
has none for few rows, because it is the gradient of a weight.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask, Layout
from cudal2_agent.policies.schedule.families.kernel_family import Family
from cudal2_agent.policies.schedule.families.mma_sync.family import MmaSync
from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule

STEP = 8  # elements in 16 bytes
_ALIGNED, _ODD = 1288, 1033  # sizes that no tile divides, and with more K blocks than stages

# (what a wave takes, schedule). Those of an H200 were fitted to times of 42 products of up to 128 rows, with `_ROW`. That of
# `persistent` is 2.95 times that of the first of `_WGMMA` where waves are full, and that of two consumers 1.6 times, by the
# prior of the H200. Those of `mma_sync` are by the analytic prior, and they add nothing for rows.
_FEW_ROWS = (
    (0.36, WgmmaTmaSchedule(consumers=1, atoms=1, block_n=16, block_k=128, stages=10, turned=True, programmatic=False)),
    (
        0.59,
        WgmmaTmaSchedule(
            consumers=1, atoms=1, block_n=16, block_k=64, stages=10, turned=True, ctas_per_sm=2, programmatic=False
        ),
    ),
    (0.65, WgmmaTmaSchedule(consumers=1, atoms=1, block_n=32, block_k=64, stages=16, turned=True, programmatic=False)),
    (0.63, WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=128, stages=6, programmatic=False)),
)
_WGMMA = (
    (1.0, WgmmaTmaSchedule(consumers=1, atoms=1, block_n=128, block_k=64, stages=8, programmatic=False)),
    (2.15, WgmmaTmaSchedule(consumers=2, atoms=1, block_n=128, block_k=64, stages=6, programmatic=False)),
    (4.92, WgmmaTmaSchedule(consumers=2, atoms=2, block_n=128, block_k=64, stages=4, persistent=True, programmatic=False)),
)
_ROW = 8.2e-5
_MMA_SYNC = (
    (1.0, MmaSyncSchedule(block_m=16, block_n=64, block_k=64, warps_m=1, warps_n=4, stages=6)),
    (1.5, MmaSyncSchedule(block_m=64, block_n=64, block_k=64, warps_m=2, warps_n=2, stages=4)),
    (5.5, MmaSyncSchedule(block_m=128, block_n=128, block_k=32, warps_m=2, warps_n=4, stages=4, group_m=8)),
)
_UNALIGNED = tuple((wave, schedule.model_copy(update={"epilogue": "direct"})) for wave, schedule in _MMA_SYNC[1:])


class InvariantSource(NamedTuple):
    """A kernel before it is compiled. `task`: that it is written for. The other fields are those of `InvariantKernel`."""

    candidate: Candidate
    task: GemmTask
    n_step: int
    k_step: int
    tile: tuple[int, int]
    wave: float
    row: float
    per_sm: int
    summation: str


def invariant_sources(arch: Arch) -> Iterator[InvariantSource]:
    """The set of an architecture, in the order in which a product chooses.

    Raises: ValueError where a schedule does not run there, or does not state how it sums.
    """
    aligned: Family[Any] = WgmmaTma() if arch is Arch.SM_90A else MmaSync()
    first = _WGMMA if arch is Arch.SM_90A else _MMA_SYNC
    for element in ElementType:
        if arch is Arch.SM_90A:
            yield from _written(aligned, _FEW_ROWS, (Layout.NN, Layout.TN), (STEP, STEP), element, arch)
        yield from _written(aligned, first, tuple(Layout), (STEP, STEP), element, arch)
        for steps in ((1, STEP), (1, 1)):
            yield from _written(MmaSync(), _UNALIGNED, (Layout.NN, Layout.TN), steps, element, arch)


def _written(
    family: Family[Any],
    schedules: tuple[tuple[float, WgmmaTmaSchedule | MmaSyncSchedule], ...],
    layouts: tuple[Layout, ...],
    steps: tuple[int, int],
    element: ElementType,
    arch: Arch,
) -> Iterator[InvariantSource]:
    n, k = (_ALIGNED if step == STEP else _ODD for step in steps)
    for layout in layouts:
        task = GemmTask(m=_ALIGNED, n=n, k=k, layout=layout, element=element, arch=arch)
        for wave, schedule in schedules:
            summation = family.summation(schedule, task)
            if summation is None:
                raise ValueError(f"{family.name} does not state how {schedule.values()} sums")
            tile, row, per_sm = _on_a_chip(schedule)
            yield InvariantSource(family.write(schedule, task), task, *steps, tile, wave, row, per_sm, summation)


def _on_a_chip(schedule: WgmmaTmaSchedule | MmaSyncSchedule) -> tuple[tuple[int, int], float, int]:
    """`tile`, `row` and `per_sm` of `InvariantKernel`."""
    tile = schedule.block_m, schedule.block_n
    if isinstance(schedule, MmaSyncSchedule):
        return tile, 0.0, 1
    return tile[::-1] if schedule.turned else tile, _ROW, schedule.ctas_per_sm
