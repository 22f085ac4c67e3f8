"""A gated product's kernel on the emulator: the right one is proved, each wrong one fails, and what it computes is named."""

from pathlib import Path

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import Arch, GemmTask
from tests.sandbox.building.build_kernels import ORIGIN
from tests.sandbox.emulator.proving import TIERS, Build, failure, passed, prove

KERNEL = Path(__file__).parents[2] / "gpu" / "attacks" / "gated.cu"
TASK = GemmTask(m=40, n=24, k=64, layout="tn", activation="silu", gated=True, arch=Arch.SM_90A)
LARGE = TASK.model_copy(update={"m": 520, "n": 1000})


def built(build: Build, fault: int, task: GemmTask = TASK):
    source = KERNEL.read_text().replace("#define FAULT 0", f"#define FAULT {fault}")
    return build(source, Candidate.from_source(source, ORIGIN).plan, task=task)


def test_the_right_kernel_is_proved(build: Build) -> None:
    assert passed(prove(built(build, 0), TASK)) == (TIERS, "schedules")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (1, "B and up are exchanged"),
        (2, "B is read in place of up"),
        (3, "silu is not computed there"),
        (4, "silu is of the product of both"),
        (5, "A·up of the next column"),
        (6, "the factor A·up is left out"),
        (7, "the fault depends on values"),
        (8, ""),
    ],
)
def test_a_wrong_kernel_fails_and_its_formula_is_named(build: Build, fault: int, words: str) -> None:
    failed = failure(prove(built(build, fault), TASK))
    if not words:
        assert failed.tier in ("exact", "accuracy", "special", "freshness", "guards")
        return
    assert failed.symptoms is not None
    assert any(words in each for each in failed.symptoms.values), failed
    if fault == 6:
        assert failed.symptoms.places.rows.first == TASK.m - 1


def test_a_sample_of_a_large_one_is_compared_with_both_factors(build: Build) -> None:
    tiers, last = passed(prove(built(build, 0, LARGE), LARGE))
    assert tiers >= TIERS
    assert last != "schedules"
    only_large = KERNEL.read_text().replace("#define FAULT 0", "#define FAULT (n == 1000)")
    plan = Candidate.from_source(only_large, ORIGIN).plan
    failed = failure(prove(build(only_large, plan, task=LARGE), LARGE))
    assert "at full size" in failed.message
