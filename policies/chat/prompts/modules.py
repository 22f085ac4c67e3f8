"""What a prompt says of a module: its buffers, its operations, its floor, its problem file, and executed examples like it.

The graph and the file come from others: names have a pattern, everything else is fenced, and all of it is cut to size.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2.sandbox import SandboxedEnvironment

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.module_graph import GraphNode, OperationClass, TensorType, classes_of
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, Role
from cudal2_agent.contract.reward.roofline import arithmetic_us, bound_of, memory_us, roofline_us, transfer_us
from cudal2_agent.policies.chat.prompts.quoting import fenced, inline
from cudal2_agent.policies.chat.tokens import shorten

OPERATIONS, BUFFERS, PROBLEM = "Operations", "Buffers", "The problem file"
EXAMPLES_HEADING = "Examples"
_GRAPH_TOKENS, _BUFFER_TOKENS, _PROBLEM_TOKENS = 3000, 1500, 1500
_LINE_CHARS = 240
_SHOWN_DIMS = 64
_FOLDER = Path(__file__).parent / "examples"
_CALLED = (OperationClass.PRODUCT, OperationClass.CONVOLUTION, OperationClass.ATTENTION, OperationClass.RECURRENCE)
# The examples of each class of operations, the most telling first.
EXAMPLES: Mapping[OperationClass, tuple[str, ...]] = {
    OperationClass.RECURRENCE: ("library_tail",),
    OperationClass.ATTENTION: ("library_tail", "softmax"),
    OperationClass.CONVOLUTION: ("library_tail",),
    OperationClass.PRODUCT: ("library_tail", "fused_product"),
    OperationClass.SCAN: ("scan",),
    OperationClass.SOFTMAX: ("softmax",),
    OperationClass.NORM: ("norm",),
    OperationClass.POOL: ("pool",),
    OperationClass.REDUCTION: ("row_reduction",),
    OperationClass.MOVEMENT: ("pointwise",),
    OperationClass.POINTWISE: ("pointwise",),
}
# Names of the arguments that are bare numbers in a graph. Source: ATen's native_functions.yaml.
_ARGUMENTS = {
    "convolution": "input weight bias stride padding dilation transposed output_padding groups",
    "native_layer_norm": "input normalized_shape weight bias eps",
    "native_group_norm": "input weight bias N C HxW group eps",
    "_native_batch_norm_legit_no_training": "input weight bias running_mean running_var momentum eps",
    "_native_batch_norm_legit_functional": "input weight bias running_mean running_var training momentum eps",
    "max_pool2d_with_indices": "input kernel_size stride padding dilation ceil_mode",
    "max_pool3d_with_indices": "input kernel_size stride padding dilation ceil_mode",
    "avg_pool1d": "input kernel_size stride padding ceil_mode count_include_pad",
    "avg_pool2d": "input kernel_size stride padding ceil_mode count_include_pad divisor_override",
    "avg_pool3d": "input kernel_size stride padding ceil_mode count_include_pad divisor_override",
    "_softmax": "input dim half_to_float",
    "_log_softmax": "input dim half_to_float",
    "logsumexp": "input dim keepdim",
    "mean": "input dim keepdim",
    "sum": "input dim keepdim",
    "max": "input dim keepdim",
    "min": "input dim keepdim",
    "amax": "input dim keepdim",
    "amin": "input dim keepdim",
    "argmax": "input dim keepdim",
    "argmin": "input dim keepdim",
    "cumsum": "input dim",
    "cumprod": "input dim",
    "linalg_vector_norm": "input ord dim keepdim",
    "hardtanh": "input min_val max_val",
    "clamp": "input min max",
    "leaky_relu": "input negative_slope",
    "elu": "input alpha scale input_scale",
    "permute": "input dims",
    "view": "input size",
    "expand": "input size",
    "cat": "tensors dim",
    "select": "input dim index",
    "slice": "input dim start end step",
    "unsqueeze": "input dim",
    "squeeze": "input dim",
}


def module_values(task: ModuleTask, chip: Chip) -> dict[str, Any]:
    """The values of the task's template."""
    dims = [f"{name} = {size}" for name, size in task.dims.items()]
    more = [f"and {len(dims) - _SHOWN_DIMS} more"] if len(dims) > _SHOWN_DIMS else []
    return {
        "name": inline(task.name),
        "dims": ", ".join([*dims[:_SHOWN_DIMS], *more]),
        "states": any(buffer.role is Role.STATE for buffer in task.buffers),
        "products": not set(classes_of(task.graph)).isdisjoint(_CALLED),
        "traffic": _floor(task, chip),
    }


