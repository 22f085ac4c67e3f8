"""From the graph of a task to values: one rule for each kind of operator."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudal2_agent.contract.plan.library_call import LibraryCall, View
from cudal2_agent.contract.records.module_graph import GraphNode
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement, Role
from cudal2_agent.policies.fusion import pointwise
from cudal2_agent.policies.fusion.expressions import CTYPE, Expr
from cudal2_agent.policies.fusion.index_algebra import Index, flat
from cudal2_agent.policies.fusion.norms import logsumexp, normalised, reduced, softmax, with_operands
from cudal2_agent.policies.fusion.product_kernels.attention import attention
from cudal2_agent.policies.fusion.product_kernels.direct import direct
from cudal2_agent.policies.fusion.product_kernels.linear import summed
from cudal2_agent.policies.fusion.values import BufferValue, Linear, Lowered, Map, ProductValue, Scan, Scope, Unplanned, Value
from cudal2_agent.policies.fusion.views import joined, pieces, reshaped, scanned_behind, view
from cudal2_agent.policies.fusion.windows import pool

_REDUCTIONS = {
    "sum": "sum",
    "mean": "sum",
    "amax": "max",
    "amin": "min",
    "max": "max",
    "min": "min",
    "prod": "prod",
    "any": "any",
    "all": "all",
    "argmax": "argmax",
    "argmin": "argmin",
    "var": "moments",
    "linalg_vector_norm": "sum",
    "norm": "sum",
}


def lowered(task: ModuleTask, *, algebra: bool = False) -> Lowered:
    """The values of a task. `algebra`: a sum over a product is computed without it.

    Raises: Unplanned for an operator without a rule.
    """
    result = Lowered()
    for buffer in task.buffers:
        if buffer.role is not Role.OUTPUT:
            result.sources[buffer.name] = BufferValue(buffer.name, buffer.shape, buffer.element)
    known: dict[str, tuple[Value, ...]] = {name: (source,) for name, source in result.sources.items()}
    for node in task.graph.nodes:
        known[node.name] = _Node(node, known, algebra).values()
    result.outputs = {name: known[value][0] for name, value in task.graph.outputs.items()}
    return result


@dataclass
class _Node:
    """One operation of the graph, with the values of those before it."""

    node: GraphNode
    known: Mapping[str, tuple[Value, ...]]
    algebra: bool
    args: list[Any] = field(init=False)
    kwargs: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.args = [self._argument(each) for each in self.node.args]
        self.kwargs = {key: self._argument(each) for key, each in self.node.kwargs.items()}

    def _argument(self, argument: Any) -> Any:
        match argument:
            case {"node": str() as name}:
                return self.known[name][0]
            case {"dtype": str() as name}:
                return BufferElement(name)
            case {"float": str() as number}:
                return float(number)
            case list() | tuple():
                return [self._argument(each) for each in argument]
        return argument

    @property
    def op(self) -> str:
        if self.node.op == "getitem":
            return "getitem"
        name, _, overload = self.node.op.removeprefix("aten.").partition(".")
        return {"max": "maximum", "min": "minimum"}.get(name, name) if overload == "other" else name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.results[0].shape

    @property
    def element(self) -> BufferElement:
        return self.node.results[0].element

    def values(self) -> tuple[Value, ...]:
        """The results. Raises: Unplanned."""
        node, op, args = self.node, self.op, self.args
        if op == "getitem":
            results = self.known[node.args[0]["node"]]
            which = int(node.args[1])
            if which >= len(results):
                raise Unplanned("getitem", f"result {which} of {node.args[0]['node']}")
            return (results[which],)
        if (several := self._several()) is not None:
            return several
        if op in pointwise.OPERATORS:
            return (self._pointwise(),)
        if op in ("mm", "bmm", "addmm", "baddbmm", "convolution") or op.startswith(("linear", "matmul")):
            return (self._product(),)
        if op == "scaled_dot_product_attention":
            return (
                attention(node.name, args, self.kwargs, lambda *each: self._call(each[0], each[1], {"call": "bmm"}, each[2])),
            )
        if op in ("cumsum", "cumprod"):
            return (Scan(node.name, self.shape, self.element, {"cumsum": "sum", "cumprod": "prod"}[op], *self._scanned()),)
        if args and isinstance(args[0], Value):
            if (moved := view(node.name, op, args[0], args[1:], self.shape)) is not None:
                return (moved,)
            if (pooled := pool(node.name, op, args[0], args[1:], self.shape)) is not None:
                return (pooled,)
        return (self._made(),)

    def _scanned(self) -> tuple[Value, int]:
        value, dim = self.args[0], self.args[1]
        if value.element is not self.element:
            raise Unplanned(self.node.op, "of another type than its result")
        return value, dim % max(len(value.shape), 1)

    def _several(self) -> tuple[Value, ...] | None:
        """The results of an operation with several, and of reductions."""
        name, op, args = self.node.name, self.op, self.args
        if op in ("_softmax", "softmax", "_log_softmax", "log_softmax"):
            return (softmax(name, args[0], args[1], log="log" in op),)
        if op == "logsumexp":
            return (reshaped(name, logsumexp(name, args[0], args[1]), self.shape),)
        if (norm := normalised(name, op, args)) is not None:
            return norm
        if op in _REDUCTIONS:
            return self._reduction()
        if op in ("split", "split_with_sizes", "chunk"):
            dim = args[2] % len(self.shape) if len(args) > 2 else 0
            return pieces(name, args[0], [result.shape[dim] for result in self.node.results], dim)
        return None

    def _reduction(self) -> tuple[Value, ...]:
        name, op, args, shape = self.node.name, self.op, list(self.args), self.shape
        value: Value = args[0]
        order = args.pop(1) if op in ("linalg_vector_norm", "norm") and len(args) > 1 else 2
        dims = args[1] if len(args) > 1 else self.kwargs.get("dim")
        dims = [dims] if isinstance(dims, int) else list(dims or [])
        if op in ("argmax", "argmin"):
            return (reshaped(name, reduced(f"{name}_at", value, op, dims, "index"), shape),)
        if op in ("max", "min") and dims:
            both = [reduced(f"{name}_{output}", value, f"arg{op}", dims, output) for output in ("value", "index")]
            both[0] = reduced(f"{name}_value", value, op, dims)
            return tuple(reshaped(f"{name}_{at}", each, shape) for at, each in enumerate(both))
        if op in ("linalg_vector_norm", "norm"):
            return (self._norm(value, 2.0 if order is None else float(order), dims),)
        if op in ("any", "all"):
            value = with_operands(f"{name}_bool", [value], value.shape, BufferElement.BOOL, _cast("bool"))
        elif op in ("sum", "mean", "prod") and value.element is not self.element:
            value = with_operands(f"{name}_of", [value], value.shape, self.element, _cast(CTYPE[self.element]))
        if op == "var":
            return (self._variance(value, dims),)
        gone = tuple(sorted({dim % len(value.shape) for dim in dims} or range(len(value.shape))))
        total = summed(f"{name}_total", value, gone) if self.algebra and op in ("sum", "mean") else None
        total = total or reduced(f"{name}_total", value, _REDUCTIONS[op], dims)
        if op == "mean":
            return (self._scaled(total, _length(value, total)),)
        return (reshaped(name, total, shape),)

    def _scaled(self, total: Value, by: float) -> Value:
        whole = reshaped(f"{self.node.name}_view", total, self.shape)
        return with_operands(
            self.node.name,
            [whole],
            self.shape,
            self.element,
            lambda scope, of: scope.pool.call("({0} / {1})", of[0].ctype, of[0], scope.pool.literal(by, of[0].ctype)),
        )

    def _variance(self, value: Value, dims: Sequence[int]) -> Value:
        squares = reduced(f"{self.node.name}_squares", value, "moments", dims, "squares")
        return self._scaled(squares, _length(value, squares) - float(self.kwargs.get("correction", 1) or 0))

    def _norm(self, value: Value, order: float, dims: Sequence[int]) -> Value:
        name = self.node.name
        if order not in (1, 2) and not math.isinf(order):
            raise Unplanned(self.node.op, f"of order {order}")
        text = "({0} * {0})" if order == 2 else "fabs({0})"
        powers = with_operands(
            f"{name}_of", [value], value.shape, value.element, lambda scope, of: scope.pool.call(text, of[0].ctype, of[0])
        )
        operation = "sum" if order in (1, 2) else "max" if order > 0 else "min"
        total = reshaped(f"{name}_view", reduced(f"{name}_total", powers, operation, dims), self.shape)
        if order != 2:
            return total
        return with_operands(
            name, [total], self.shape, self.element, lambda scope, of: scope.pool.call("sqrt({0})", of[0].ctype, of[0])
        )

    def _pointwise(self) -> Value:
        """An element-wise operation; its tensors among the arguments are broadcast."""
        args, op, ctype = self.args, self.op, CTYPE[self.element]
        values = [each for each in args if isinstance(each, Value)]
        dtype = self.kwargs.get("dtype")
        kwargs = {key: value for key, value in self.kwargs.items() if key != "dtype"}
        if op in ("clone", "alias", "detach", "_to_copy", "to") and (dtype is None or dtype is values[0].element):
            return values[0]
        if any(isinstance(each, Value) for each in kwargs.values()):
            raise Unplanned(self.node.op, "a tensor as a keyword")

        def write(scope: Scope, operands: list[Expr]) -> Expr:
            left = iter(operands)
            mixed = [next(left) if isinstance(each, Value) else each for each in args]
            return scope.pool.cast(pointwise.element(scope.pool, op, mixed, kwargs, ctype), ctype)

        result = with_operands(self.node.name, values, self.shape, self.element, write)
        result.cost = pointwise.cost(op, args)
        result.linear = _linear(op, args, kwargs)
        return result

    def _product(self) -> Value:
        """A library's product, without the bias, which is added where the product is read."""
        name, op, args = self.node.name, self.op, self.args
        if op in ("mm", "bmm"):
            return self._call(name, args[:2], {"call": op})
        if op in ("addmm", "baddbmm"):
            product = self._call(f"{name}_product", args[1:3], {"call": op.removeprefix("add").removeprefix("badd")})
            beta, alpha = self.kwargs.get("beta", 1), self.kwargs.get("alpha", 1)

            def combined(scope: Scope, of: list[Expr]) -> Expr:
                made, ctype = scope.pool, of[0].ctype
                scaled = [
                    each if by == 1 else made.call("({0} * {1})", ctype, each, made.literal(by, ctype))
                    for each, by in zip(of, (alpha, beta), strict=True)
                ]
                return made.call("({0} + {1})", ctype, *scaled)

            result = with_operands(name, [product, args[0]], self.shape, self.element, combined)
            result.linear = ((product, alpha), (args[0], beta))
            return result
        if op == "convolution":
            return self._convolution()
        raise Unplanned(self.node.op)

    def _convolution(self) -> Value:
        value, weight, bias, stride, padding, dilation, transposed, output_padding, groups = self.args
        rank = len(value.shape) - 2
        call = {
            "call": "conv_transpose" if transposed else "conv",
            "stride": _each(stride, rank),
            "padding": _each(padding, rank),
            "dilation": _each(dilation, rank),
            "output_padding": _each(output_padding, rank) if transposed else (),
            "groups": groups,
        }
        name = self.node.name
        product = self._call(name if bias is None else f"{name}_product", [value, weight], call)
        if bias is None:
            return product

        def added(scope: Scope, index: Sequence[Index]) -> Expr:
            return scope.pool.call("({0} + {1})", product.ctype, scope.read(product, index), scope.read(bias, [index[1]]))

        whole = reshaped(f"{name}_bias", bias, (*bias.shape, *[1] * rank))
        return Map(name, self.shape, self.element, (product, bias), added, linear=((product, 1), (whole, 1)))

    def _call(
        self, name: str, operands: Sequence[Value], call: Mapping[str, Any], shape: tuple[int, ...] | None = None
    ) -> Value:
        """`call`: fields of the library call but its buffers. `shape`: of the result, where it is not the node's."""
        views = tuple(View(tensor=f"operand{at}") for at in range(len(operands)))
        whole = LibraryCall.model_validate({**call, "inputs": views, "out": View(tensor="result")})
        product = ProductValue(name, shape or self.shape, self.element, tuple(operands), whole)
        return direct(product) or product

    def _made(self) -> Value:
        """Values without an operand, and those that read where another tensor says."""
        name, op, args, ctype = self.node.name, self.op, self.args, CTYPE[self.element]
        fill: Any = None
        match op:
            case "cat":
                dim = args[1] if len(args) > 1 else 0
                return scanned_behind(name, args[0], dim, self.shape) or joined(name, args[0], dim, self.shape)
            case "full":
                fill = args[1]
            case "full_like" | "fill":
                fill = args[1]
            case "scalar_tensor":
                fill = args[0]
            case "zeros" | "zeros_like" | "new_zeros":
                fill = 0
            case "ones" | "ones_like" | "new_ones":
                fill = 1
            case "arange":
                start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
                return Map(name, self.shape, self.element, (), lambda scope, index: _counted(scope, index, start, step, ctype))
            case "gather" | "index_select" | "embedding":
                return self._gathered()
            case "index" if sum(each is not None for each in args[1]) == 1:
                return self._gathered()
        if fill is None or isinstance(fill, Value):
            raise Unplanned(self.node.op)
        return Map(name, self.shape, self.element, (), lambda scope, _: scope.pool.literal(fill, ctype))

    def _gathered(self) -> Value:
        table, dim, places = self.args[:3] if len(self.args) > 2 else (self.args[0], 0, self.args[1])
        if self.op == "embedding":
            dim, places = 0, self.args[1]
        if self.op == "index":
            dim, places = next((at, each) for at, each in enumerate(self.args[1]) if each is not None)
        dim %= len(table.shape)

        def at(scope: Scope, index: Sequence[Index]) -> Expr:
            inner = list(index) if self.op == "gather" else list(index[dim : dim + len(places.shape)])
            place = scope.read(places, inner)
            if self.op == "index":  # from the end where it is negative
                place = scope.pool.call(f"({{0}} < 0 ? {{0}} + {table.shape[dim]} : {{0}})", place.ctype, place)
            where = scope.pool.loaded_index(place, table.shape[dim])
            rest = index[dim + 1 :] if self.op == "gather" else index[dim + len(places.shape) :]
            return scope.read(table, [*index[:dim], where, *rest])

        return Map(self.node.name, self.shape, self.element, (table, places), at)


