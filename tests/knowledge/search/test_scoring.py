"""How ranks of several searches are fused, and what variants of a name count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cudal2_agent.knowledge.search.fusion import Scores, best, by_rank, by_score
from cudal2_agent.knowledge.search.variants import asked_variants, factors, variants_of

# ---- signals are fused by rank and by score, with equal scores in order of position ----------------------------------------
SIZE = 12
SCORES = arrays(np.float32, SIZE, elements=st.sampled_from([0.0, 0.0, 0.25, 1.0, 1.0, 3.0, 40.0]))
FEW = settings(max_examples=30)
FUSED = pytest.mark.parametrize("fuse", [by_score, lambda signs: by_rank(signs, 30.0)], ids=["score", "rank"])


@FEW
@given(SCORES, st.integers(0, 20))
def test_the_best_are_those_of_a_stable_sort(scores: Scores, count: int) -> None:
    ordered = [place for place in np.argsort(-scores, kind="stable").tolist() if scores[place] > 0]
    assert best(scores, count).tolist() == ordered[:count]


def test_nothing_is_best_of_nothing() -> None:
    assert best(np.zeros(0, np.float32), 5).tolist() == []


@FUSED
@FEW
@given(scores=SCORES, weight=st.sampled_from([0.1, 1.0, 7.0]))
def test_one_sign_keeps_its_order(fuse, scores: Scores, weight: float) -> None:
    assert best(fuse([(scores, weight)])).tolist() == best(scores).tolist()


@FUSED
@FEW
@given(one=SCORES, other=SCORES)
def test_what_no_sign_has_scores_nothing(fuse, one: Scores, other: Scores) -> None:
    assert ((fuse([(one, 1.0), (other, 0.5)]) > 0) == ((one > 0) | (other > 0))).all()


@FUSED
@FEW
@given(one=SCORES, other=SCORES)
def test_a_sign_without_weight_counts_nothing(fuse, one: Scores, other: Scores) -> None:
    assert fuse([(one, 1.0), (other, 0.0)]).tolist() == fuse([(one, 1.0)]).tolist()


@FUSED
@FEW
@given(one=SCORES, other=SCORES, factor=st.sampled_from([0.5, 4.0, 1024.0]))
def test_the_scale_of_a_sign_does_not_count(fuse, one: Scores, other: Scores, factor: float) -> None:
    scaled = fuse([(one * np.float32(factor), 1.0), (other, 0.5)])
    assert np.allclose(scaled, fuse([(one, 1.0), (other, 0.5)]))


@FUSED
def test_first_of_both_is_first(fuse) -> None:
    one, other = np.array([5, 9, 1, 0], np.float32), np.array([0, 2, 1, 3], np.float32)
    assert best(fuse([(one, 1.0), (other, 1.0)]))[0] == 1


def test_by_rank_only_the_order_counts() -> None:
    close, apart = np.array([3, 2, 1], np.float32), np.array([900, 2, 1], np.float32)
    assert by_rank([(close, 1.0)], 30.0).tolist() == by_rank([(apart, 1.0)], 30.0).tolist()
    assert by_rank([(close, 1.0)], 30.0)[0] == pytest.approx(1 / 31)


def test_the_best_of_a_sign_scores_its_weight() -> None:
    assert by_score([(np.array([8, 2], np.float32), 0.5)]).tolist() == pytest.approx([0.5, 0.125])


# ---- a special variant ranks lower unless the question names it ------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("cutlass/gemm/collective/sm90_mma.hpp", set()),
        ("cutlass/gemm/collective/sm100_mma_array_warpspecialized.hpp", {"sm100", "array"}),
        ("cutlass/conv/kernel/x.h", {"conv"}),
        ("cutlass/gemm/collective/sm90_sparse_mma_fp8.hpp", {"sparse", "fp8"}),
        ("cute/arch/carray.hpp", set()),
        ("CUTE/SM120.hpp", {"sm120"}),
        ("", set()),
    ],
)
def test_the_variants_that_a_path_names(path: str, named: set[str]) -> None:
    assert variants_of(path) == named


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("2:4 pruned weights", "sparse"),
        ("a kernel for MoE experts", "grouped"),
        ("Blackwell tensor memory", "sm100"),
        ("dgrad of an image", "conv"),
        ("sm100 mainloop", "sm100"),
        ("E4M3 accumulation", "fp8"),
    ],
)
def test_the_variants_that_a_question_asks_for(question: str, asked: str) -> None:
    assert asked in asked_variants(question)
    assert asked not in asked_variants("a dense matrix product on Hopper")


def test_each_variant_that_was_not_asked_for_costs_as_much() -> None:
    paths = ["sm90_mma.hpp", "sm100_mma.hpp", "sm100_mma_array.hpp"]
    assert factors(paths, "a mainloop", 0.5).tolist() == [1.0, 0.5, 0.25]
    assert factors(paths, "a mainloop for Blackwell", 0.5).tolist() == [1.0, 1.0, 0.5]
    assert factors(paths, "grouped GEMM for Blackwell", 0.5).tolist() == [1.0, 1.0, 1.0]


def test_without_a_cost_all_are_equal() -> None:
    assert factors(["sm100_array.hpp", "a.hpp"], "x", 1.0).tolist() == [1.0, 1.0]
    assert factors([], "x", 0.5).shape == (0,)
