"""The inputs of every test of a module: what each consists of, and what a wrong kernel would show on it.

Floating inputs follow the case. Parameters are drawn anew with every seed, by what the graph uses them for: matrices and
filters by their fan-in, so that activations stay of order 1; factors of norms away from 0; variances positive. Indices lie in
the range of what they index. Where the reference makes no finite number of a case's inputs, as a logarithm of negative ones,
their magnitudes are taken, then these with zeros in one input only, then the problem's own inputs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.sandbox.modules.executor import STORED
from cudal2_agent.sandbox.modules.interpreter import drawn, own_values
from cudal2_agent.sandbox.modules.tracing.tape import Making
from cudal2_agent.sandbox.modules.uses import index_limits, parameter_uses

ShapedDraw = Callable[[tuple[int, ...]], torch.Tensor]  # of a shape

Inputs = dict[str, torch.Tensor]
DRAWN_AT_ONCE = 2**26  # elements of a buffer
ONE_WITH_ZEROS, OWN_VALUES = 2, 3


class TorchDraws:
    """Random numbers on one device from one seed, in f32."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(seed % 2**63)

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device)

    def uniform(self, shape: tuple[int, ...]) -> torch.Tensor:
        """In [0, 1)."""
        return torch.rand(shape, generator=self._generator, device=self.device)

    def whole(self, shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
        """Whole numbers from `low` to before `high`. Shape: int64."""
        return torch.randint(low, max(high, low + 1), shape, generator=self._generator, device=self.device)

    def signs(self, shape: tuple[int, ...]) -> torch.Tensor:
        return self.whole(shape, 0, 2).float() * 2 - 1

    def rows(self, shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
        """A power of two for each row of the last dimension, from 2^low to 2^high. Shape: the last dimension is 1."""
        return torch.exp2(self.whole((*shape[:-1], 1) if shape else (), low, high + 1).float())


Draw = Callable[[TorchDraws, tuple[int, ...]], torch.Tensor]


def _uneven(source: TorchDraws, shape: tuple[int, ...]) -> torch.Tensor:
    """Rows begin with large elements and go on with small ones. Their ends are the largest and the smallest, or the reverse."""
    values = source.signs(shape) * 2.0**-7 * (1 + source.whole(shape, 0, 2))
    if shape and values.numel():
        lead = values[..., : max(1, shape[-1] // 16)]
        lead.copy_(source.signs(tuple(lead.shape)) * (1.5 + source.whole(tuple(lead.shape), 0, 3)))
        values[..., 0] = 4.5 * source.signs(shape[:-1])
        values[..., -1] = -values[..., 0]
    return values


def _with(value: float) -> Draw:
    """Normal inputs in which the first, the last and some rows hold one special value, at a drawn place."""

    def draw(source: TorchDraws, shape: tuple[int, ...]) -> torch.Tensor:
        values = source.normal(shape)
        rows = values.reshape(-1, shape[-1] if shape else 1)
        if rows.numel():
            count = min(len(rows), 2 + len(rows) // 16)
            chosen = source.whole((count,), 0, len(rows))
            chosen[:1] = 0
            chosen[1:2] = len(rows) - 1
            signs = source.signs((count,)) if math.isinf(value) else torch.ones(count, device=source.device)
            rows[chosen, source.whole((count,), 0, rows.shape[1])] = value * signs
        return rows.reshape(shape)

    return draw


@dataclass(frozen=True)
class Case:
    """One kind of inputs. `draw`: None for the problem's own.

    `whole`: parameters are small whole numbers too, so that sums are exact. `alike`: inputs of one shape are equal. `shift`: of
    parameters that are added, so that what follows is far on one side; of inputs where there are no parameters. `special`: the
    reference may be NaN or infinite; `nan_is_free`: whether a formula makes a NaN of an infinity is its own affair.
    """

    name: str
    draw: Draw | None
    whole: bool = False
    alike: bool = False
    shift: float = 0.0
    special: bool = False
    nan_is_free: bool = False

    @property
    def tier(self) -> str:
        return "special" if self.special else "exact" if self.whole else "accuracy"


OWN = Case("own", None)
NORMAL = Case("normal", lambda source, shape: source.normal(shape))
WIDE = Case("wide", lambda source, shape: source.normal(shape) * source.rows(shape, -12, 12))
SMALL = Case("small", lambda source, shape: source.normal(shape) * 2.0**-10)
LARGE = Case("large", lambda source, shape: source.normal(shape) * 2.0**6)
WHOLE = Case("whole-numbers", lambda source, shape: source.whole(shape, -4, 5).float(), whole=True)
TIES = Case("ties", lambda source, shape: source.whole(shape, -2, 3).float() / 2, alike=True)
OFFSET = Case("offset", lambda source, shape: 256 + source.normal(shape))
UNEVEN = Case("uneven", _uneven)
LOW = Case("low", lambda source, shape: source.normal(shape), shift=-12.0)
HIGH = Case("high", lambda source, shape: source.normal(shape), shift=12.0)
NAN = Case("nan", _with(math.nan), special=True)
INFINITE = Case("infinite", _with(math.inf), special=True, nan_is_free=True)
CASES = (WHOLE, NORMAL, OWN, WIDE, LARGE, SMALL, OFFSET, TIES, UNEVEN, LOW, HIGH, NAN, INFINITE)
# A half-precision module may overflow on what an f32 one holds. Rows with larger elements are scaled.
_MOST = {Arithmetic.F16: 2.0**5, Arithmetic.BF16: 2.0**12, Arithmetic.F32: 2.0**12, Arithmetic.TF32: 2.0**12}


def draw(task: ModuleTask, case: Case, seed: int, device: torch.device, *, domain: int = 0) -> Inputs:
    """Values for every input, parameter and state, in their stored types.

    `domain`: 0 as the case has them, 1 their magnitudes, ONE_WITH_ZEROS their magnitudes with zeros in one input only,
    OWN_VALUES the problem's own, drawn anew.
    """
    found, uses, own = Inputs(), parameter_uses(task.graph), _own(task, case, seed, device, domain)
    limits = index_limits(task.graph, {buffer.name: buffer.shape for buffer in task.buffers})
    inputs = [buffer.name for buffer in task.buffers if buffer.role is Role.INPUT and buffer.element.floating]
    with_zeros = inputs[seed % len(inputs)] if inputs else ""
    for buffer in task.buffers:
        if buffer.role is Role.OUTPUT:
            continue
        source = TorchDraws(int(digest([seed, task.id, case.name, buffer.name], 15), 16), device)
        if buffer.name in own:
            found[buffer.name] = own[buffer.name].to(STORED[buffer.element])
            continue
        if not buffer.element.floating:
            limit = limits.get(buffer.name)
            draw_some: ShapedDraw = partial(_whole_numbers, source, buffer, limit=limit)
        elif buffer.role is Role.INPUT:
            draw_some = partial(_input, task, case, source, buffer.name, domain=domain, with_zeros=with_zeros)
        else:
            use = uses.get(buffer.name, "")
            draw_some = partial(_parameter, source, buffer, use=use, case=case)
        if buffer.element is BufferElement.F64 and not (case.whole or case.alike):
            draw_some = partial(_finer, source, draw_some)
        found[buffer.name] = _piecewise(draw_some, buffer, device)
    if case.alike:
        _make_alike(task, found)
    return found


def _own(task: ModuleTask, case: Case, seed: int, device: torch.device, domain: int) -> Inputs:
    """Values that are not the case's: all of them for the problem's own, else constant buffers such as masks and positions."""
    if task.own is None:
        return {}
    if case.draw is None or domain == OWN_VALUES:
        return own_values(task, int(digest([seed, task.id], 8), 16), str(device))
    fixed = [buffer.name for buffer in task.buffers if buffer.fixed]
    return drawn(Making(task.own).of(fixed), device=str(device)) if fixed else {}


def _piecewise(draw_some: ShapedDraw, buffer: Buffer, device: torch.device) -> torch.Tensor:
    """A buffer's values; those of a large one some rows at a time, because a draw takes several times its result's memory."""
    kind = STORED[buffer.element]
    if buffer.elements <= DRAWN_AT_ONCE:
        return draw_some(buffer.shape).to(kind)
    found = torch.empty(buffer.shape, dtype=kind, device=device)
    rows = found.reshape(-1, buffer.shape[-1]) if len(buffer.shape) > 1 else found
    step = max(1, DRAWN_AT_ONCE // max(math.prod(rows.shape[1:]), 1))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        some.copy_(draw_some(tuple(some.shape)))
    return found


def _input(
    task: ModuleTask, case: Case, source: TorchDraws, name: str, shape: tuple[int, ...], domain: int, with_zeros: str
) -> torch.Tensor:
    if case.draw is None or domain == OWN_VALUES:
        return source.uniform(shape)
    values = _scaled(case.draw(source, shape), _MOST[task.arithmetic])
    if case.shift and not any(each.role in (Role.PARAMETER, Role.STATE) for each in task.buffers):
        values = values + case.shift
    if domain == ONE_WITH_ZEROS and name != with_zeros:
        values = torch.where(values == 0, 1.0, values)
    return values.abs() if domain else values


def _scaled(values: torch.Tensor, most: float) -> torch.Tensor:
    """Rows of the last dimension, by powers of two, so that finite elements have magnitudes of at most `most`."""
    if not values.numel():
        return values
    size = torch.where(values.isfinite(), values.abs(), 0.0)
    largest = size.amax(-1, keepdim=True) if values.dim() else size
    return values * torch.exp2((most / largest).log2().floor().clamp(max=0))


def _finer(source: TorchDraws, draw_some: ShapedDraw, shape: tuple[int, ...]) -> torch.Tensor:
    """With mantissas longer than f32 has, in float64."""
    wide = draw_some(shape).double()
    return wide + wide * 2.0**-25 * source.uniform(tuple(wide.shape)).double()


def _whole_numbers(source: TorchDraws, buffer: Buffer, shape: tuple[int, ...], limit: int | None) -> torch.Tensor:
    if buffer.element is BufferElement.BOOL:
        return source.whole(shape, 0, 2)
    if buffer.low is not None and buffer.high is not None:
        return source.whole(shape, int(buffer.low), int(buffer.high) + 1)
    return source.whole(shape, 0, limit if limit is not None else 2)


def _parameter(source: TorchDraws, buffer: Buffer, shape: tuple[int, ...], use: str, case: Case) -> torch.Tensor:
    """`shape`: of what is drawn, some of the buffer."""
    whole = case.whole
    if use == "variance":
        return 0.5 + source.uniform(shape) if not whole else 1 + source.whole(shape, 0, 2).float()
    if use == "factor":
        return source.signs(shape) * (0.5 + source.uniform(shape) if not whole else 1 + source.whole(shape, 0, 2).float())
    if whole:
        return source.whole(shape, -2, 3).float()
    if use == "matrix" or (not use and sum(size > 1 for size in buffer.shape) > 1):
        fan_in = max(math.prod(buffer.shape) // max(buffer.shape[0], 1), 1)
        return source.normal(shape) * math.sqrt(2 / fan_in)
    return source.normal(shape) * 0.5 + (case.shift if use != "mean" else 0.0)


def _make_alike(task: ModuleTask, found: Inputs) -> None:
    """An input holds what the preceding one of its shape and type holds, so that what is added to their difference counts."""
    last: dict[tuple[Any, ...], torch.Tensor] = {}
    for buffer in task.buffers:
        if buffer.role is Role.INPUT and buffer.element.floating and buffer.shape:
            before = last.get((buffer.shape, buffer.element))
            if before is not None:
                found[buffer.name] = before.clone()
            last[buffer.shape, buffer.element] = found[buffer.name]
