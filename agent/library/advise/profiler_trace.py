"""Reads the matrix products of a trace that `torch.profiler` wrote with `record_shapes=True`. PyTorch is not needed.

A trace is a JSON object with `traceEvents`. Operators have the category `cpu_op` and nest by time within a thread. A kernel
has the `External id` of the innermost operator that launched it. Kernels of a replayed CUDA graph have none.
Covered: mm, addmm, bmm, baddbmm, and linear where no such operator runs within it; one or several steps of a schedule.
Not covered: products within fused operators such as attention, convolutions, and kernels of replayed CUDA graphs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cudal2_agent.agent.library.advise.products import (
    ELEMENTS,
    OPERATORS,
    CountedProduct,
    MatrixProduct,
    Operator,
    Part,
    Recording,
    Sizes,
    in_order,
    read_product,
)
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import members, opened

Event = Mapping[str, Any]
Argument = Literal["Input Dims", "Input Strides", "Input type"]

_PRODUCTS: dict[str, Operator | Literal["linear"]] = {**{f"aten::{name}": name for name in OPERATORS}, "aten::linear": "linear"}
_FIRST_OPERAND = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "linear": 0}
_GRADIENT = "autograd::engine::evaluate_function: "  # of a node of the backward pass
_LEAF = "torch::autograd::AccumulateGrad"
_ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_STEP = "ProfilerStep#"
_ARGUMENTS = ("External id", "Input Dims", "Input Strides", "Input type", "Sequence number")
_KEPT = ("name", "ts", "dur", "pid", "tid")
_MOST_OPERATORS = 400_000
_LATEST_US = 2**63
_HOW = "record it with torch.profiler.profile(record_shapes=True)"


class _Call(NamedTuple):
    """One executed product. `node`: the event of the backward node that it runs in. `gpu_us`: of its kernels.

    `added`: the shape of what is added; a trace does not say whether it is scaled.
    """

    operator: Operator
    element: str
    a: tuple[Sizes, Sizes]
    b: tuple[Sizes, Sizes]
    sequence: int | None
    node: int | None
    gpu_us: float
    added: tuple[int, ...] | None = None


@dataclass
class _Open:
    """An operator while its thread is walked through. `own`: ids of the operators within, itself included."""

    event: Event
    index: int
    end: float
    own: list[int] = field(default_factory=list)
    has_product: bool = False


@dataclass
class _Trace:
    """What is kept of a trace while it is read. `gpu_us`: by the `External id` of kernels."""

    operators: list[Event] = field(default_factory=list)
    gpu_us: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    total_us: float = 0.0
    traced: bool = False
    steps: set[str] = field(default_factory=set)

    def take(self, event: Any) -> None:
        """Raises: ValueError beyond the limit of operators."""
        if not isinstance(event, dict) or event.get("ph") != "X":
            return
        if (name := _text(event, "name")).startswith(_STEP):
            self.steps.add(name)
        kind = _text(event, "cat")
        if kind in _ON_GPU:
            duration, self.traced = _time(event, "dur"), True
            self.total_us += duration
            self.gpu_us[_number(event, "External id", -1)] += duration
        elif kind == "cpu_op":
            if len(self.operators) >= _MOST_OPERATORS:
                raise ValueError(f"more than {_MOST_OPERATORS:,} operators; trace fewer steps")
            kept = {key: value for key in _KEPT if isinstance(value := event.get(key), str | int | float)}
            self.operators.append(
                {**kept, "args": {key: found for key in _ARGUMENTS if (found := _argument(event, key)) is not None}}
            )


def read_trace(file: Path) -> Recording:
    """The products of a trace, the most frequent first. Raises: UsageError for a file without products or shapes."""
    trace, properties = _load(file)
    calls = _calls(file, trace.operators, trace.gpu_us)
    if not calls:
        raise UsageError(f"{file} holds no matrix product; trace a forward or backward pass, with ProfilerActivity.CPU")
    gpu, capability = _device(properties) if trace.traced else (None, None)
    return Recording(
        products=_counted(calls, trace.operators, trace.traced),
        passes=max(1, len(trace.steps)),
        gpu=gpu,
        capability=capability,
        gpu_us=trace.total_us if trace.traced else None,
    )


def _load(file: Path) -> tuple[_Trace, Any]:
    """What is kept of the events, and the properties of the devices. An event at a time is in memory."""
    trace, properties, found = _Trace(), None, False
    try:
        with opened(file) as stream:
            for name, value in members(stream, "traceEvents"):
                if name == "traceEvents":
                    found = True
                    trace.take(value)
                elif name == "deviceProperties":
                    properties = value
    except OSError as exc:
        raise UsageError(f"{file} cannot be read: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise UsageError(
            f"{file} is not a trace that can be read ({exc}); name one of torch.profiler's export_chrome_trace"
        ) from exc
    if not found:
        raise UsageError(f"{file} is not a trace: it has no traceEvents; name a file of torch.profiler's export_chrome_trace")
    return trace, properties


def _calls(file: Path, operators: Sequence[Event], gpu_us: Mapping[int, float]) -> list[_Call]:
    """Every product, in the order in which each thread ends them. An operator that runs another product is none itself."""
    threads: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for index, event in enumerate(operators):
        threads[event.get("pid"), event.get("tid")].append(index)
    return [call for order in threads.values() for call in _walk(file, operators, order, gpu_us)]


def _walk(file: Path, operators: Sequence[Event], order: Sequence[int], gpu_us: Mapping[int, float]) -> Iterator[_Call]:
    stack: list[_Open] = []
    starts = sorted(order, key=lambda index: (_time(operators[index], "ts"), -_time(operators[index], "dur")))
    for index in (*starts, None):
        begin = _time(operators[index], "ts") if index is not None else float("inf")
        while stack and stack[-1].end <= begin:
            call = _closed(file, stack, gpu_us)
            if call is not None:
                yield call
        if index is not None:
            event = operators[index]
            ids = [_number(event, "External id", -2)]
            stack.append(_Open(event, index, begin + _time(event, "dur"), ids))


def _closed(file: Path, stack: list[_Open], gpu_us: Mapping[int, float]) -> _Call | None:
    """Takes the innermost operator off; its product, if it is one."""
    done = stack.pop()
    operator = _PRODUCTS.get(str(done.event.get("name")))
    inner = done.has_product
    if stack:
        stack[-1].own += done.own
        stack[-1].has_product |= inner or operator is not None
    if operator is None or inner:
        return None
    node = next((one.index for one in reversed(stack) if str(one.event.get("name")).startswith(_GRADIENT)), None)
    return _call(file, operator, done.event, node, sum(gpu_us.get(one, 0.0) for one in done.own))


def _call(file: Path, operator: Operator | Literal["linear"], event: Event, node: int | None, gpu_us: float) -> _Call:
    first = _FIRST_OPERAND[operator]
    if not _inputs(event, "Input Dims"):
        raise UsageError(f"{file} has no shapes; {_HOW}")
    if not _inputs(event, "Input Strides"):
        raise UsageError(f"{file} has no strides, which an older PyTorch does not record; {_HOW} in a newer one")
    try:
        a, b = _operand(event, first), _operand(event, first + 1)
        place = 2 if operator == "linear" else 0
        if operator == "linear":
            a, b = ((_rows(a[0]), a[0][-1]), (a[0][-1], 1)), (b[0][::-1], b[1][::-1])
            operator = "addmm" if any(_inputs(event, "Input Dims")[2:]) else "mm"
        added = tuple(_inputs(event, "Input Dims")[place]) if operator == "addmm" else None
        element = str(_inputs(event, "Input type")[first])
    except (IndexError, ValueError) as exc:
        raise UsageError(f"{file}: an operator {event.get('name')} has damaged shapes; {_HOW} again") from exc
    sequence = _number(event, "Sequence number", -1)
    return _Call(operator, ELEMENTS.get(element, element), a, b, sequence if sequence >= 0 else None, node, gpu_us, added)


def _operand(event: Event, place: int) -> tuple[Sizes, Sizes]:
    """Shape and strides of an operand. Raises: ValueError for anything but a matrix or a stack of them; IndexError."""
    shape, strides = _inputs(event, "Input Dims")[place], _inputs(event, "Input Strides")[place]
    for sizes in (shape, strides):
        if not isinstance(sizes, list) or len(sizes) < 2 or not all(isinstance(size, int) for size in sizes):
            raise ValueError(sizes)
    if len(shape) != len(strides):
        raise ValueError(strides)
    return tuple(shape), tuple(strides)


def _rows(shape: Sizes) -> int:
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows


def _counted(calls: Sequence[_Call], operators: Sequence[Event], traced: bool) -> tuple[CountedProduct, ...]:
    parts = _parts(calls, operators)
    times: dict[MatrixProduct, float] = defaultdict(float)
    counts: Counter[MatrixProduct] = Counter()
    for call, part in zip(calls, parts, strict=True):
        product = read_product(call.operator, part, call.element, call.a, call.b, call.added)
        if product is not None:
            counts[product] += 1
            times[product] += call.gpu_us
    found = (CountedProduct(product=one, calls=count, gpu_us=times[one] if traced else None) for one, count in counts.items())
    return in_order(found)


def _parts(calls: Sequence[_Call], operators: Sequence[Event]) -> list[Part]:
    """The part of each call. A node of the backward pass has the sequence number of the operator that it belongs to."""
    forward = {call.sequence: call for call in calls if call.node is None and call.sequence is not None}
    weights = {tuple(shape) for event in operators if event.get("name") == _LEAF for shape in _inputs(event, "Input Dims")[:1]}
    together = Counter(call.node for call in calls)
    seen: Counter[int | None] = Counter()
    parts: list[Part] = []
    for call in calls:
        seen[call.node] += 1
        if call.node is None:
            parts.append("forward")
            continue
        source = forward.get(_number(operators[call.node], "Sequence number", -1))
        both = together[call.node] == 2
        parts.append(_by_source(call, source, weights, seen[call.node] if both else 0) if source else _by_shapes(call, weights))
    return parts


def _by_source(call: _Call, source: _Call, weights: set[tuple[int, ...]], place: int) -> Part:
    """`place`: 1 or 2 where a node has two products, else 0.

    Where the sizes do not tell, the order does: PyTorch computes the gradient of the second operand of `mm` first, and that of
    `addmm` last.
    """
    a, b = tuple(source.a[0]), tuple(source.b[0])
    made = (call.a[0][-2], call.b[0][-1])
    of_a, of_b = made in (a, a[::-1]), made in (b, b[::-1])
    if len(a) != 2 or not (of_a or of_b) or (of_a and of_b and not place):
        return "backward"
    if of_a and of_b:
        of_a = place == (2 if source.operator == "mm" else 1)
    b_is_weight = _either(b, weights)
    a_is_weight = not b_is_weight and _either(a, weights)
    if of_a:
        return "dW" if a_is_weight else "dX"
    return "dW" if b_is_weight else "dX" if a_is_weight else "backward"


def _by_shapes(call: _Call, weights: set[tuple[int, ...]]) -> Part:
    """For a node whose operator is not known, as of a compiled graph."""
    if len(call.a[0]) != 2:
        return "backward"
    makes = _either((call.a[0][0], call.b[0][1]), weights)
    takes = _either(tuple(call.a[0]), weights) or _either(tuple(call.b[0]), weights)
    return "backward" if makes == takes else "dW" if makes else "dX"


def _either(shape: tuple[int, ...], weights: set[tuple[int, ...]]) -> bool:
    """Whether a parameter has this shape, or is stored transposed."""
    return shape in weights or shape[::-1] in weights


def _device(properties: Any) -> tuple[str | None, int | None]:
    """Name without the vendor and compute capability of the trace's GPU."""
    for one in properties if isinstance(properties, list) else []:
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            major, minor = one.get("computeMajor"), one.get("computeMinor")
            capability = 10 * major + minor if isinstance(major, int) and isinstance(minor, int) else None
            return one["name"].removeprefix("NVIDIA ").strip(), capability
    return None, None


def _argument(event: Event, name: str) -> Any:
    arguments = event.get("args")
    return arguments.get(name) if isinstance(arguments, dict) else None


def _inputs(event: Event, name: Argument) -> Sequence[Any]:
    found = _argument(event, name)
    return found if isinstance(found, list) else []


def _number(event: Event, name: str, default: int) -> int:
    found = _argument(event, name)
    return found if isinstance(found, int) else default


def _time(event: Event, name: str) -> float:
    found = event.get(name)
    if isinstance(found, int) and abs(found) > _LATEST_US:
        return 0.0
    return float(found) if isinstance(found, int | float) else 0.0


def _text(event: Event, name: str) -> str:
    found = event.get(name)
    return found if isinstance(found, str) else ""
