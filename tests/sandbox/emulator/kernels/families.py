"""A sample of all families' kernels, on tasks that the emulator runs quickly.

Each trait names a part of a family's space, and one schedule of each is drawn, so that the sample covers every part. The
chip has few SMs, so that persistent CTAs take several tiles even of small tasks.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS, Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Schedule
from cudal2_agent.policies.schedule.families.registry import families

CHIP: Chip = REFERENCE_CHIPS[Arch.SM_90A].model_copy(update={"sms": 4})
LARGEST_TILE = 128 * 128

Trait = Callable[[Any], bool]


@dataclass(frozen=True)
class FamilyKernel:
    """`trait`: the part of the space it was drawn for."""

    family: str
    trait: str
    task: GemmTask
    schedule: Schedule
    candidate: Candidate

    @property
    def id(self) -> str:
        task = self.task
        return f"{self.family}-{task.shape}-{task.layout}-{task.element}-{task.accumulate}-{self.trait}"


TRAITS: dict[str, dict[str, Trait]] = {
    "mma_sync": {
        "one-stage": lambda s: s.stages == 1 and s.split_k == 1,
        "two-stages": lambda s: s.stages == 2 and s.split_k == 1 and s.warps_k == 1,
        "many-stages": lambda s: s.stages >= 3,
        "slices": lambda s: s.warps_k > 1,
        "workspace": lambda s: s.reduction == "workspace" and not s.spread_sum,
        "spread-sums": lambda s: s.spread_sum,
        "cluster": lambda s: s.reduction == "cluster",
        "staged": lambda s: s.epilogue == "staged",
        "direct": lambda s: s.epilogue == "direct" and s.reduction != "cluster",
        "grouped": lambda s: s.group_m > 1,
    },
    "wgmma_tma": {
        "tma-store": lambda s: s.tma_store and not s.persistent and s.cluster == 1,
        "direct-store": lambda s: not s.tma_store and s.cluster == s.splits == 1,
        "multicast-b": lambda s: s.cluster_m > 1,
        "multicast-a": lambda s: s.cluster_n > 1,
        "cluster-sum": lambda s: s.cluster_k > 1 and not s.push,
        "pushed-sum": lambda s: s.push,
        "splits": lambda s: s.splits > 1 and not s.spread_sum,
        "spread-sums": lambda s: s.spread_sum,
        "persistent": lambda s: s.persistent and s.tma_store and not s.pingpong,
        "ping-pong": lambda s: s.pingpong,
        "ping-pong-multicast": lambda s: s.pingpong and s.cluster > 1,
        "tall": lambda s: s.atoms > 1,
        "three-consumers": lambda s: s.consumers == 3,
        "wide-k": lambda s: s.block_k == 128,
        "two-ctas": lambda s: s.ctas_per_sm == 2,
        "turned": lambda s: s.turned and not s.persistent and s.parts_of_whole == 1,
        "turned-parts": lambda s: s.turned and s.parts_of_whole > 1 and not s.spread_sum,
        "beside-the-tile": lambda s: s.padded,
        "turned-persistent": lambda s: s.turned and s.persistent,
    },
    "latency": {
        "copies": lambda s: s.loads == "cp_async" and s.cluster_k == s.warps_k == 1,
        "boxes": lambda s: s.loads == "tma" and s.cluster_k == 1,
        "slices": lambda s: s.warps_k > 1 and s.cluster_k == 1,
        "pushes": lambda s: s.loads == "cp_async" and s.cluster_k > 1 and s.warps_k == 1,
        "boxes-and-pushes": lambda s: s.loads == "tma" and s.cluster_k > 1,
        "slices-and-pushes": lambda s: s.warps_k > 1 and s.cluster_k > 1,
    },
    "resident": {
        "no-turns": lambda s: s.turns == "none" and s.late_store,
        "turns-of-staging": lambda s: s.turns == "staging",
        "turns-of-the-pause": lambda s: s.turns == "pause" and s.cluster == 1,
        "turns-in-a-cluster": lambda s: s.turns == "pause" and s.cluster > 1,
        "early-store": lambda s: not s.late_store,
        "two-stagings": lambda s: s.stagings == 2,
        "narrow-columns": lambda s: s.columns == 32,
        "sliced-along-k": lambda s: s.block_n == 64 and s.cluster == 2,
        "tall-a": lambda s: s.atoms > 1,
        "three-warpgroups": lambda s: s.consumers == 3,
        "phases": lambda s: s.phases > 1,
        "hints": lambda s: s.keep_b and s.stream_d,
    },
}

TASKS = tuple(
    GemmTask.model_validate({"m": m, "n": n, "k": k, **fields})
    for (m, n, k), fields in (
        ((32, 64, 520), {"layout": "tn", "arch": Arch.SM_80}),
        ((64, 48, 264), {"layout": "nt", "element": "bf16", "arch": Arch.SM_86}),
        ((24, 40, 328), {"layout": "nn", "accumulate": "f16", "arch": Arch.SM_89}),
        ((128, 192, 256), {"layout": "nn"}),
        ((128, 192, 256), {"layout": "tn"}),
        ((64, 96, 256), {"layout": "nn", "accumulate": "f16"}),
        ((128, 96, 256), {"layout": "tn", "accumulate": "f16"}),
        ((200, 136, 200), {"layout": "tn", "element": "bf16"}),
        ((72, 264, 136), {"layout": "nn", "element": "bf16"}),
        ((37, 51, 45), {"layout": "nn"}),
        ((70, 66, 50), {"layout": "tn"}),
        ((1, 7, 3), {"layout": "nn"}),
        ((72, 136, 250), {"layout": "nn", "element": "bf16"}),
        ((40, 72, 250), {"layout": "tn", "accumulate": "f16"}),
        ((520, 520, 72), {"layout": "nn"}),
        ((392, 648, 136), {"layout": "tn", "element": "bf16"}),
        ((520, 456, 64), {"layout": "nn", "accumulate": "f16"}),
        ((328, 776, 40), {"layout": "tn", "accumulate": "f16"}),
        ((200, 136, 77), {"layout": "nt", "element": "bf16"}),
        ((136, 192, 256), {"layout": "nt"}),
        ((64, 96, 200), {"layout": "nt", "accumulate": "f16"}),
        ((70, 51, 45), {"layout": "nt"}),
        ((37, 66, 50), {"layout": "nt", "accumulate": "f16"}),
        ((392, 648, 37), {"layout": "nt"}),
        ((328, 776, 40), {"layout": "nt", "accumulate": "f16"}),
        ((264, 136, 200), {"layout": "tn", "element": "bf16", "activation": "silu", "gated": True}),
        ((40, 200, 264), {"layout": "tn", "activation": "gelu", "gated": True}),
    )
)


@functools.cache
def sampled(seed: int = 0) -> tuple[FamilyKernel, ...]:
    """One kernel for every trait that a family has at a task; equal seeds give equal kernels. It takes seconds."""
    return tuple(kernel for task in TASKS for kernel in _of_task(task, random.Random(f"{seed} {task.id}")))


def _of_task(task: GemmTask, rng: random.Random) -> list[FamilyKernel]:
    kernels = []
    chip = REFERENCE_CHIPS[task.arch].model_copy(update={"sms": CHIP.sms})
    for family in families(task.arch):
        if not family.supports(task):
            continue
        space: list[Any] = [s for s in family.space(task, chip) if s.block_m * s.block_n <= LARGEST_TILE and _fits(s)]
        for name, trait in TRAITS[family.name].items():
            drawn = [s for s in space if trait(s)]
            if drawn:
                schedule = _launched_at_random(rng.choice(drawn), task, rng)
                kernels.append(FamilyKernel(family.name, name, task, schedule, family.write(schedule, task)))
    return kernels


def _fits(schedule: Any) -> bool:
    """Whether all CTAs that wait for each other may run on four SMs together: larger clusters that spread sums do not."""
    return schedule.family != "wgmma_tma" or not schedule.spread_sum or schedule.cluster <= 2


def _launched_at_random(schedule: Schedule, task: GemmTask, rng: random.Random) -> Schedule:
    """With programmatic launch or without, and its shape compiled in or as arguments; the space holds only one each."""
    update = {"programmatic": rng.random() < 0.5 and LIMITS[task.arch].programmatic_launch}
    if "constant_shape" in type(schedule).model_fields:
        update["constant_shape"] = rng.random() < 0.5
    return schedule.model_copy(update=update)
