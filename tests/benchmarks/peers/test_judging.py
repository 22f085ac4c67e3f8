"""What counts as right: the same bound as in verification's second tier, over products that numpy makes."""

import numpy as np

from benchmarks.peers.judging import fault_of
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.verification.bounds import Growth
from cudal2_agent.sandbox.verification.comparison import Comparison, compare_bounded
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.reference import Reference

TASK = GemmTask(m=64, n=64, k=1024)
STEP = 16  # of K, after which a tensor core rounds its sum


def compared(accumulator: type, scale: float = 1.0) -> Comparison:
    """A product whose sums are rounded to the accumulator's type after every step."""
    draw = np.random.default_rng(7)
    a, b = draw.standard_normal((TASK.m, TASK.k)).astype(np.float16), draw.standard_normal((TASK.k, TASK.n)).astype(np.float16)
    total = np.zeros((TASK.m, TASK.n), accumulator)
    for first in range(0, TASK.k, STEP):
        part = a[:, first : first + STEP].astype(np.float64) @ b[first : first + STEP].astype(np.float64)
        total = (total.astype(np.float64) + part).astype(accumulator)
    output = (total * accumulator(scale)).astype(np.float16).view(np.uint16)
    reference = Reference(np, TASK, Inputs(a.view(np.uint16), b.view(np.uint16)), keep=False)
    return compare_bounded(np, TASK, output, reference, Growth.WALK, slack=2.0)


def test_sums_in_single_precision_are_right() -> None:
    found = compared(np.float32)
    assert fault_of(TASK, found, found.error_rms) is None
    assert fault_of(TASK, found, 0.0) is None


def test_sums_in_half_precision_are_told() -> None:
    fault = fault_of(TASK, compared(np.float16), compared(np.float32).error_rms)
    assert fault is not None
    assert "outputs are wrong" in fault


def test_errors_within_every_element_s_bound_still_show_in_their_mean() -> None:
    right = compared(np.float32)
    found = Comparison(
        elements=right.elements,
        error_squares=9 * right.error_squares,
        reference_squares=right.reference_squares,
        finite=right.finite,
    )
    fault = fault_of(TASK, found, right.error_rms)
    assert fault is not None
    assert "sums are narrower than f32" in fault
