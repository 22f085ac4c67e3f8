"""How far a right kernel's outputs may be from the float64 reference, element by element.

Eager runs once as it is and a few times with noise in every operation (`noise.py`). The root mean square of its differences
to the reference is what rounding explains at an element. So few samples may all be small by chance, and a right kernel may
round to the other side of a kink (ReLU, clamp), so that the typical error of the row is the least:

    |output - reference| <= MULTIPLE max(rms_i, median of the row, |reference| median of the row's relative errors)
                            + u_out |reference| + tiny

Over a whole output the median of error over what rounding explains is at most TYPICAL: that is how a narrower arithmetic shows
where sums are long. Whole numbers and booleans are exact; an index of an extremum may be that of another element whose value
is as large, within its own bound.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from cudal2_agent.contract.records.module_graph import Graph
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.sandbox.modules.executor import STORED, Run, Values, filled
from cudal2_agent.sandbox.modules.interpreter import Interpreter
from cudal2_agent.sandbox.modules.noise import Noise, operation

MULTIPLE, TYPICAL = 8.0, 3.0
NOISY_RUNS = 7
_ROW, _MANY = 64, 256  # elements of a row at least; of an output whose typical error tells
_LONG, _SAMPLED = 2**12, 2**20  # elements of a row, and of an output, that a median is taken of
_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-52}
_TINY = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-126, torch.float32: 2.0**-126, torch.float64: 2.0**-1022}
_EXTREMA = frozenset({"argmax", "argmin", "max", "min", "topk", "sort"})


@dataclass
class Verdict:
    """What a comparison found. `worst`: the largest error over its bound; `typical`: as in the module's text.

    `unwritten`: wrong elements that hold the poison; `unwritten_nan`: those of them that should be NaN.
    """

    elements: int = 0
    wrong: int = 0
    unwritten: int = 0
    unwritten_nan: int = 0
    worst: float = 0.0
    typical: float = 0.0
    first: str = ""

    @property
    def right(self) -> bool:
        return not self.wrong and self.typical <= TYPICAL

    def describe(self) -> str:
        """What is wrong, in one sentence; empty where nothing is."""
        if self.wrong:
            left = (
                f"; {self.unwritten} still hold the poison: never written, or computed from old output"
                if self.unwritten
                else ""
            )
            return f"{self.wrong} of {self.elements} outputs are wrong; first {self.first}{left}"
        if self.typical > TYPICAL:
            return (
                f"the typical error is {self.typical:.3g} times what rounding explains; is the arithmetic narrower than asked?"
            )
        return ""


@dataclass(frozen=True)
class Expected:
    """One output's reference in float64, its bound, and what rounding explains. Shape: the output's.

    `free`: elements where PyTorch's own result is not finite and the reference is, or the reverse; None where there are none.
    `source`, `dim`: of indices, the values of which they are an extremum; `source` None elsewhere.
    """

    reference: torch.Tensor
    bound: torch.Tensor
    explained: torch.Tensor
    free: torch.Tensor | None = None
    source: "Expected | None" = None
    dim: int | None = None


class Judge:
    """Judges outputs for one set of values. Its references are computed when it is made.

    `nan_is_free`: where the values hold infinities, whether a formula makes a NaN of one depends on the formula.
    """

    def __init__(self, task: ModuleTask, values: Values, seed: int, *, nan_is_free: bool = False) -> None:
        self._task = task
        device = next(iter(values.values())).device
        self._written = [buffer for buffer in task.buffers if buffer.role.written]
        sources = {buffer.name: _source(task.graph, buffer) for buffer in self._written}
        wanted = dict(task.graph.outputs) | {f"{name}.of": source[0] for name, source in sources.items() if source}
        graph = task.graph.model_copy(update={"outputs": wanted})
        wide = Interpreter(graph, str(device), BufferElement.F64)
        values = as_booleans(task, values)
        reference = wide.run(values)
        eager = Interpreter(graph, str(device))
        found = {name: _Spread(each, nan_is_free=nan_is_free) for name, each in reference.items()}
        self.eager: dict[str, torch.Tensor] = {}
        for index in range(1 + NOISY_RUNS):
            around = Noise(seed + index, device, task.arithmetic) if index else None
            sample = eager.run(values, around=around)
            self.eager = self.eager or sample
            for name, each in found.items():
                each.add(sample[name])
        self.expected: dict[str, Expected] = {}
        for buffer in self._written:
            each = found[buffer.name].expected()
            if source := sources[buffer.name]:
                each = Expected(
                    each.reference, each.bound, each.explained, source=found[f"{buffer.name}.of"].expected(), dim=source[1]
                )
            self.expected[buffer.name] = each

    def parts(self) -> "Iterator[tuple[None, Judge]]":
        """The whole, as one piece."""
        yield None, self

    @property
    def finite(self) -> float:
        """The share of the reference's elements that are finite."""
        counts = [(int(each.reference.isfinite().sum()), each.reference.numel()) for each in self.expected.values()]
        return sum(finite for finite, _ in counts) / max(sum(all_ for _, all_ in counts), 1)

    def judge(self, run: Run) -> Verdict:
        """Compare every output and state of a run."""
        verdict = Verdict()
        for buffer in self._written:
            covered = None if run.covered is None else run.covered[buffer.name]
            poison = run.poison if buffer.role is Role.OUTPUT else None
            _compare(verdict, buffer, self.expected[buffer.name], run.outputs[buffer.name], poison, covered)
        return verdict

    def accepts(self, outputs: Values) -> bool:
        """Whether outputs that some program computed would pass."""
        return self.judge(Run({name: outputs[name] for name in self.expected})).right


