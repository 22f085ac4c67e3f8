"""An operand of a product in CUDA C++: where the elements of a tile lie, and how they are copied."""

from collections.abc import Mapping
from dataclasses import dataclass

from cudal2_agent.policies.fusion.expressions import Expr, ExpressionPool
from cudal2_agent.policies.fusion.index_algebra import Atom, Divided, Index, Var, of
from cudal2_agent.policies.fusion.product_kernels.contraction import Contraction, Operand
from cudal2_agent.policies.fusion.product_kernels.tiles import HALVES
from cudal2_agent.policies.fusion.programs import KernelProgram, Reading, step_of
from cudal2_agent.policies.fusion.values import Unplanned
from cudal2_agent.policies.fusion.writer import STORED

_COPY_BYTES = 16
_TABLE_BYTES = 24_576
_OF_TERMS = {"step", "line"}


@dataclass(frozen=True)
class OperandSource:
    """A `Side` of the main loop: its struct in C++, and the buffer that it reads. `wide`, `terms`: of its table, 0 without."""

    source: str
    buffer: str
    wide: int = 0
    terms: int = 0

    @property
    def table_bytes(self) -> int:
        """Of shared memory."""
        return 4 * self.wide * self.terms


def side(name: str, operand: Operand, sums: Contraction, rows: int, depth: int, buffers: Mapping[int, str]) -> OperandSource:
    """`name`: of the struct. `depth`: terms of a step. Where terms are divided to find an element, a table holds the results.

    Raises: Unplanned for an operand that is not read from one buffer."""
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
    steps = -(-sums.k // depth)
    texts, tabled, source = [str(index) for index in (place, *(index for index, _ in limits))], list[Index](), ""
    lines = _known([place, *(index for index, _ in limits)], pool)
    if not lines:
        parts = [_parted(index) for index in (place, *(index for index, _ in limits))]
        tabled = _tabled(parts, steps * depth)
    wide_table = 1 << (len(tabled) - 1).bit_length() if tabled else 0
    if tabled:
        pack = f"Pack<unsigned, {wide_table}>"
        lines = [f"const {pack} term = load_pack<{wide_table}>(terms + (step * {depth}u + line) * {wide_table}u);"]
        which = iter(range(len(tabled)))
        texts = [f"{rest} + term.v[{next(which)}]" if of_k.terms else str(rest) for rest, of_k in parts]
        whole = [*tabled, *[Index()] * (wide_table - len(tabled))]
        stores = "\n    ".join(f"to[{at}] = {index};" for at, index in enumerate(whole))
        source = f"""  const unsigned* terms;
  static __device__ __forceinline__ void find_term(unsigned* to, unsigned step, unsigned line) {{
    {stores}
  }}
"""
    lines += [f"inside &= ({text}) < {size}u;" for text, (_, size) in zip(texts[1:], limits, strict=True)]  # without branches
    body = "\n    ".join([*lines, f"return base + (inside ? {texts[0]} : 0u);"])
    stored = STORED[element]
    struct = f"""struct {name} {{
  using Element = {stored};
  static constexpr unsigned kRows = {rows}, kTerms = {sums.k};
  static constexpr int kWide = {wide if together else 1};
  static constexpr bool kAlongK = {"true" if along_k else "false"};
  const {stored}* base;
  unsigned batch;
{source}  __device__ __forceinline__ const {stored}* at(unsigned row, unsigned step, unsigned line, bool& inside) const {{
    {body}
  }}
{_used(sums, depth)}}};
"""
    return OperandSource(struct, buffer, wide_table, steps * depth if tabled else 0)


def _parted(index: Index) -> tuple[Index, Index]:
    """What differs between rows or batches, and what between terms; all in the first where an atom has both."""
    of_k = [(atom, factor) for atom, factor in index.terms if _names(atom) <= _OF_TERMS]
    rest = [(atom, factor) for atom, factor in index.terms if not _names(atom) <= _OF_TERMS]
    if any(_names(atom) & _OF_TERMS for atom, _ in rest):
        return index, Index()
    return Index(tuple(rest), index.constant), Index(tuple(of_k))


def _names(atom: Atom) -> set[str]:
    return {variable.name for variable in Index(((atom, 1),)).variables()}


def _tabled(parts: list[tuple[Index, Index]], count: int) -> list[Index]:
    """What a table of `count` terms holds: nothing where it is large, or where no term is divided to find its element."""
    found = [of_k for _, of_k in parts if of_k.terms]
    divided = any(isinstance(atom, Divided) and _names(atom) == _OF_TERMS for index in found for atom, _ in index.terms)
    whole = not any(_names(atom) & _OF_TERMS for rest, _ in parts for atom, _ in rest.terms)
    small = len(found) <= 4 and 16 * count <= _TABLE_BYTES
    return found if divided and whole and small else []


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
