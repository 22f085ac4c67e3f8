"""nvidia-matmul-heuristics as an arm: its CTA tile, cluster, stages and split-K as schedules of `wgmma_tma`.

The library is proprietary and optional: `pip install nvidia-matmul-heuristics==0.1.0.27`; its interface changed after that.

The mapping takes the schedule of the family's space that is nearest to a configuration. The distance adds, in doublings: 8
times those of the rows and columns of the tile, 4 times those of the parts of K (`splits` times `cluster_k`), 2 times those
of `cluster_m` and of `cluster_n`, and those of `block_k` and of `stages`. A quarter is added for a grid that is not
persistent, because CUTLASS's is, and a hundredth for each axis that differs from the family's default. Of equal distances the
first of the space counts. Warp tiles, the swizzle and the order of CTAs have no axis here. Two configurations with the same
nearest schedule are one proposal. The order is the library's own, which is that of its callers, and not that of its predicted
times: many of these are equal. The library knows nothing of a run, so that a later round continues its list.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from cudal2_agent.policies.schedule.prior import Floats

CHILD = (sys.executable, str(Path(__file__).with_name("heuristics_child.py")))
PATIENCE_S = 60.0
ASKED = 64  # configurations; it has fewer for most shapes
GPUS = {"H200": "H200_SXM", "H100": "H100_SXM"}
LAYOUTS = {Layout.NN: "NN_ROW_MAJOR", Layout.TN: "NT_ROW_MAJOR", Layout.NT: "TN_ROW_MAJOR"}  # theirs names A before B
WEIGHTS = np.array([8.0, 8.0, 4.0, 2.0, 2.0, 1.0, 1.0])  # of doublings: tile, parts of K, cluster, block_k, stages
NOT_PERSISTENT, NOT_DEFAULT = 0.25, 0.01


class HeuristicConfiguration(Record):
    """What the library proposes."""

    cta_tile_m: int
    cta_tile_n: int
    cta_tile_k: int
    stages: int
    split_k: int
    cluster_m: int
    cluster_n: int


class MatmulHeuristics:
    """Proposes the nearest schedules in the library's order."""

    name = "heuristics"
    reads_code = False
    exhausted = ""

    def __init__(self) -> None:
        self._family = WgmmaTma()

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """Fewer than `count`, or none, once its list is exhausted. Raises: UsageError where it cannot be asked."""
        task, chip = observation.task, observation.chip
        if not self._family.supports(task):
            return []
        space = list(self._family.space(task, chip))
        if not space:
            return []
        table, extra = table_of(space), extra_of(space)
        tried = {attempt.candidate_id for attempt in observation.attempts}
        found: dict[str, Candidate] = {}
        for configuration in configurations(task, chip):
            candidate = self._family.write(space[nearest(configuration, table, extra)], task)
            if candidate.id not in tried:
                found.setdefault(candidate.id, candidate)
        return list(found.values())[:count]


def require_library() -> None:
    """Raises: UsageError where it is missing, or has another interface."""
    answer_of({"gpu": "H200_SXM", "layout": "NN_ROW_MAJOR", "m": 128, "n": 128, "k": 128, "count": 1})


def configurations(task: GemmTask, chip: Chip) -> list[HeuristicConfiguration]:
    """The library's list for a task, in its order. Raises: UsageError."""
    gpu = next((gpu for name, gpu in GPUS.items() if name in chip.name), None)
    if task.arch is not Arch.SM_90A or gpu is None:
        raise UsageError(f"the arm heuristics is for H100 and H200, not for {chip.name}; leave it out")
    if (task.element, task.accumulate) != (ElementType.F16, AccumulatorType.F32):
        raise UsageError("the arm heuristics is for f16 with f32 accumulators (precision HSH); leave it out")
    request = {"gpu": gpu, "layout": LAYOUTS[task.layout], "m": task.m, "n": task.n, "k": task.k, "count": ASKED}
    return [HeuristicConfiguration.model_validate(one) for one in answer_of(request)]


def answer_of(request: dict[str, Any]) -> list[dict[str, int]]:
    """The child's answer. Raises: UsageError."""
    try:
        done = subprocess.run(CHILD, input=json.dumps(request), capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        answer = json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired) as exc:
        raise UsageError(f"nvidia-matmul-heuristics gave no answer ({exc}); leave the arm heuristics out") from exc
    if isinstance(answer, dict):
        why = answer["error"]
        raise UsageError(
            f"the arm heuristics needs nvidia-matmul-heuristics ({why}): pip install nvidia-matmul-heuristics==0.1.0.27"
        )
    return list(answer)


def nearest(configuration: HeuristicConfiguration, table: Floats, extra: Floats) -> int:
    """The place of the nearest schedule. `table`, `extra`: of `table_of` and `extra_of`."""
    c = configuration
    wanted = (c.cta_tile_m, c.cta_tile_n, c.split_k, c.cluster_m, c.cluster_n, c.cta_tile_k, c.stages)
    return int(np.argmin(np.abs(table - np.log2(np.array(wanted, dtype=np.float64))) @ WEIGHTS + extra))


def table_of(space: Sequence[WgmmaTmaSchedule]) -> Floats:
    """The compared quantities of schedules, as logarithms. Shape: (schedules, 7). A turned tile has its sizes exchanged."""
    rows = []
    for s in space:
        tile, cluster = (s.block_m, s.block_n), (s.cluster_m, s.cluster_n)
        if s.turned:
            tile, cluster = tile[::-1], cluster[::-1]
        rows.append((*tile, s.splits * s.cluster_k, *cluster, s.block_k, s.stages))
    return np.log2(np.array(rows, dtype=np.float64))


def extra_of(space: Sequence[WgmmaTmaSchedule]) -> Floats:
    """What is added to the distance of each schedule."""
    defaults = {name: field.default for name, field in WgmmaTmaSchedule.model_fields.items() if not field.is_required()}
    different = [sum(value != defaults.get(name, value) for name, value in one) for one in space]
    persistent = [one.persistent for one in space]
    return NOT_DEFAULT * np.array(different, dtype=np.float64) + NOT_PERSISTENT * ~np.array(persistent, dtype=np.bool_)
