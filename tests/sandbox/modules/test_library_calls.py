"""Library calls of a plan, over named tensors."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.library_call import LibraryCall, resolve_call
from cudal2_agent.contract.records.module_task import Arithmetic
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.sandbox.modules.library_calls import arithmetic_of, check_call, run_native, run_wide

SHAPES = {
    "a": (6, 8), "w": (5, 8), "d": (6, 5), "h": (6, 5), "x": (2, 4, 9), "f": (6, 2, 3), "b": (6,), "y": (2, 6, 5),
    "g": (4, 3, 3), "z": (2, 3, 20), "q": (2, 3, 4, 8), "o": (2, 3, 4, 8), "m": (4, 4), "p": (2, 3, 4), "r": (2, 4, 5),
    "s": (2, 3, 5),
}  # fmt: skip
BUFFERS = {
    name: Buffer(name=name, shape=shape, element=BufferElement.F16 if name == "h" else BufferElement.F32, role=Role.OUTPUT)
    for name, shape in SHAPES.items()
}


def resolved(call: str, inputs: list[Any], out: str, **fields: Any) -> LibraryCall:
    views = [{"tensor": each} if isinstance(each, str) else each for each in inputs]
    return resolve_call(
        LibraryCall.model_validate({"call": call, "inputs": views, "out": {"tensor": out}, **fields}), BUFFERS, {}
    )


def drawn() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {name: torch.randn(shape) if name != "h" else torch.zeros(shape).half() for name, shape in SHAPES.items()}


W_T = {"tensor": "w", "permute": [1, 0]}
CALLS = [
    (resolved("mm", ["a", W_T], "d"), lambda t: t["a"] @ t["w"].T),
    (resolved("bmm", ["p", "r"], "s"), lambda t: t["p"] @ t["r"]),
    (
        resolved("conv", ["x", "f", "b"], "y", stride=[2], padding=[1], groups=2),
        lambda t: functional.conv1d(t["x"], t["f"], t["b"], 2, 1, 1, 2),
    ),
    (
        resolved("conv_transpose", ["x", "g"], "z", stride=[2], output_padding=[1]),
        lambda t: functional.conv_transpose1d(t["x"], t["g"], None, 2, 0, 1),
    ),
    (
        resolved("sdpa", ["q", "o", "q", "m"], "o", scale=0.5),
        lambda t: functional.scaled_dot_product_attention(t["q"], t["o"], t["q"], attn_mask=t["m"], scale=0.5),
    ),
]


@pytest.mark.parametrize(("call", "formula"), CALLS, ids=lambda each: getattr(each, "call", ""))
def test_a_call_computes_what_it_says(call: LibraryCall, formula: Any) -> None:
    check_call(call, BUFFERS)
    wide, native = drawn(), drawn()
    want = formula({name: each.double() for name, each in drawn().items()}).float()
    run_wide(call, wide)
    with arithmetic_of(Arithmetic.F32):
        run_native(call, native)
    assert torch.equal(wide[call.out.tensor], want)
    assert torch.allclose(native[call.out.tensor], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        resolved("mm", ["a", "w"], "d"),
        resolved("mm", ["a", W_T], "h"),
        resolved("bmm", ["p", "r"], "p"),
        resolved("conv", ["x", "f"], "y"),
        resolved("conv", ["x", "f"], "y", groups=2, stride=[2, 2]),
    ],
)
def test_operands_that_do_not_fit_are_the_plans_fault(call: LibraryCall) -> None:
    with pytest.raises(PlanError) as caught:
        check_call(call, BUFFERS)
    assert caught.value.rule == "plan-call"


def test_the_switches_of_arithmetic_are_put_back() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with arithmetic_of(Arithmetic.TF32):
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (True, True)
    with arithmetic_of(Arithmetic.F32):
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, False)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
