"""Consumers that load for themselves: every tile is right, nothing spills, and what they cannot do is refused."""

from pathlib import Path

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from cudal2_agent.sandbox.building.builder import Builder
from tests.sandbox.emulator.compiled import PtxCompiler

FAMILY = next(family for family in families(Arch.SM_90A) if family.name == "wgmma_tma")
WIDE = WgmmaTmaSchedule(consumers=3, atoms=1, block_n=256, block_k=64, stages=4, self_fed=True, constant_shape=True)


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, **fields})


PROVED: dict[str, tuple[dict[str, object], GemmTask]] = {
    "fewer-blocks-than-stages": ({}, gemm(136, 72, 136)),
    "as-many": ({"constant_shape": False}, gemm(136, 264, 256, layout="tn")),
    "round-the-ring": ({"block_n": 224}, gemm(200, 136, 840, element="bf16")),
    "one-more-than-a-turn": ({}, gemm(72, 72, 320, layout="nt")),
    "pairs-share-b": ({"cluster_m": 2}, gemm(264, 72, 648)),
    "pairs-share-a": ({"cluster_n": 2}, gemm(136, 392, 520, layout="tn")),
    "four-share-both": ({"cluster_m": 2, "cluster_n": 2, "constant_shape": False}, gemm(264, 392, 456, layout="nt")),
    "turned": ({"turned": True}, gemm(96, 264, 584)),
    "turned-pairs": ({"turned": True, "cluster_m": 2}, gemm(256, 392, 392)),
    "unaligned": ({}, gemm(131, 67, 333)),
}


@pytest.mark.parametrize(("change", "task"), PROVED.values(), ids=PROVED.keys())
def test_every_tile_is_right(compiler: PtxCompiler, change: dict[str, object], task: GemmTask) -> None:
    from tests.sandbox.emulator.trial import Trial

    candidate = FAMILY.write(WIDE.model_copy(update=change), task)
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, sms=4)
    assert trial.faults() == []


@pytest.mark.parametrize("layout", ["nn", "tn", "nt"])
@pytest.mark.parametrize("change", [{}, {"turned": True}, {"cluster_n": 2}, {"cluster_m": 2, "constant_shape": False}])
def test_tiles_of_256_columns_do_not_spill(layout: str, change: dict[str, object], tmp_path: Path) -> None:
    task = gemm(12288, 2048, 8192, layout=layout)
    builder = Builder(CompileOptions(cache_dir=str(tmp_path)), REFERENCE_CHIPS[Arch.SM_90A])
    built = builder.build_one(FAMILY.write(WIDE.model_copy(update=change), task), task)
    builder.close()
    assert isinstance(built, Built)
    assert [kernel.spill_store_bytes for kernel in built.inspection.kernels] == [0]


@pytest.mark.parametrize(
    "change",
    [
        {"persistent": True},
        {"splits": 2},
        {"cluster_k": 2, "tma_store": False},
        {"stages": 3},
        {"consumers": 2},
        {"block_n": 208},
        {"block_n": 216},
    ],
    ids=lambda change: "-".join(change),
)
def test_what_it_is_not_for_is_refused(change: dict[str, object]) -> None:
    task = gemm(2048, 2048, 2048)
    assert FAMILY.violation(WIDE, task) is None
    found = list(FAMILY.violations(WIDE.model_copy(update=change), task))
    assert any("self_fed" in reason for reason in found)


def test_with_a_producer_three_consumers_have_no_registers_for_them() -> None:
    task = gemm(12288, 2048, 8192)
    assert FAMILY.violation(WIDE, task) is None
    assert "registers" in (FAMILY.violation(WIDE.model_copy(update={"self_fed": False}), task) or "")
