"""Comparison of outputs: recorded ones with numpy's, and the emulator's with recorded ones."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import Bytes, Case
from tests.sandbox.emulator.golden.products import to_values

Array = np.ndarray[Any, Any]
_FLOAT_BITS = {"f16": (16, 0x7C00), "bf16": (16, 0x7F80), "f32": (32, 0x7F800000), "f64": (64, 0x7FF0000000000000)}


def differences(case: Case, given: Bytes, before: Bytes, result: Bytes) -> Iterator[str]:
    """Differences between an output and numpy's; all NaNs are equal."""
    if case.expected is None:
        return
    expected = case.expected(given, before)
    slack = case.check(given, expected) if case.check else None
    yield from _compare(case.expected_element, expected, result[: expected.nbytes], slack, "numpy")


def disagreements(case: Case, given: Bytes, golden: Bytes, result: Bytes) -> Iterator[str]:
    """Differences between an emulated output and the recorded one: any bit, or beyond the case's bound."""
    if case.comparison is None:
        yield from _compare("b8", golden, result, None, "the GPU")
    else:
        yield from _compare(case.comparison.element, golden, result, case.comparison.slack(given, golden), "the GPU")


def excess(case: Case, given: Bytes, golden: Bytes, result: Bytes) -> Array:
    """Differences of finite results from the recorded ones as shares of the case's bound; up to 1 agrees."""
    assert case.comparison is not None
    kind = case.comparison.element.removesuffix("x2")
    want, have = (to_values(one.view(f"u{_FLOAT_BITS[kind][0] // 8}"), kind) for one in (golden, result))
    with np.errstate(invalid="ignore"):
        share = np.abs(want - have) / case.comparison.slack(given, golden)
    return np.where(np.isfinite(want) & np.isfinite(have) & (want != have), share, 0)


def _compare(element: str, expected: Bytes, result: Bytes, slack: Array | None, whose: str) -> Iterator[str]:
    kind = element.removesuffix("x2")
    if kind not in _FLOAT_BITS:
        wrong = expected != result
        yield from _told(expected, result, wrong, whose)
        return
    width, infinity = _FLOAT_BITS[kind]
    want, have = (one.view(f"u{width // 8}") for one in (expected, result))
    magnitude = (1 << (width - 1)) - 1
    nans = ((want & magnitude) > infinity) & ((have & magnitude) > infinity)
    wrong = (want != have) & ~nans
    if slack is not None:
        with np.errstate(invalid="ignore"):
            wrong &= ~(np.abs(to_values(want, kind) - to_values(have, kind)) <= slack)
    yield from _told(want, have, wrong, whose)


def _told(want: Array, have: Array, wrong: Array, whose: str) -> Iterator[str]:
    if wrong.any():
        at = int(np.argmax(wrong))
        count = f"{int(wrong.sum())} of {wrong.size} differ from {whose}"
        yield f"{count}; element {at} is {int(have[at]):#x}, not {int(want[at]):#x}"
