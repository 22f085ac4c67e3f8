"""The latency family on sm_80, sm_86 and sm_89: right at every edge, without clusters, TMA and programmatic launch."""

from pathlib import Path

import pytest

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.latency.family import Latency
from cudal2_agent.policies.schedule.families.latency.schedule import LatencySchedule
from cudal2_agent.policies.schedule.named_schedules import TaskSchedules
from cudal2_agent.sandbox.building.builder import Builder
from tests.sandbox.emulator.compiled import PtxCompiler

FAMILY = Latency()
OLDER = (Arch.SM_80, Arch.SM_86, Arch.SM_89)
SMALL = LatencySchedule(block_m=32, block_n=32, block_k=64, groups=2, warps_m=2, warps_n=2, programmatic=False)


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_80, **fields})


PROVED: dict[str, tuple[dict[str, object], GemmTask]] = {
    "whole": ({}, gemm(64, 96, 128)),
    "ragged": ({"constant_shape": False}, gemm(45, 56, 104, layout="tn", arch=Arch.SM_86)),
    "slices": ({"warps_k": 2, "groups": 1}, gemm(40, 72, 120, element="bf16", arch=Arch.SM_89)),
    "slices-of-one-warp": ({"warps_m": 1, "warps_n": 1, "warps_k": 4, "groups": 1}, gemm(72, 40, 250, layout="nt")),
    "passes": ({"passes": 3, "warps_k": 2, "groups": 1}, gemm(40, 40, 328, accumulate="f16")),
    "passes-ragged": ({"passes": 2, "constant_shape": False}, gemm(72, 104, 200, layout="nt", element="bf16")),
}


@pytest.mark.parametrize(("change", "task"), PROVED.values(), ids=PROVED.keys())
def test_every_tile_is_right(compiler: PtxCompiler, change: dict[str, object], task: GemmTask) -> None:
    from tests.sandbox.emulator.trial import Trial

    candidate = FAMILY.write(SMALL.model_copy(update=change), task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=84)
    assert trial.faults() == []


@pytest.mark.parametrize("arch", OLDER)
def test_small_outputs_are_searched_with_what_the_chip_has(arch: Arch) -> None:
    task, chip = gemm(64, 512, 512, arch=arch), REFERENCE_CHIPS[arch]
    space = list(FAMILY.space(task, chip))
    assert {(s.cluster_k, s.loads, s.programmatic, s.exclusive) for s in space} == {(1, "cp_async", False, False)}
    assert max(s.smem_bytes for s in space) <= LIMITS[arch].max_smem_per_block_bytes
    assert not any(FAMILY.work(s, task, chip).crowded for s in space)
    assert TaskSchedules(task, chip).best(1)[0].entry.family.name == "latency"


@pytest.mark.parametrize(
    ("change", "arch", "why"),
    [
        ({"cluster_k": 2}, Arch.SM_80, "cluster"),
        ({"loads": "tma"}, Arch.SM_86, "no TMA"),
        ({"programmatic": True}, Arch.SM_89, "no programmatic launch"),
        ({"groups": 14}, Arch.SM_86, "shared memory"),
        ({}, Arch.SM_100A, "needs one of"),
    ],
)
def test_what_a_chip_does_not_have_is_refused(change: dict[str, object], arch: Arch, why: str) -> None:
    found = list(FAMILY.violations(SMALL.model_copy(update=change), gemm(64, 64, 128, arch=arch)))
    assert [why in reason for reason in found] == [True]


def test_a_cta_of_sm_80_has_more_shared_memory_than_one_of_sm_86() -> None:
    assert FAMILY.violation(SMALL.model_copy(update={"groups": 14}), gemm(64, 64, 128)) is None
    assert SMALL.ctas_per_sm(gemm(64, 64, 128)) > SMALL.ctas_per_sm(gemm(64, 64, 128, arch=Arch.SM_86))


@pytest.mark.parametrize("arch", OLDER)
@pytest.mark.parametrize("layout", ["nn", "tn", "nt"])
def test_kernels_compile_for_the_chip_without_spills(arch: Arch, layout: str, tmp_path: Path) -> None:
    task = gemm(64, 512, 1024, arch=arch, layout=layout)
    changes: list[dict[str, object]] = [{"groups": 4, "passes": 4}, {"warps_k": 4, "passes": 2}]
    candidates = [FAMILY.write(SMALL.model_copy(update=change), task) for change in changes]
    for candidate in candidates:
        assert not any(word in candidate.source for word in ("cluster.cuh", "mbarrier", "tma", "programmatic", "_dependenc"))
    for _, built in Builder(CompileOptions(cache_dir=str(tmp_path)), REFERENCE_CHIPS[arch]).build(candidates, task):
        assert isinstance(built, Built), built
        assert not built.inspection.warnings
        (kernel,) = built.inspection.kernels
        assert kernel.spill_store_bytes == kernel.stack_bytes == 0
