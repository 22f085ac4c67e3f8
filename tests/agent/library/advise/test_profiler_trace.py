"""The products of a trace of PyTorch's profiler."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.library.advise.products import Recording
from cudal2_agent.agent.library.advise.profiler_trace import read_trace
from cudal2_agent.agent.library.advise.recording import record_model
from cudal2_agent.contract.errors import UsageError
from tests.agent.library.advise.traces import H200, kernel, operator, traced, write_trace

MODEL = """
import torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48, bias=False)
        self.out = torch.nn.Linear(16, 16)
        self.square = torch.nn.Linear(16, 16, bias=False)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        mixed = torch.softmax(q @ k.mT, -1) @ v
        return self.out(mixed) + self.square(x) @ self.square.weight
def model():
    torch.manual_seed(0)
    return Block().bfloat16()
def inputs():
    return (torch.ones(2, 8, 16, dtype=torch.bfloat16, requires_grad=True),)
"""


def products(recording: Recording) -> set[tuple[object, ...]]:
    return {(*one.product.model_dump().values(), one.calls) for one in recording.products}


@pytest.fixture(name="model")
def _model(tmp_path: Path) -> tuple[Path, object]:
    import torch

    torch.set_num_threads(1)
    file, found = tmp_path / "model.py", {}
    file.write_text(MODEL)
    exec(MODEL, found)
    module, (x,) = found["model"](), found["inputs"]()  # type: ignore[operator]

    def run() -> None:
        y = module(x)
        y.backward(torch.ones_like(y))

    return file, run


@pytest.mark.parametrize("name", ["pid", "tid", "name", "cat", "ts", "dur"])
@pytest.mark.parametrize("value", [[], {}, [[1]], None, 10**400, True])
def test_a_field_of_another_type_counts_as_none(tmp_path: Path, name: str, value: object) -> None:
    event = operator("aten::mm", 1, 0, 10, [[4, 8], [8, 16]]) | {name: value}
    file = write_trace(tmp_path / "trace.json", [event, operator("aten::mm", 2, 20, 10, [[4, 8], [8, 16]])])
    assert sum(one.calls for one in read_trace(file).products) == (1 if name in ("name", "cat") else 2)


def test_a_trace_says_what_recording_the_model_says(tmp_path: Path, model: tuple[Path, object]) -> None:
    """Forward, dX and dW of layers with and without a bias, batches, and square weights and inputs."""
    file, run = model
    told = read_trace(traced(tmp_path / "trace.json", run))
    assert products(told) == products(record_model(file))
    assert {one.product.part for one in told.products} == {"forward", "dX", "dW", "backward"}
    assert (told.passes, told.gpu, told.gpu_us) == (1, None, None)


def test_steps_of_a_schedule_are_passes(tmp_path: Path, model: tuple[Path, object]) -> None:
    file, run = model
    told = read_trace(traced(tmp_path / "trace.json.gz", run, steps=2))
    assert told.passes == 2
    assert products(told) == {(*one[:-1], 2 * one[-1]) for one in products(record_model(file))}  # type: ignore[operator]


def test_a_trace_without_shapes_says_how_to_record_one(tmp_path: Path, model: tuple[Path, object]) -> None:
    trace = traced(tmp_path / "trace.json", model[1], record_shapes=False)
    with pytest.raises(UsageError, match=r"has no shapes; record it with .*record_shapes=True"):
        read_trace(trace)


def test_kernels_belong_to_the_operator_that_launched_them(tmp_path: Path) -> None:
    """A product may launch two kernels and run other operators. Copies count in the pass; replayed graphs have no operator."""
    events = [
        operator("aten::linear", 1, 0, 30, [[64, 32], [48, 32]]),
        operator("aten::mm", 2, 5, 20, [[64, 32], [32, 48]]),
        operator("aten::copy_", 3, 8, 2, [[64, 32]]),
        operator("aten::relu", 4, 40, 5, [[64, 48]]),
        kernel(2, 10.0),
        kernel(2, 1.5),
        kernel(3, 0.5),
        kernel(4, 4.0),
        kernel(None, 7.0),
        kernel(4, 2.0, "gpu_memcpy"),
        kernel(None, 100.0, "gpu_user_annotation"),
    ]
    told = read_trace(write_trace(tmp_path / "trace.json", events, **H200))
    ((product, calls, gpu_us),) = [(one.product, one.calls, one.gpu_us) for one in told.products]
    assert (product.shape, product.operator, product.layout, product.element) == ("64x48x32", "mm", "nn", "f16")
    assert (calls, gpu_us) == (1, 12.0)
    assert (told.gpu, told.capability, told.gpu_us) == ("H200", 90, 25.0)


def test_a_linear_layer_that_runs_no_other_product_is_one(tmp_path: Path) -> None:
    events = [
        operator("aten::linear", 1, 0, 30, [[4, 16, 32], [48, 32], []]) | {"tid": 2},
        operator("aten::linear", 2, 0, 30, [[4, 16, 32], [48, 32], [48]]) | {"tid": 3},
    ]
    told = read_trace(write_trace(tmp_path / "trace.json", events))
    found = {(one.product.shape, one.product.layout, one.product.operator) for one in told.products}
    assert found == {("64x48x32", "tn", "mm"), ("64x48x32", "tn", "addmm")}


def test_a_compiled_backward_pass_is_told_apart_by_the_shapes_of_parameters(tmp_path: Path) -> None:
    backward = "autograd::engine::evaluate_function: "
    events = [
        operator("aten::mm", 1, 0, 5, [[8, 32], [32, 48]], **{"Sequence number": 3}),
        operator(f"{backward}CompiledFunctionBackward", 2, 10, 40, []) | {"args": {"Sequence number": 4}},
        operator("aten::mm", 3, 12, 5, [[8, 48], [48, 32]]),
        operator("aten::mm", 4, 20, 5, [[48, 8], [8, 32]]),
        operator("aten::mm", 5, 30, 5, [[8, 8], [8, 8]]),
        operator("torch::autograd::AccumulateGrad", 6, 60, 1, [[48, 32]]),
    ]
    told = read_trace(write_trace(tmp_path / "trace.json", events))
    parts = {one.product.shape: one.product.part for one in told.products}
    assert parts == {"8x48x32": "forward", "8x32x48": "dX", "48x32x8": "dW", "8x8x8": "backward"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no json", "is not a trace"),
        (b"\xff\xfe", "is not a trace"),
        (b"\x1f\x8bcut", "damaged or incomplete"),
        (b"[]", "is not a trace"),
        (b"{}", "is not a trace: it has no traceEvents"),
        (b'{"traceEvents": [' + b"[" * 10**6, "is not a trace"),
        (b'{"traceEvents": [1 2]}', "is not a trace"),
        (b'{"traceEvents": [{"ph": "X"}', "is not a trace"),
        (b'{"traceEvents": 3}', "is not a trace"),
        (b'{"traceEvents": [3, {"ph": "X"}]}', "holds no matrix product"),
    ],
)
def test_what_is_no_trace_is_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=said) as caught:
        read_trace(file)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"Input Strides": []}, "has no strides"),
        ({"Input Dims": [[4, 8]]}, "damaged shapes"),
        ({"Input Dims": [[4, 8], "x"]}, "damaged shapes"),
        ({"Input Dims": [[4, 8], [8]]}, "damaged shapes"),
    ],
)
def test_damaged_events_are_one_line(arguments: dict[str, object], said: str, tmp_path: Path) -> None:
    event = operator("aten::mm", 1, 0, 1, [[4, 8], [8, 4]])
    event["args"] |= arguments
    with pytest.raises(UsageError, match=said):
        read_trace(write_trace(tmp_path / "trace.json", [event]))


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.json cannot be read: No such file"):
        read_trace(tmp_path / "absent.json")


def test_the_events_by_hand_are_like_real_ones(tmp_path: Path, model: tuple[Path, object]) -> None:
    real = json.loads(traced(tmp_path / "trace.json", model[1]).read_text())
    event = next(one for one in real["traceEvents"] if one.get("name") == "aten::mm")
    made = operator("aten::mm", 1, 0, 1, [[4, 8], [8, 4]])
    assert made.keys() <= event.keys()
    assert made["args"].keys() <= event["args"].keys()
