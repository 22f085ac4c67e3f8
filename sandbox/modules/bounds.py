"""How far a right kernel's outputs may be from the float64 reference, element by element.

Eager runs once as it is and a few times with noise in every operation (`noise.py`). The size of its differences to the
reference, from the mean of their magnitudes, is what rounding explains at an element. So few samples may all be small by
chance, and a right kernel may round to the other side of a kink (ReLU, clamp), so that the typical error of the row, and of
what is near, is the least:

    |output - reference| <= M max(explained_i, median of the row, |reference| median of the row's relative errors,
                                  the least of the means near it in its row and in its column)
                            + u_out |reference| + tiny

M is MULTIPLE, and in f32 and f64 one more for each tenfold of TAIL_ELEMENTS that a task writes. The error of a serial sum
depends on where its partial sums wander, so its tail is exponential, and the worst of many elements lies further out. Few
elements that are beyond their bound, and not far, may be so because their samples were small by chance: they are looked at
again, with AGAIN_RUNS.

Over a whole output the median of error over what rounding explains is at most TYPICAL: that is how a narrower arithmetic shows
where sums are long. Whole numbers and booleans are exact; an index of an extremum may be that of another element whose value
is as large, within its own bound. NaN and infinities must be where the reference has them, but for `free` and `may_be_nan`.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from cudal2_agent.contract.records.module_graph import Graph
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.sandbox.modules.evaluations import EAGER, REFERENCE, SPREAD, Evaluate, Evaluations, needed
from cudal2_agent.sandbox.modules.executor import STORED, Run, Values, bits_of, filled
from cudal2_agent.sandbox.modules.noise import is_moved, rounds
from cudal2_agent.sandbox.modules.operators import operation

MULTIPLE, TYPICAL = 8.0, 3.0
NOISY_RUNS, FEW_RUNS = 7, 3  # evaluations with noise; of a task that writes more than MANY_ELEMENTS
TAIL_ELEMENTS = 2**20
AGAIN_RUNS, AGAIN_SHARE, AGAIN_NEAR = 31, 2.0**-14, 4.0  # of the elements, or one, may be wrong; so many times their bound
MANY_ELEMENTS = 2**26
OF_MEAN = 1.25  # root mean square of what is normal, by the mean of its magnitudes
BLOCK_ELEMENTS = 2**24
_ROW, _MANY = 64, 256  # elements of a row at least; of an output whose typical error tells
_REACH = 4  # neighbours on either side
_LONG, _SAMPLED = 2**12, 2**20  # elements of a row, and of a piece of an output, that a median is taken of
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

    @property
    def in_doubt(self) -> bool:
        """Whether all that is wrong should be NaN and holds the poison."""
        return 0 < self.wrong == self.unwritten_nan

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
    """One output's reference in float64, and what rounding explains in f32. Shape: the output's; `explained` is 0 for what must
    be exact. `element`: of the output.

    `free`: elements where PyTorch's own result is not finite and the reference is, or the reverse; None where there are none.
    `may_be_nan`: elements that may be NaN whatever the reference is; None where there are none.
    `source`, `dim`: of indices, the values of which they are an extremum; `source` None elsewhere. `multiple`: M.
    """

    reference: torch.Tensor
    explained: torch.Tensor
    element: torch.dtype
    free: torch.Tensor | None = None
    may_be_nan: torch.Tensor | None = None
    source: "Expected | None" = None
    dim: int | None = None
    multiple: float = MULTIPLE

    @property
    def bound(self) -> torch.Tensor:
        """The largest error that is allowed, in float64."""
        return bound_of(self.reference, self.explained, self.element, self.multiple)

    def at_least(self, other: "Expected") -> "Expected":
        """With what the other one explains, where that is more."""
        source = None if self.source is None or other.source is None else self.source.at_least(other.source)
        return replace(self, explained=torch.maximum(self.explained, other.explained), source=source)


class Judge:
    """Judges outputs for one set of values. Its references are computed when it is made.

    `nan_is_free`: where the values hold infinities, whether a formula makes a NaN of one depends on the formula: a NaN of the
    reference may be anything, and behind a sum an infinity may be a NaN.
    `special`: they hold infinities or NaN; a convolution may spread these, as PyTorch's own does.
    `evaluate`: evaluations of `graph_of(task)`, by default of the whole on `values`. `written`: the outputs and states that
    they have, by default all. `origins`: by output, the dimension in which it is a part of one, and where that begins there.
    """

    def __init__(
        self,
        task: ModuleTask,
        values: Values,
        seed: int,
        *,
        nan_is_free: bool = False,
        special: bool = False,
        evaluate: Evaluate | None = None,
        written: Collection[str] | None = None,
        origins: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self._task, self._origins = task, origins or {}
        self._written = [b for b in task.buffers if b.role.written and (written is None or b.name in written)]
        if evaluate is None:
            device = next(iter(values.values())).device
            evaluate = Evaluations(device, seed, task.arithmetic).of(graph_of(task), as_booleans(task, values))
        self._evaluate, self._nan_is_free, self._reference = evaluate, nan_is_free, evaluate(REFERENCE)
        elements = sum(buffer.elements for buffer in task.buffers if buffer.role.written)
        self._multiple = multiple_of(elements)
        self.eager: dict[str, torch.Tensor] = {}
        noisy = (FEW_RUNS if elements > MANY_ELEMENTS else NOISY_RUNS) if rounds(task.graph) else 0
        self.expected = self._expected(noisy)
        self._final = not noisy
        for name, one in self.expected.items() if nan_is_free else ():
            if any(is_moved(node) for node in needed(task.graph, {name: task.graph.outputs[name]}).nodes):
                self.expected[name] = replace(one, may_be_nan=one.reference.isinf())
        if special and any(operation(node) == "convolution" for node in task.graph.nodes):
            for name, sample in evaluate(SPREAD).items():
                if name in self.expected and sample.is_floating_point():
                    self.expected[name] = replace(self.expected[name], may_be_nan=~sample.isfinite())

    def _expected(self, noisy: int) -> dict[str, Expected]:
        """What eager and so many runs with noise say of every output."""
        found = {name: _Spread(each, self._multiple, self._nan_is_free) for name, each in self._reference.items()}
        for number in range(EAGER, EAGER + 1 + noisy):
            sample = self._evaluate(number)
            self.eager = self.eager or sample
            for name, each in found.items():
                each.add(sample[name])
        expected = {}
        for buffer in self._written:
            one = found[buffer.name].expected()
            if source := _source(self._task.graph, buffer):
                one = replace(one, source=found[f"{buffer.name}.of"].expected(), dim=source[1])
            expected[buffer.name] = one
        return expected

    @property
    def finite(self) -> float:
        """The share of the reference's elements that are finite."""
        return finite_share(each.reference for each in self.expected.values())

    def judge(self, run: Run) -> Verdict:
        """Compare every output and state of a run; where few elements are just beyond their bounds, by more samples too."""
        verdict = self._verdict(run)
        few = 0 < verdict.wrong <= max(1.0, AGAIN_SHARE * verdict.elements)
        if few and not (self._final or verdict.unwritten or verdict.worst > AGAIN_NEAR):
            again = self._expected(AGAIN_RUNS)
            self.expected = {name: one.at_least(again[name]) for name, one in self.expected.items()}
            self._final = True
            verdict = self._verdict(run)
        return verdict

    def _verdict(self, run: Run) -> Verdict:
        verdict = Verdict()
        for buffer in self._written:
            covered = None if run.covered is None else run.covered[buffer.name]
            poison = run.poison if buffer.role is Role.OUTPUT else None
            origin = self._origins.get(buffer.name, (0, 0))
            _compare(verdict, buffer, self.expected[buffer.name], run.outputs[buffer.name], poison, covered, origin)
        return verdict

    def accepts(self, outputs: Values) -> bool:
        """Whether outputs that some program computed would pass."""
        return self.judge(Run({name: outputs[name] for name in self.expected})).right