def required_sections(task: ModuleTask) -> dict[str, Callable[[int], str]]:
    """The sections that every prompt of a module has, each as a function of its maximum number of tokens."""
    buffers, operations = "\n".join(_buffer_lines(task)), "\n".join(_graph_lines(task))
    return {
        BUFFERS: lambda tokens: fenced(shorten(buffers, min(tokens, _BUFFER_TOKENS))),
        OPERATIONS: lambda tokens: fenced(shorten(operations, min(tokens, _GRAPH_TOKENS))),
    }


def problem_text(task: ModuleTask) -> list[str]:
    """The problem's file as one piece; none where a record has no text."""
    return [fenced(shorten(task.problem, _PROBLEM_TOKENS), "python")] if task.problem.strip() else []


def example_pieces(task: ModuleTask) -> list[str]:
    """The examples whose operations a module has, the most telling first."""
    names = [EXAMPLES[kind] for kind in classes_of(task.graph)]
    ordered = [name for rank in range(2) for each in names for name in each[rank : rank + 1]]
    return [fenced(example_source(name, task), "cuda") for name in dict.fromkeys(ordered)]


def example_source(name: str, task: ModuleTask) -> str:
    """An example for the target of a task. It is a module of its own, in f32, and tests prove it."""
    text = (_FOLDER / f"{name}.cu").read_text(encoding="utf-8")
    return SandboxedEnvironment(keep_trailing_newline=True).from_string(text).render({"task": task})


def _floor(task: ModuleTask, chip: Chip) -> str:
    """What no plan is faster than: bytes of all buffers, and the arithmetic of products."""
    written = sum(buffer.bytes for buffer in task.buffers if buffer.role.written)
    said = (
        f"all buffers together are {_size(task.operand_bytes)}, which take {memory_us(task, chip):.2f} µs through device "
        f"memory ({transfer_us(written, chip):.2f} of them for what is written)"
    )
    if task.flops:
        said += (
            f"; {task.flops / 1e9:.3g} GFLOP of products and convolutions take {arithmetic_us(task, chip):.2f} µs "
            f"at the full rate for {task.arithmetic}"
        )
    bound = bound_of(task, chip)
    most = "launch and latency are most of the time" if bound == "launch and latency" else f"it is bound by {bound}"
    return (
        f"{said}. The floor of one launch is {roofline_us(task, chip):.2f} µs, with {chip.launch_us:.1f} µs of launch: {most}."
    )


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


def _buffer_lines(task: ModuleTask) -> Iterator[str]:
    yield "name | shape | element | role"
    for buffer in task.buffers:
        yield f"{buffer.name} | {_shape(buffer.shape)} | {buffer.element} | {buffer.role}{_range(buffer)}"


def _range(buffer: Buffer) -> str:
    if buffer.fixed:
        return ", a constant of the module"
    if buffer.low is None or buffer.high is None or buffer.element.floating:
        return ""
    return f", values from {buffer.low} to {buffer.high}"


def _graph_lines(task: ModuleTask) -> Iterator[str]:
    """The operations in order, each with the type and the size of its result, then what the outputs are."""
    for note in task.notes:
        yield f"# {inline(note, _LINE_CHARS)}"
    for node in task.graph.nodes:
        first, *more = node.results
        others = f" and {len(more)} more" if more else ""
        yield f"{inline(f'{node.name} = {_call(node)}', _LINE_CHARS)}  # {_type(first)}{others}"
    yield from (f"{name} = {inline(value)}" for name, value in task.graph.outputs.items())


def _call(node: GraphNode) -> str:
    if node.op == "getitem" and len(node.args) == 2:
        return f"{_text(node.args[0])}[{_text(node.args[1])}]"
    operation = node.op.split(".")[1]
    names = _ARGUMENTS.get(operation, "").split()
    said = [
        f"{names[at]}={_text(value)}" if at < len(names) and not _is_value(value) else _text(value)
        for at, value in enumerate(node.args)
    ]
    said += [f"{name}={_text(value)}" for name, value in node.kwargs.items()]
    return f"{operation}({', '.join(said)})"


def _is_value(value: Any) -> bool:
    return isinstance(value, dict) and "node" in value


def _text(value: Any) -> str:
    match value:
        case {"node": name} | {"dtype": name} | {"float": name}:
            return str(name)
        case list() | tuple():
            return f"[{', '.join(map(_text, value))}]"
        case None:
            return "None"
        case _:
            return json.dumps(value)


def _type(result: TensorType) -> str:
    buffer = Buffer(name="value", shape=result.shape, element=result.element, role=Role.INPUT)
    return f"{result.element} {_shape(result.shape)}, {_size(buffer.bytes)}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "one element"