def as_booleans(task: ModuleTask, values: Values) -> dict[str, torch.Tensor]:
    """Values as a graph takes them: booleans in torch's own type, not as bytes."""
    booleans = {buffer.name for buffer in task.buffers if buffer.element is BufferElement.BOOL}
    return {name: value.bool() if name in booleans else value for name, value in values.items()}


class _Spread:
    """The differences of some evaluations to one reference."""

    def __init__(self, reference: torch.Tensor, *, nan_is_free: bool) -> None:
        self._reference, self._count = reference, 0
        self._squares = torch.zeros(reference.shape, dtype=torch.float64, device=reference.device)
        self._free = reference.isnan() if nan_is_free else torch.zeros_like(reference, dtype=torch.bool)
        self._dtype = reference.dtype

    def add(self, sample: torch.Tensor) -> None:
        self._count, self._dtype = self._count + 1, sample.dtype
        if not sample.is_floating_point():
            return
        wide, limit = sample.double(), torch.finfo(sample.dtype).max
        reference = torch.where(self._reference.abs() > limit, self._reference.sign() * math.inf, self._reference)
        both = wide.isfinite() & reference.isfinite()
        same = both | (wide == reference) | (wide.isnan() & reference.isnan())
        self._free |= ~same
        self._squares += torch.where(both, wide - reference, 0.0) ** 2

    def expected(self) -> Expected:
        reference = self._reference
        if not self._dtype.is_floating_point:
            zero = torch.zeros((), dtype=torch.float64, device=reference.device)
            return Expected(reference, zero, zero)
        rms = (self._squares / max(self._count, 1)).sqrt()
        size = reference.abs()
        least = torch.maximum(_typical(rms), size * _typical(torch.where(size > 0, rms / size, 0.0)))
        explained = torch.maximum(rms, least)
        bound = MULTIPLE * explained + _ROUNDOFF[self._dtype] * size * (1 + 2.0**-20) + _TINY[self._dtype]
        return Expected(reference, bound, explained, self._free if bool(self._free.any()) else None)