def finite_share(references: Iterable[torch.Tensor]) -> float:
    """The share of all elements that are finite."""
    counts = [(int(each.isfinite().sum()), each.numel()) for each in references]
    return float(sum(finite for finite, _ in counts) / max(sum(every for _, every in counts), 1))


def graph_of(task: ModuleTask) -> Graph:
    """The task's graph with what a comparison needs besides: as `name.of`, the values whose extrema an output's indices are."""
    sources = {buffer.name: _source(task.graph, buffer) for buffer in task.buffers if buffer.role.written}
    wanted = dict(task.graph.outputs) | {f"{name}.of": source[0] for name, source in sources.items() if source}
    return task.graph.model_copy(update={"outputs": wanted})


def as_booleans(task: ModuleTask, values: Values) -> dict[str, torch.Tensor]:
    """Values as a graph takes them: booleans in torch's own type, not as bytes."""
    booleans = {buffer.name for buffer in task.buffers if buffer.element is BufferElement.BOOL}
    return {name: value.bool() if name in booleans else value for name, value in values.items()}


class _Spread:
    """The differences of some evaluations to one reference."""

    def __init__(self, reference: torch.Tensor, multiple: float, nan_is_free: bool) -> None:
        self._reference, self._count, self._dtype, self._multiple = reference, 0, reference.dtype, multiple
        self._sum = torch.zeros(reference.shape, device=reference.device)
        self._largest: list[float] = []  # magnitudes of the reference, block by block
        self._free = reference.isnan() if nan_is_free else torch.zeros_like(reference, dtype=torch.bool)

    def add(self, sample: torch.Tensor) -> None:
        self._count, self._dtype = self._count + 1, sample.dtype
        if not sample.is_floating_point():
            return
        limit = torch.finfo(sample.dtype).max
        for place, (got, want, total, free) in enumerate(_blocks(sample, self._reference, self._sum, self._free)):
            apart = (got - want).abs_()
            if place == len(self._largest):
                self._largest.append(float(torch.stack(want.aminmax()).abs().max()))
            if self._largest[place] <= limit and bool(apart.sum().isfinite()):
                total += apart
                continue
            wide, most = got.double(), torch.where(want.abs() > limit, want.sign() * math.inf, want)
            both = wide.isfinite() & most.isfinite()
            free |= ~(both | (wide == most) | (wide.isnan() & most.isnan()))
            total += torch.where(both, (wide - most).abs(), 0.0).float()

    def expected(self) -> Expected:
        reference = self._reference
        if not self._dtype.is_floating_point:
            return Expected(reference, torch.zeros((), device=reference.device), self._dtype)
        explained = self._sum.mul_(OF_MEAN / max(self._count, 1))
        length = _row_length(reference.shape)
        for errors, want in _blocks(explained, reference, length=length):
            rows, size = errors.view(-1, length), want.to(torch.float32, copy=True).abs_().view(-1, length)
            least = torch.maximum(_typical(rows), size * _typical(torch.where(size > 0, rows / size, 0.0)))
            torch.maximum(rows, torch.maximum(least, _around(rows)), out=rows)
        free = self._free if bool(self._free.any()) else None
        multiple = self._multiple if self._dtype.itemsize >= 4 else MULTIPLE  # shorter ones round more than sums err
        return Expected(reference, explained, self._dtype, free, multiple=multiple)