def _linear(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Linear:
    """An element-wise operation as a sum of factor * term; empty where it is none."""
    first: Any = args[0]
    second: Any = args[1] if len(args) > 1 else None
    values = [isinstance(each, Value) for each in (first, second)]
    match op, values:
        case "neg", [True, False]:
            return ((first, -1),)
        case "div", [True, False] if "rounding_mode" not in kwargs:
            return ((first, 1 / second),) if second else ()
        case "mul", [True, False]:
            return ((first, second),)
        case "mul", [True, True]:
            return ((first, second),) if first.numel >= second.numel else ((second, first),)
        case "add" | "sub", [True, True]:
            alpha = float(kwargs.get("alpha", 1))
            return ((first, 1), (second, alpha if op == "add" else -alpha))
    return ()


def _length(value: Value, reduced: Value) -> int:
    """Elements that one result is made of."""
    return value.numel // max(reduced.numel, 1)


def _cast(ctype: Any) -> Any:
    return lambda scope, of: scope.pool.cast(of[0], ctype)


def _counted(scope: Scope, index: Sequence[Index], start: float, step: float, ctype: Any) -> Expr:
    made = scope.pool
    place = made.cast(made.index(flat(index, [1] * (len(index) - 1) + [0] if index else [])), ctype)
    if (start, step) == (0, 1):
        return place
    return made.call("({0} * {1} + {2})", ctype, place, made.literal(step, ctype), made.literal(start, ctype))


def _each(values: Any, rank: int) -> tuple[int, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)
