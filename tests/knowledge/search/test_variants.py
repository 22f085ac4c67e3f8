"""A special variant ranks lower unless the question names it."""

import pytest

from cudal2_agent.knowledge.search.variants import asked_variants, factors, variants_of


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
