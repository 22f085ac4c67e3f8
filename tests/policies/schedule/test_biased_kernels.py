"""Kernels of every family that adds a bias: right on the emulator in each way out, and the text of the others is as it was."""

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import TensorArg
from cudal2_agent.contract.records.task import BIAS, Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from tests.sandbox.emulator.compiled import PtxCompiler


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, "bias": True, **fields})


# What each asks of a schedule of `wgmma_tma`, the first such one of the space.
WAYS: dict[str, tuple[dict[str, object], GemmTask]] = {
    "whole": ({"splits": 1, "cluster_k": 1, "turned": False, "atoms": 2}, gemm(136, 200, 264)),
    "turned": ({"turned": True, "splits": 1, "cluster_k": 1}, gemm(72, 200, 264, layout="tn")),
    "turned, in parts": ({"turned": True, "splits": 2}, gemm(72, 200, 776, layout="tn", element="bf16")),
    "pulled": ({"cluster_k": 2, "push": False}, gemm(72, 136, 512)),
    "pushed": ({"cluster_k": 2, "push": True}, gemm(72, 136, 512, layout="nt")),
    "splits": ({"splits": 2, "spread_sum": False, "cluster_k": 1}, gemm(72, 136, 1024)),
    "spread": ({"splits": 2, "spread_sum": True, "cluster_k": 1}, gemm(72, 136, 1024, layout="tn")),
    "two consumers in parts": ({"consumers": 2, "splits": 2, "cluster_k": 1, "block_n": 32}, gemm(130, 136, 1024)),
    "pairs of rows": ({"paired_rows": True}, gemm(76, 132, 268, layout="tn")),
    "odd rows": ({"splits": 1, "cluster_k": 1}, gemm(65, 131, 77, layout="tn")),
    "one column": ({"splits": 1, "cluster_k": 1}, gemm(65, 1, 72, layout="tn")),
}


def faults_of(compiler: PtxCompiler, name: str, asked: dict[str, object], task: GemmTask) -> list[str]:
    """Of the first schedule of a family that has these values."""
    from tests.sandbox.emulator.trial import Trial

    family = {each.name: each for each in families(task.arch)}[name]
    space = family.space(task, REFERENCE_CHIPS[task.arch])
    schedule = next(one for one in space if asked.items() <= one.values().items())
    candidate = family.write(schedule, task)
    assert TensorArg(tensor=BIAS) in candidate.plan.kernels[-1].args
    return [str(fault) for fault in Trial(compiler.compile(candidate, task.arch), candidate, task, sms=132).faults()]


@pytest.mark.parametrize(("asked", "task"), WAYS.values(), ids=WAYS.keys())
def test_every_way_out_of_wgmma_tma_adds_it(compiler: PtxCompiler, asked: dict[str, object], task: GemmTask) -> None:
    assert faults_of(compiler, "wgmma_tma", asked, task) == []


@pytest.mark.parametrize(
    ("name", "asked", "task"),
    [
        ("latency", {"cluster_k": 1, "warps_k": 2, "loads": "cp_async"}, gemm(48, 72, 256)),
        ("latency", {"cluster_k": 2, "loads": "tma"}, gemm(48, 72, 512, layout="tn", element="bf16")),
        ("mma_sync", {"split_k": 1, "epilogue": "direct"}, gemm(65, 131, 77, layout="tn")),
        ("mma_sync", {"warps_k": 2}, gemm(45, 70, 300, arch="sm_80")),
        ("mma_sync", {"split_k": 2, "reduction": "workspace"}, gemm(45, 70, 600, layout="nt", arch="sm_86")),
        ("mma_sync", {"split_k": 2, "reduction": "cluster"}, gemm(45, 71, 600)),
    ],
)
def test_other_families_add_it(compiler: PtxCompiler, name: str, asked: dict[str, object], task: GemmTask) -> None:
    assert faults_of(compiler, name, asked, task) == []


def test_a_family_that_adds_none_supports_no_such_task() -> None:
    resident = {each.name: each for each in families(Arch.SM_90A)}["resident"]
    task = gemm(4096, 512, 256)
    assert resident.supports(task.model_copy(update={"bias": False}))
    assert not resident.supports(task)
    assert list(resident.space(task, REFERENCE_CHIPS[Arch.SM_90A])) == []
