"""Kernels of every family with an activation of the sums: right on the emulator in each way out; faulty twins are refused."""

import pytest

from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import Activation, GemmTask
from tests.policies.schedule.ways_out import OTHER_WAYS, WAYS, faults_of, gemm, written_first
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.proving import Build

ALL = tuple(
    (family, asked, task.model_copy(update={"activation": list(Activation)[index % len(Activation)]}))
    for index, (family, asked, task) in enumerate(
        (
            *(("wgmma_tma", asked, task) for asked, task in WAYS.values()),
            *OTHER_WAYS,
            *(("resident", {"turns": turns}, gemm(520, 520, 72, bias=False)) for turns in ("none", "pause")),
            *(("wgmma_tma", {"splits": 1, "cluster_k": 1}, gemm(72, 136, 72, bias=False)) for _ in Activation),
        )
    )
)


@pytest.mark.parametrize(("family", "asked", "task"), ALL)
def test_every_way_out_has_it(compiler: PtxCompiler, family: str, asked: dict[str, object], task: GemmTask) -> None:
    assert faults_of(compiler, written_first(family, asked, task), task) == []


# What is replaced in the text of a kernel of GELU, in which the activation is then left out, taken twice, or taken of parts.
PACK = "low = Activation::of(low), high = Activation::of(high);"
PACKED_TWICE = "low = Activation::of(Activation::of(low)), high = Activation::of(Activation::of(high));"
PART = "const float4 part = load_from_l2(slot(unit, split) + index);"
OF_SUMS, SUM_SLICES = "activate(sums, place);", "sum_slices(sums, memory, place);"
OF_CLUSTER = "low = activated<Activation>(low), high = activated<Activation>(high);"
TWINS: dict[str, tuple[str, dict[str, object], GemmTask, dict[str, str]]] = {
    "left out": ("wgmma_tma", *WAYS["whole"], {PACK: ""}),
    "twice": ("wgmma_tma", *WAYS["turned"], {PACK: PACKED_TWICE}),
    "twice behind pushes": ("wgmma_tma", *WAYS["pushed"], {PACK: PACKED_TWICE}),
    "of each split": (
        "wgmma_tma",
        *WAYS["splits"],
        {PACK: "", PART: "const float4 part = activated<Activation>(load_from_l2(slot(unit, split) + index));"},
    ),
    "of all splits but the last": (
        "wgmma_tma",
        *WAYS["splits"],
        {PACK: "", PART: f"total = activated<Activation>(total);\n{PART}"},
    ),
    "of each slice": (
        "mma_sync",
        {"warps_k": 2},
        gemm(48, 72, 300),
        {OF_SUMS: "", SUM_SLICES: f"activate(sums, {{place.lane, place.row, place.column, 0}});\n{SUM_SLICES}"},
    ),
    "left out of a cluster": ("mma_sync", {"split_k": 2, "reduction": "cluster"}, gemm(45, 71, 600), {OF_CLUSTER: ""}),
    "left out of pairs": (
        "latency",
        {"block_m": 16, "block_n": 128, "warps_n": 8, "warps_k": 2, "cluster_k": 2},
        gemm(48, 72, 512),
        {"activated<Activation>(parts[0])": "parts[0]"},
    ),
    "left out on the left": (
        "latency",
        {"cluster_k": 1, "warps_k": 1},
        gemm(48, 72, 128),
        {"activated<Activation>(octet.left)": "octet.left"},
    ),
}


@pytest.mark.parametrize(("family", "asked", "task", "replaced"), TWINS.values(), ids=TWINS.keys())
def test_a_twin_that_has_it_wrong_is_refused(
    compiler: PtxCompiler, family: str, asked: dict[str, object], task: GemmTask, replaced: dict[str, str]
) -> None:
    task = task.model_copy(update={"activation": Activation.GELU})
    candidate = written_first(family, asked, task)
    source = candidate.source
    for old, new in replaced.items():
        assert old in source
        source = source.replace(old, new)
    twin = Candidate(source=source, plan=candidate.plan, origin=candidate.origin)
    assert "wrong-result" in faults_of(compiler, twin, task)[0]


@pytest.mark.parametrize("activation", list(Activation))
def test_a_kernel_with_it_is_built_and_proved_in_all_tiers(build: Build, activation: Activation) -> None:
    from tests.sandbox.emulator.proving import TIERS, passed, prove

    task = gemm(48, 72, 128, bias=False, activation=activation)
    candidate = written_first("latency", {"cluster_k": 1}, task)
    tiers, _ = passed(prove(build(candidate.source, candidate.plan, task), task))
    assert tiers == TIERS | {"programmatic"}
