"""nvidia-matmul-heuristics as an arm: the mapping, the child over a stand-in library, one line where it is missing."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.proposals import heuristics
from benchmarks.proposals.heuristics import (
    HeuristicConfiguration,
    MatmulHeuristics,
    configurations,
    extra_of,
    nearest,
    table_of,
)
from benchmarks.proposals.other_arms import heuristics_arm
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask, Layout
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.policies.schedule.families.wgmma_tma.family import WgmmaTma
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule

TASK = GemmTask(m=256, n=256, k=128)
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
LIBRARY = """
import enum
class NvMatmulHeuristicsTarget(enum.IntEnum):
    CUTLASS3 = 4
class NvMatmulHeuristicsFlags(enum.IntEnum):
    PERF_MODEL_BASED_AUTO_TUNING = 8
class NvMatmulHeuristicsMatmulLayout(enum.IntEnum):
    NN_ROW_MAJOR = 0
    NT_ROW_MAJOR = 1
class NvMatmulHeuristicsNvidiaGpu(enum.IntEnum):
    H200_SXM = 9003
class Kernel:
    stages, split_k, cluster_m, cluster_n = 4, 1, 1, 1
    def __init__(self, m, n, k):
        self.cta_tile_m, self.cta_tile_n, self.cta_tile_k = m, n, k
class NvMatmulHeuristicsInterface:
    def __init__(self, target, precision, flags):
        assert (target.name, precision, flags.name) == ("CUTLASS3", "HSH", "PERF_MODEL_BASED_AUTO_TUNING")
        self.loaded = []
    def createHardwareDescriptor(self):
        return []
    def setHardwarePredefinedGpu(self, hardware, gpu):
        hardware.append(gpu.name)
    def loadInternalDiscoverySet(self, layout, hardware):
        self.loaded.append((layout.name, *hardware))
        return layout.name == "NN_ROW_MAJOR"
    def get_with_mnk(self, m, n, k, layout, count, hardware):
        assert self.loaded == [(layout.name, "H200_SXM")] and hardware == ["H200_SXM"]
        tiles = [(128, 128, 64), (128, 128, 64), (64, 64, 64), (64, 128, 128)]
        return [{"kernel": Kernel(*tile), "runtime": 1.0} for tile in tiles][:count]
    def __del__(self):
        raise SystemError("freeing faults")
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvMatmulHeuristics.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def schedule(**axes: object) -> WgmmaTmaSchedule:
    fields = {"consumers": 2, "atoms": 1, "block_n": 128, "block_k": 64, "stages": 4, **axes}
    return WgmmaTmaSchedule.model_validate(fields)


def found(wanted: dict[str, int], space: list[WgmmaTmaSchedule]) -> WgmmaTmaSchedule:
    fields = {"cta_tile_m": 128, "cta_tile_n": 128, "cta_tile_k": 64, "stages": 4, "split_k": 1, "cluster_m": 1, "cluster_n": 1}
    configuration = HeuristicConfiguration.model_validate({**fields, **wanted})
    return space[nearest(configuration, table_of(space), extra_of(space))]


@pytest.mark.parametrize(
    ("wanted", "near", "far"),
    [
        ({}, {}, {"block_n": 64}),
        ({"cta_tile_n": 256}, {"block_n": 192, "stages": 2, "cluster_m": 2}, {"block_n": 128}),
        ({"split_k": 4}, {"splits": 4, "stages": 2}, {"splits": 1}),
        ({"split_k": 4}, {"cluster_k": 4, "tma_store": False}, {"splits": 2}),
        ({"cluster_m": 2}, {"cluster_m": 2, "stages": 3}, {"cluster_n": 2}),
        ({}, {"persistent": True}, {"group": 8}),
        ({"cta_tile_m": 64, "cta_tile_n": 128}, {"consumers": 2, "block_n": 64, "turned": True}, {"block_n": 64}),
        ({}, {"group": 8}, {"group": 4}),
    ],
)
def test_the_nearest_schedule(wanted: dict[str, int], near: dict[str, object], far: dict[str, object]) -> None:
    expected, other = schedule(**near), schedule(**far)
    assert found(wanted, [expected, other]) == found(wanted, [other, expected]) == expected


def test_every_row_of_the_table_is_finite() -> None:
    space = list(WgmmaTma().space(GemmTask(m=64, n=64, k=128), CHIP))
    assert np.isfinite(table_of(space)).all()
    assert table_of(space).shape == (len(space), 7)


@pytest.mark.usefixtures("library")
def test_proposals_are_valid_schedules_in_the_librarys_order() -> None:
    proposed = MatmulHeuristics().propose(Observation(task=TASK, chip=CHIP, round=1, seed=0), 8)
    schedules = [WgmmaTma().parse(one.origin.schedule or {}) for one in proposed]
    assert [(one.block_m, one.block_n) for one in schedules] == [(128, 128), (64, 64), (64, 128)]  # equal ones count once
    attempt = Attempt(candidate_id=proposed[0].id, policy="h", schedule=None, status="measured")
    assert heuristics_arm().name == "heuristics"
    later = MatmulHeuristics().propose(Observation(task=TASK, chip=CHIP, round=2, seed=0, attempts=(attempt,)), 8)
    assert [one.id for one in later] == [one.id for one in proposed[1:]]


@pytest.mark.usefixtures("library")
def test_a_layout_without_a_discovery_set_is_said() -> None:
    with pytest.raises(UsageError, match="no discovery set for H200_SXM and NT_ROW_MAJOR"):
        configurations(TASK.model_copy(update={"layout": Layout.TN}), CHIP)


def test_a_missing_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvMatmulHeuristics.py").write_text("raise ImportError('it is not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UsageError, match="pip install nvidia-matmul-heuristics"):
        configurations(TASK, CHIP)
    with pytest.raises(UsageError, match="pip install nvidia-matmul-heuristics"):
        heuristics_arm()


def test_other_tasks_and_chips_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="f16 with f32 accumulators"):
        configurations(TASK.model_copy(update={"accumulate": AccumulatorType.F16}), CHIP)
    with pytest.raises(UsageError, match="for H100 and H200"):
        configurations(TASK, CHIP.model_copy(update={"name": "B200"}))
    monkeypatch.setattr(heuristics, "CHILD", ("true",))
    with pytest.raises(UsageError, match="gave no answer"):
        configurations(TASK, CHIP)


def test_a_task_without_tma_rows_gets_no_proposal() -> None:
    assert MatmulHeuristics().propose(Observation(task=GemmTask(m=7, n=7, k=7), chip=CHIP, round=1, seed=0), 8) == []