def _sampled(values: torch.Tensor) -> torch.Tensor:
    """Every so many of very many elements, flat: a GPU takes the median of one row by one CTA."""
    return values.reshape(-1)[:: max(1, values.numel() // _SAMPLED)]


def _typical(errors: torch.Tensor) -> torch.Tensor:
    """Of each row the median of the errors that are not zero; 0 where all are. A row has at least _ROW elements, if there are
    so many. Shape: as `errors`, or broadcast to it.
    """
    length, kept = 1, errors.dim()
    while kept and length < _ROW:
        kept -= 1
        length *= errors.shape[kept]
    if not errors.numel():
        return errors
    rows = errors.reshape(-1, length)[:, :: max(1, length // _LONG)]
    found = torch.where(rows.isfinite() & (rows > 0), rows, math.nan).nanmedian(dim=1).values.nan_to_num(0.0)
    return found.reshape((*errors.shape[:kept], *[1] * (errors.dim() - kept)))


def _source(graph: Graph, buffer: Buffer) -> tuple[str, int | None] | None:
    """(value, dimension) of which an output holds the indices of extrema; None where it does not."""
    if buffer.element.floating:
        return None
    nodes = {node.name: node for node in graph.nodes}
    node = nodes.get(graph.outputs[buffer.name])
    if node is not None and node.op == "getitem":
        node = nodes.get(node.inputs()[0])
    if node is None or operation(node) not in _EXTREMA or not node.inputs():
        return None
    dims = [arg for arg in (*node.args[1:], *node.kwargs.values()) if isinstance(arg, int) and not isinstance(arg, bool)]
    return node.inputs()[0], dims[0] if dims else None


def _compare(
    verdict: Verdict, buffer: Buffer, expected: Expected, output: torch.Tensor, poison: int | None, covered: torch.Tensor | None
) -> None:
    """Add one output to a verdict."""
    output = output.to(STORED[buffer.element]) if output.dtype is torch.bool else output
    want, got = expected.reference, output.reshape(expected.reference.shape)
    if got.is_floating_point():
        wide = got.double()
        error = (wide - want).abs()
        limit = torch.finfo(got.dtype).max
        right = (error <= expected.bound) | (wide == want) | (wide.isnan() & want.isnan())
        right |= wide.isinf() & (wide.sign() == want.sign()) & (want.abs() + expected.bound > limit)
        if expected.free is not None:
            right |= expected.free
        told = error.isfinite() & (expected.explained > 0) & (True if covered is None else covered)
        verdict.worst = max(
            verdict.worst, float(torch.where(error.isfinite(), error / expected.bound, 0.0).max()) if got.numel() else 0
        )
        explained = expected.explained.expand(want.shape)
        error, told, size, explained = (_sampled(each) for each in (error, told, want.abs(), explained))
        if int(told.sum()) >= _MANY:
            ratio = (error[told] - _ROUNDOFF[got.dtype] * size[told]).clamp(min=0) / explained[told]
            verdict.typical = max(verdict.typical, float(ratio.median()))
    elif expected.source is not None:
        right = _as_extreme(expected.source, got, want, expected.dim)
    else:
        right = got.long() == want.long()
    kept = torch.zeros_like(right)
    if poison is not None:
        kept = (
            (got == filled(got.shape, buffer.element, poison, got.device))
            if not got.is_floating_point()
            else _same_bits(got, filled(got.shape, buffer.element, poison, got.device))
        )
    wrong = (~right | kept) if got.is_floating_point() else ~right
    if covered is not None:
        wrong &= covered
    verdict.elements += int(wrong.numel() if covered is None else covered.sum())
    count = int(wrong.sum())
    if not count:
        return
    if not verdict.wrong:
        index = tuple(int(each) for each in wrong.nonzero()[0])
        place = f"{buffer.name}[{', '.join(map(str, index))}]" if index else buffer.name
        verdict.first = f"{place} is {_shown(got[index])}, should be {_shown(want[index])}"
    verdict.wrong += count
    verdict.unwritten += int((kept & wrong).sum())
    verdict.unwritten_nan += int((kept & wrong & want.isnan()).sum()) if want.is_floating_point() else 0


def _as_extreme(source: Expected, got: torch.Tensor, want: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Whether the values at two sets of indices are equally extreme. An index out of range is not."""
    values, bound = source.reference, torch.where(source.explained > 0, source.bound, 0.0).expand(source.reference.shape)
    if dim is None:
        values, bound, shape, dim = values.reshape(-1), bound.reshape(-1), (-1,), 0
    else:
        shape = (
            want.shape
            if want.dim() == values.dim()
            else (*want.shape[: dim % values.dim()], 1, *want.shape[dim % values.dim() :])
        )
    size = values.shape[dim]
    inside = (got >= 0) & (got < size)
    chosen, best = (index.long().clamp(0, size - 1).reshape(shape) for index in (got, want))
    left, right = values.gather(dim, chosen), values.gather(dim, best)
    slack = bound.gather(dim, chosen) + bound.gather(dim, best) if bool((chosen != best).any()) else 0.0
    alike = ((left - right).abs() <= slack) | (left == right) | (left.isnan() & right.isnan())
    return alike.reshape(got.shape) & inside


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return left.contiguous().view(whole) == right.view(whole)


def _shown(value: torch.Tensor) -> str:
    number = value.item()
    return f"{number:.9g}" if isinstance(number, float) else str(number)
