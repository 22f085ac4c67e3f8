"""Canary bands and unchanged inputs in numpy: every byte around a buffer is checked."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.plan.resolve import operand_shape
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from cudal2_agent.sandbox.cuda.guard.buffers import (
    ALIGNMENT_BYTES,
    MIN_BAND_BYTES,
    Guarded,
    GuardedOperands,
    address,
    storage_type,
)
from cudal2_agent.sandbox.cuda.launcher import operand_pointers
from cudal2_agent.sandbox.verification.inputs import Inputs

TASK = GemmTask(m=5, n=7, k=3)


def around(guarded: Guarded) -> np.ndarray:
    """The payload with both of its bands."""
    whole, start = guarded.payload.base, address(guarded.payload) - address(guarded.payload.base)
    return whole[start - MIN_BAND_BYTES : start + guarded.payload.size + MIN_BAND_BYTES]


def make(task: GemmTask = TASK, workspace_bytes: int = 0) -> GuardedOperands:
    made = GuardedOperands(task, workspace_bytes, xp=np)
    rng = np.random.default_rng(1)
    dtype = storage_type(task.element)
    made.load(*(rng.integers(0, 99, operand_shape(task, name)).astype(dtype) for name in ("A", "B")))
    return made


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 100_000])
def test_payloads_are_aligned_and_their_bands_intact(size):
    guarded = Guarded(size, np)
    assert address(guarded.payload) % ALIGNMENT_BYTES == 0
    assert guarded.payload.nbytes == size
    guarded.fill(0)
    assert guarded.violation() is None


@pytest.mark.parametrize("size", [2, 70, 4096])
@pytest.mark.parametrize(
    ("place", "told"),
    [
        (lambda _: MIN_BAND_BYTES - 1, "1 byte(s) before its start"),
        (lambda _: 0, f"{MIN_BAND_BYTES} byte(s) before its start"),
        (lambda size: MIN_BAND_BYTES + size, "1 byte(s) past its end"),
        (lambda size: MIN_BAND_BYTES + size + 9, "10 byte(s) past its end"),
        (lambda size: 2 * MIN_BAND_BYTES + size - 1, f"{MIN_BAND_BYTES} byte(s) past its end"),
    ],
)
def test_one_byte_written_outside_is_found_where_it_is(size, place, told):
    guarded = Guarded(size, np)
    around(guarded)[place(size)] ^= 0x01
    violation = guarded.violation()
    assert violation is not None
    assert told in violation
    assert "1 bytes of the band" in violation
    guarded.repair()
    assert guarded.violation() is None


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x3C, 0xCD])
def test_no_constant_passes_for_the_pattern(byte):
    guarded = Guarded(64, np)
    around(guarded)[-16:] = byte
    assert guarded.violation() is not None


def test_large_buffers_have_wide_bands():
    assert Guarded(64 * 1024, np)._after.size == 8 * 1024
    assert Guarded(100 * 1024 * 1024, np)._after.size == 1024 * 1024


def test_a_fresh_set_has_no_violation_and_nan_in_d():
    made = make(workspace_bytes=100)
    assert made.violations() == ()
    assert np.isnan(made.operands.d).all()
    assert (made.operands.workspace == 0xFF).all()
    assert made.operands.d.shape == (5, 7)


def test_poison_is_nan_in_bfloat16_too():
    bits = make(GemmTask(m=5, n=7, k=3, element=ElementType.BF16)).operands.d.astype(np.uint32) << 16
    assert np.isnan(bits.view(np.float32)).all()


@pytest.mark.parametrize(
    ("layout", "shapes"),
    [
        (Layout.NN, {"a": (5, 3), "b_nn": (3, 7)}),
        (Layout.TN, {"a": (5, 3), "b_tn": (7, 3)}),
        (Layout.NT, {"a_nt": (3, 5), "b_nn": (3, 7)}),
    ],
)
def test_operands_lie_in_the_layout_of_the_task_and_in_no_other(layout, shapes):
    operands = make(GemmTask(m=5, n=7, k=3, layout=layout)).operands
    held = {name: getattr(operands, name) for name in ("a", "a_nt", "b_nn", "b_tn")}
    assert {name: array.shape for name, array in held.items() if array is not None} == shapes
    assert [array.shape for array in operands.stored(layout)] == list(shapes.values())


@pytest.mark.parametrize("layout", Layout)
def test_inputs_are_stored_as_the_layout_says(layout):
    task, rng = GemmTask(m=5, n=7, k=3, layout=layout), np.random.default_rng(2)
    inputs = Inputs(*(rng.integers(0, 2**15, shape, dtype=np.uint16) for shape in ((5, 3), (3, 7))))
    made = GuardedOperands(task, xp=np)
    made.load(*inputs.stored(layout))
    a, b = (array.view(np.uint16) for array in made.operands.stored(layout))
    assert (a.flags.c_contiguous, b.flags.c_contiguous) == (True, True)
    assert (a.T if layout.transposes_a else a).tolist() == inputs.a.tolist()
    assert (b.T if layout.transposes_b else b).tolist() == inputs.b.tolist()
    assert made.violations() == ()
    a[-1, -1] ^= 1
    assert [violation.buffer for violation in made.violations()] == ["A"]
    made.repair()
    assert made.violations() == ()


@pytest.mark.parametrize("layout", Layout)
def test_up_of_a_gated_task_is_stored_and_guarded_as_b_is(layout):
    task, rng = GemmTask(m=5, n=7, k=3, layout=layout, activation="silu", gated=True), np.random.default_rng(2)
    a, b, up = (rng.integers(0, 2**15, shape, dtype=np.uint16) for shape in ((5, 3), (3, 7), (3, 7)))
    made = GuardedOperands(task, xp=np)
    made.load(*Inputs(a, b, up=up).stored(layout))
    held = made.operands.third(task).view(np.uint16)
    assert (held.T if layout.transposes_b else held).tolist() == up.tolist()
    assert operand_pointers(made.operands, task, 0).keys() == {"A", "B", "up", "D"}
    held[0, 0] ^= 1
    assert [violation.message for violation in made.violations()] == ["input up was changed in 1 element(s)"]
    with pytest.raises(ValueError, match="the operands hold no up"):
        operand_pointers(replace(made.operands, up_nn=None, up_tn=None), task, 0)


@pytest.mark.parametrize(("name", "told"), [("a", "input A was changed in 1"), ("b_nn", "input B was changed in 1")])
def test_a_changed_input_is_found_and_repaired(name, told):
    made = make()
    getattr(made.operands, name).view(np.uint16)[-1, -1] ^= 0x8000
    [violation] = made.violations()
    assert violation.kind == "input"
    assert told in violation.message
    made.repair()
    assert made.violations() == ()


def test_an_input_that_differs_only_in_the_sign_of_zero_has_changed():
    made = GuardedOperands(TASK, xp=np)
    made.load(np.zeros((5, 3), np.float16), np.zeros((3, 7), np.float16))
    made.operands.a[0, 0] = -0.0
    assert len(made.violations()) == 1


def test_nan_inputs_compare_by_their_bits():
    made = GuardedOperands(TASK, xp=np)
    made.load(np.full((5, 3), np.nan, np.float16), np.zeros((3, 7), np.float16))
    assert made.violations() == ()


@pytest.mark.parametrize("name", ["a", "b_nn", "d", "workspace"])
def test_a_write_past_any_operand_names_it(name):
    made = make(workspace_bytes=96)
    array = getattr(made.operands, name)
    beyond = ctypes.c_uint8.from_address(address(array) + array.nbytes)
    beyond.value ^= 0xFF
    [violation] = made.violations()
    assert violation.kind == "canary"
    assert violation.buffer == {"a": "A", "b_nn": "B", "d": "D"}.get(name, name)
    assert "1 byte(s) past its end" in violation.message


def test_writing_d_and_the_workspace_is_allowed():
    made = make(workspace_bytes=96)
    made.operands.d[...] = 1
    made.operands.workspace[...] = 1
    assert made.violations() == ()


def test_loading_what_does_not_fit_is_refused():
    made = GuardedOperands(TASK, xp=np)
    with pytest.raises(ValueError, match="A should be"):
        made.load(np.zeros((3, 5), np.float16), np.zeros((3, 7), np.float16))
    with pytest.raises(ValueError, match="B should be"):
        made.load(np.zeros((5, 3), np.float16), np.zeros((7, 3), np.float16))
