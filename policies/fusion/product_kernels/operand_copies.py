"""An operand of a product in CUDA C++: where the elements of a tile lie, and how they are copied."""

from collections.abc import Mapping
from dataclasses import dataclass

from cudal2_agent.policies.fusion.expressions import Expr, ExpressionPool
from cudal2_agent.policies.fusion.index_algebra import Divided, Index, Var, of
from cudal2_agent.policies.fusion.product_kernels.contraction import Contraction, Operand
from cudal2_agent.policies.fusion.product_kernels.tiles import HALVES
from cudal2_agent.policies.fusion.programs import KernelProgram, Reading, step_of
from cudal2_agent.policies.fusion.values import Unplanned
from cudal2_agent.policies.fusion.writer import STORED

_COPY_BYTES = 16


@dataclass(frozen=True)
class OperandSource:
    """A `Side` of the main loop: its struct in C++, and the buffer that it reads."""

    source: str
    buffer: str


def side(name: str, operand: Operand, sums: Contraction, rows: int, depth: int, buffers: Mapping[int, str]) -> OperandSource:
    """`name`: of the struct. `depth`: terms of a step. Raises: Unplanned for an operand that is not read from one buffer."""
    reading = Reading(KernelProgram("", 1, 1, None, []), buffers)
    row, line, batch = of(Var("row", rows)), of(Var("line", depth)), of(Var("batch", sums.batches))
    k = sums.term(depth)
    load, guards = _guarded(operand(reading, batch, row, k))
    pool = reading.pool
    buffer, place, element = load.data[0], _plain(load.data[1], pool), load.data[2]
    limits = [(_plain(index, pool), size) for index, size in guards]
    wide = _COPY_BYTES // element.bytes
    beside = {each: bool(each.terms) and step_of(place, each) == 1 for each in (row, line)}
    along_k = beside[line] and not (beside[row] and not limits and _together(place, "row", rows, wide))
    # In f32 tiles are kept by term, so that neighbouring terms are copied one by one.
    together = not limits and (
        _together(place, "line", sums.k, wide) and element in HALVES
        if along_k
        else beside[row] and _together(place, "row", rows, wide)
    )
    lines = _known([place, *(index for index, _ in limits)], pool)
    lines += [f"inside &= ({index}) < {size}u;" for index, size in limits]  # without branches, found once for several lines
    body = "\n    ".join([*lines, f"return base + (inside ? {place} : 0u);"])
    stored = STORED[element]
    source = f"""struct {name} {{
  using Element = {stored};
  static constexpr unsigned kRows = {rows}, kTerms = {sums.k};
  static constexpr int kWide = {wide if together else 1};
  static constexpr bool kAlongK = {"true" if along_k else "false"};
  const {stored}* base;
  unsigned batch;
  __device__ __forceinline__ const {stored}* at(unsigned row, unsigned step, unsigned line, bool& inside) const {{
    {body}
  }}
{_used(sums, depth)}}};
"""
    return OperandSource(source, buffer)


def _used(sums: Contraction, depth: int) -> str:
    """`used(step)` in C++: whether some terms of a step may not be zero, as far as that is known of all of them together."""
    limits = sums.limits(depth)[0]
    inside = " && ".join(f"({index}) < {size}u" for index, size in limits)
    return f"""  static constexpr bool kAllUsed = {"false" if limits else "true"};
  __device__ __forceinline__ bool used(unsigned step) const {{ return {inside or "true"}; }}
"""


def matrix(operand: Operand, sums: Contraction, rows: int, buffers: Mapping[int, str]) -> tuple[str, bool] | None:
    """The buffer of an operand that is whole matrices one after another, as TMA reads them, and whether their rows lie along k;
    None for another.
    """
    reading = Reading(KernelProgram("", 1, 1, None, []), buffers)
    row, k, batch = of(Var("row", rows)), of(Var("k", sums.k)), of(Var("batch", sums.batches))
    read = operand(reading, batch, row, k)
    if read.kind != "load":
        return None
    buffer, place, element = read.data[:3]
    last = (reading.loads[buffer].shape or (1,))[-1]
    for along_k, line, whole in ((True, sums.k, k + row * sums.k), (False, rows, row + k * rows)):
        if place == whole + batch * (rows * sums.k) and last == line and line * element.bytes % _COPY_BYTES == 0:
            return buffer, along_k
    return None


def _guarded(expr: Expr) -> tuple[Expr, list[tuple[Index, int]]]:
    """The load of an operand, and what must hold for it; elsewhere the operand is zero."""
    limits: list[tuple[Index, int]] = []
    while expr.kind == "guard":
        inside, expr, _ = expr.args
        limits += inside.data
    if expr.kind != "load":
        raise Unplanned("a product", "of an operand that is computed")
    return expr, limits


def _plain(index: Index, pool: ExpressionPool) -> Index:
    """Without names for indices, except where their quotients are taken, which need numbers that are not negative."""
    kept = {var for atom, _ in index.terms if isinstance(atom, Divided) for var in atom.of.variables() if var.given}
    names = {var: _index(pool, var) for var in index.variables() if var.given and var not in kept}
    return _plain(index.replace(names), pool) if names else index


def _index(pool: ExpressionPool, variable: Var) -> Index:
    expr = pool.given[variable]
    if expr.kind != "index":
        raise Unplanned("a product", "of an operand that is gathered")
    found: Index = expr.data
    return found


def _known(indices: list[Index], pool: ExpressionPool) -> list[str]:
    """Declarations of the named indices that are left, each behind those that it needs."""
    wanted = {var for index in indices for var in index.variables() if var.given}
    while more := {var for each in wanted for var in _index(pool, each).variables() if var.given} - wanted:
        wanted |= more
    return [f"const unsigned {var} = {_index(pool, var)};" for var in pool.given if var in wanted]


def _together(place: Index, name: str, size: int, wide: int) -> bool:
    """Whether `wide` neighbours along a variable, from a multiple of it, lie together and aligned."""
    others = [factor for atom, factor in place.terms if not (isinstance(atom, Var) and atom.name == name)]
    return size % wide == 0 and place.constant % wide == 0 and all(factor % wide == 0 for factor in others)