def multiple_of(elements: int) -> float:
    """M of a task that writes so many."""
    return MULTIPLE + max(0.0, math.log10(max(elements, 1) / TAIL_ELEMENTS))


def bound_of(reference: torch.Tensor, explained: torch.Tensor, dtype: torch.dtype, multiple: float) -> torch.Tensor:
    bound = reference.abs().mul_(_ROUNDOFF[dtype] * (1 + 2.0**-20))
    return torch.add(bound, explained, alpha=multiple, out=bound).add_(_TINY[dtype])


def _blocks(*tensors: torch.Tensor, length: int = 1) -> Iterator[tuple[torch.Tensor, ...]]:
    """Contiguous tensors of one shape, piece by piece and flat, so that temporaries of a large one stay small.

    `length`: of a row, of which a piece has whole ones. A tensor of one element stands for all.
    """
    count = max(each.numel() for each in tensors)
    step = max(BLOCK_ELEMENTS // length, 1) * length
    flat = [each.reshape(-1) if each.dim() else each.expand(count) for each in tensors]
    for start in range(0, count, step):
        yield tuple(each[start : start + step] for each in flat)


def _row_length(shape: torch.Size) -> int:
    """Elements of a row, of trailing dimensions: at least _ROW, if there are so many."""
    length = 1
    for size in reversed(shape):
        if length >= _ROW:
            break
        length *= size
    return max(length, 1)


def _sampled(values: torch.Tensor) -> torch.Tensor:
    """Every so many of very many elements."""
    return values[:: max(1, values.numel() // _SAMPLED)]


def _typical(errors: torch.Tensor) -> torch.Tensor:
    """Of each row the median of the errors that are not zero; 0 where all are. Shape: (rows, length) in, (rows, 1) out."""
    some = errors[:, :: max(1, errors.shape[1] // _LONG)]
    found = torch.where(some.isfinite() & (some > 0), some, math.nan)
    return found.nanmedian(dim=1, keepdim=True).values.nan_to_num(0.0)


def _around(errors: torch.Tensor) -> torch.Tensor:
    """The mean error near an element: of its neighbours in its row or in its column, whichever is less; 0 without neighbours.

    A row has elements of one scale, or a column has. Neighbours without an error are NaN, or exact, and tell nothing.
    Shape: (rows, length) in and out.
    """
    finite = torch.where(errors.isfinite(), errors, 0.0)[None]
    told, least = (finite > 0).float(), torch.full_like(finite, math.inf)
    for dim, size in enumerate(errors.shape):
        reach = min(_REACH, (size - 1) // 2)
        window, pad = ((2 * reach + 1, 1), (reach, 0)) if dim == 0 else ((1, 2 * reach + 1), (0, reach))
        total, count = (functional.avg_pool2d(each, window, 1, pad, divisor_override=1) - each for each in (finite, told))
        torch.minimum(least, torch.where(count > 0, total.clamp_(min=0) / count, math.inf), out=least)
    return least[0].nan_to_num_(posinf=0.0)


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
    verdict: Verdict,
    buffer: Buffer,
    expected: Expected,
    output: torch.Tensor,
    poison: int | None,
    covered: torch.Tensor | None,
    origin: tuple[int, int],
) -> None:
    """Add one output, or a part that begins at `origin` in one dimension, to a verdict."""
    got = (output.to(STORED[buffer.element]) if output.dtype is torch.bool else output).contiguous()
    everywhere = torch.ones((), dtype=torch.bool, device=got.device)
    free = ~everywhere if expected.free is None else expected.free
    spread = ~everywhere if expected.may_be_nan is None else expected.may_be_nan
    must = everywhere if covered is None else covered
    indices = everywhere if expected.source is None else _as_extreme(expected.source, got, expected.reference, expected.dim)
    start = 0
    for block in _blocks(got, expected.reference, expected.explained, free, spread, must, indices):
        values, want, explained, spared, touched, judged, extreme = block
        plain = values.is_floating_point() and expected.free is None and covered is None
        if (
            plain
            and (poison is None or values.element_size() < 8)
            and _all_close(verdict, values, want, explained, expected.multiple)
        ):
            start += len(values)
            continue
        if values.is_floating_point():
            right = (
                _is_close(verdict, values, want, explained, judged, spared, expected.multiple)
                | spared
                | (values.isnan() & touched)
            )
        else:
            right = extreme if expected.source is not None else values.long() == want.long()
        old = None if poison is None else filled((len(values),), buffer.element, poison, got.device, start)
        kept = torch.zeros_like(judged) if old is None else bits_of(values) == bits_of(old)
        wrong = judged & (~right | (kept if values.is_floating_point() else ~right))
        verdict.elements += int(judged.sum())
        if bool(wrong.any()):
            if not verdict.wrong:
                place = int(wrong.nonzero()[0])
                found = [int(each) for each in np.unravel_index(start + place, tuple(got.shape))] if got.dim() else []
                at = ", ".join(str(each + origin[1] * (dim == origin[0])) for dim, each in enumerate(found))
                name = f"{buffer.name}[{at}]" if at else buffer.name
                verdict.first = f"{name} is {_shown(values[place])}, should be {_shown(want[place])}"
            verdict.wrong += int(wrong.sum())
            verdict.unwritten += int((kept & wrong).sum())
            verdict.unwritten_nan += int((kept & wrong & want.isnan()).sum())
        start += len(values)


def _all_close(verdict: Verdict, got: torch.Tensor, want: torch.Tensor, explained: torch.Tensor, multiple: float) -> bool:
    """Whether all elements are finite and within their bounds, in few passes over memory; they are counted then.

    No poison is: in types of less than eight bytes it is a NaN.
    """
    error = (got - want).abs_()
    worst = float((error / bound_of(want, explained, got.dtype, multiple)).max())
    if not worst <= 1:
        return False
    verdict.elements += len(got)
    verdict.worst = max(verdict.worst, worst)
    _add_typical(verdict, got.dtype, error, want, explained)
    return True


def _add_typical(
    verdict: Verdict, dtype: torch.dtype, error: torch.Tensor, want: torch.Tensor, explained: torch.Tensor
) -> None:
    some, size, rounding = _sampled(error), _sampled(want).abs(), _sampled(explained)
    told = (rounding > 0) & some.isfinite()
    count = int(told.sum())
    if count >= _MANY:
        beyond = torch.where(told, (some - _ROUNDOFF[dtype] * size).clamp(min=0) / rounding, math.inf)
        verdict.typical = max(verdict.typical, float(beyond.sort().values[(count - 1) // 2]))  # torch's median takes one CTA


def _is_close(
    verdict: Verdict,
    got: torch.Tensor,
    want: torch.Tensor,
    explained: torch.Tensor,
    judged: torch.Tensor,
    spared: torch.Tensor,
    multiple: float,
) -> torch.Tensor:
    """Which elements are within their bounds, infinite or NaN as the reference is. Shape: all (elements,).

    `spared`: free elements, whose errors are neither the worst nor typical of any output.
    """
    wide, bound, limit = got.double(), bound_of(want, explained, got.dtype, multiple), torch.finfo(got.dtype).max
    error = (wide - want).abs()
    counted = error.isfinite() & judged & ~spared
    verdict.worst = max(verdict.worst, float(torch.where(counted, error / bound, 0.0).max()))
    _add_typical(verdict, got.dtype, torch.where(counted, error, math.inf), want, explained)
    right = ((error <= bound) & bound.isfinite()) | (wide == want) | (wide.isnan() & want.isnan())
    return right | (wide.isinf() & (wide.sign() == want.sign()) & (want.abs() + bound > limit))


def _as_extreme(source: Expected, got: torch.Tensor, want: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Whether the values at two sets of indices are equally extreme. An index out of range is not."""
    values = source.reference
    bound = torch.where(source.explained > 0, source.multiple * source.explained.double(), 0.0).expand(values.shape)
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


def _shown(value: torch.Tensor) -> str:
    number = value.item()
    return f"{number:.9g}" if isinstance(number, float) else str(number)
