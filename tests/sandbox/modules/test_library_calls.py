"""Library calls of a plan, over named tensors."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.library_call import LibraryCall, resolve_call
from cudal2_agent.contract.records.module_task import Arithmetic
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.sandbox.modules import convolutions
from cudal2_agent.sandbox.modules.library_calls import arithmetic_of, check_call, prepare, run_native, run_wide

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


@pytest.mark.parametrize(
    ("kind", "call", "operator", "sizes"),
    [
        ("Cudnn", resolved("conv", ["x", "f"], "y", stride=[2], padding=[1], groups=2, search=True), "cudnn_convolution", 3),
        (
            "CudnnTranspose",
            resolved("conv_transpose", ["x", "g"], "z", stride=[2], output_padding=[1], search=True),
            "cudnn_convolution_transpose",
            4,
        ),
    ],
)
def test_a_convolution_of_cudnn_is_written_in_place_and_searched_once(
    kind: str, call: LibraryCall, operator: str, sizes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its search runs before a capture; operands at other alignments are another search."""
    calls: list[tuple[Any, ...]] = []

    def write(*args: Any, out: torch.Tensor) -> None:
        calls.append(args)
        out.fill_(7)

    monkeypatch.setattr(torch._C, "_select_conv_backend", lambda *_: getattr(torch._C._ConvBackend, kind))
    monkeypatch.setattr(getattr(torch.ops.aten, operator), "out", write)
    monkeypatch.setattr(convolutions, "_searched", set())
    tensors = drawn()
    for _ in range(2):
        with arithmetic_of(Arithmetic.F32):
            prepare(call, tensors)
    assert len(calls) == 1  # the second time it was known
    place = tensors[call.out.tensor].data_ptr()
    with arithmetic_of(Arithmetic.F32):
        run_native(call, tensors)
    benchmark, deterministic, tf32 = calls[-1][2 + sizes + 1 :]
    assert (benchmark, deterministic, tf32) == (True, True, False)
    assert tensors[call.out.tensor].data_ptr() == place
    assert bool((tensors[call.out.tensor] == 7).all())


def test_a_capture_that_no_search_precedes_takes_the_heuristic(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(torch._C, "_select_conv_backend", lambda *_: torch._C._ConvBackend.Cudnn)
    monkeypatch.setattr(torch.ops.aten.cudnn_convolution, "out", lambda *args, **_: seen.append(args[6]))
    monkeypatch.setattr(convolutions, "_searched", set())
    call, tensors = resolved("conv", ["x", "f"], "y", stride=[2], padding=[1], groups=2, search=True), drawn()
    for capturing in (True, False, True):
        monkeypatch.setattr(convolutions, "_capturing", lambda _, now=capturing: now)
        run_native(call, tensors)
    assert seen == [False, True, True]


def test_a_depthwise_convolution_is_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(torch._C, "_select_conv_backend", lambda *_: torch._C._ConvBackend.CudaDepthwise2d)
    monkeypatch.setattr(torch.ops.aten._conv_depthwise2d, "out", lambda *args, out: seen.extend((out, *args[2:])))
    tensors = drawn()
    run_native(resolved("conv", ["x", "f", "b"], "y", stride=[2], padding=[1], groups=2), tensors)
    assert seen[0].data_ptr() == tensors["y"].data_ptr()
    assert (seen[1], seen[3:]) == ((3,), [(2,), (1,), (1,)])


def test_a_search_where_there_is_nothing_to_search_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes the output, which a dependent run watches."""
    monkeypatch.setattr(convolutions, "_searched", set())
    call, tensors = resolved("conv", ["x", "f"], "y", stride=[2], padding=[1], groups=2, search=True), drawn()
    prepare(call, tensors)  # a CPU's own convolution
    tensors["y"].fill_(7)
    prepare(call, tensors)
    assert bool((tensors["y"] == 7).all())


def test_only_convolutions_are_searched() -> None:
    with pytest.raises(PlanError) as caught:
        resolved("mm", ["a", W_T], "d", search=True)
    assert caught.value.rule == "plan-call"


def test_a_call_without_a_search_is_written_as_it_was_before_there_was_one() -> None:
    assert "search" not in resolved("conv", ["x", "f"], "y").model_dump(mode="json")


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_without_strides_is_a_plain_one_of_the_turned_weight(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain one writes in place; PyTorch copies the result of a transposed one."""

    def write(x: Any, weight: Any, padding: Any, stride: Any, dilation: Any, parts: int, *_: Any, out: torch.Tensor) -> None:
        out.copy_(functional.conv2d(x, weight, None, stride, padding, dilation, parts))

    monkeypatch.setattr(torch._C, "_select_conv_backend", lambda *_: torch._C._ConvBackend.CudnnTranspose)
    monkeypatch.setattr(torch.ops.aten.cudnn_convolution, "out", write)
    x, weight, bias = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 2), torch.randn(3 * groups)
    padding, dilation = (1, 0), (2, 3)
    wanted = functional.conv_transpose2d(x, weight, bias, 1, padding, 0, groups, dilation)
    out, views = torch.empty_like(wanted), [{"tensor": each} for each in "abc"]
    fields = {"stride": (1, 1), "padding": padding, "dilation": dilation, "groups": groups}
    call = LibraryCall.model_validate({"call": "conv_transpose", "inputs": views, "out": {"tensor": "o"}, **fields})
    assert convolutions.convolve(call, (x, weight, bias), out)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
