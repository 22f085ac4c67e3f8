"""CUDA C++ of a product by tiles, with what is stored of its sums: the product, or an element-wise value of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cudal2_agent.contract.plan.plan import Launch, Scratch
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index, Var, flat, of, unflat
from cudal2_agent.policies.fusion.kernel_text import KernelText, Parameter, buffer_args, kernel_source, kernel_text
from cudal2_agent.policies.fusion.product_kernels.contraction import Contraction
from cudal2_agent.policies.fusion.product_kernels.mainloops import (
    COPIES,
    DOUBLES,
    EXCHANGE,
    F32_TILES,
    MATRIX,
    SIMT,
    WARPGROUP_HEADERS,
    WARPGROUPS,
)
from cudal2_agent.policies.fusion.product_kernels.operand_copies import OperandSource, side
from cudal2_agent.policies.fusion.product_kernels.tiles import SumTile
from cudal2_agent.policies.fusion.product_kernels.winograd_loops import WINOGRAD, WINOGRAD_HEADERS
from cudal2_agent.policies.fusion.programs import KernelProgram, MustStore, Reading, StoredValue
from cudal2_agent.policies.fusion.values import BufferValue, Map, ProductValue, Value
from cudal2_agent.policies.fusion.writer import StatementWriter

_STAGES = {"tile": 3, "dmma": 3, "mma": 4, "wgmma": 4}  # tiles in shared memory

Operands = tuple[OperandSource, OperandSource]
_ADDING = 256  # threads of a CTA that adds parts


@dataclass(frozen=True)
class SumLayout:
    """The sums of a thread: `sum_of[rows][groups * wide]`. `m`, `n`: in C++, the row of sum `i_at`, and the group of `wide`
    neighbours `j_at` in groups of the result. `sum`: where the sum of lane {} is, in C++, where sums have another order.
    """

    rows: int
    groups: int
    wide: int
    m: str
    n: str
    sum: str = ""

    def sum_of(self, lane: int) -> str:
        """The sum of a lane of a group, in C++."""
        return self.sum.format(lane) if self.sum else f"sum_of[i_at][j_at * {self.wide} + {lane}]"


class SumReading(Reading):
    """Expressions over the sums of a thread, at the element `place` of the product. Raises: MustStore for another element."""

    def __init__(self, product: ProductValue, store: StoredValue, buffers: Mapping[int, str]) -> None:
        others = {value: buffer for value, buffer in buffers.items() if value != id(product)}
        super().__init__(KernelProgram("", store.value.numel, 1, None, [store]), others)
        self._product, self.sum_at = product, Index()

    def _read(self, value: Value, index: Sequence[Index]) -> Expr:
        if value is not self._product:
            return super()._read(value, index)
        if flat(index, value.shape) != self.sum_at:
            raise MustStore(value)
        return self.pool.make("row", value.ctype, data=("sum", self.lane))

    def of_sum(self, value: Value, place: Index, lane: int) -> Expr:
        """What is stored of the sum at a place of the product."""
        self.sum_at, self.lane = place, lane
        return self.read(value, unflat(place, value.shape))


def follows(product: ProductValue, program: KernelProgram, buffers: Mapping[int, str]) -> bool:
    """Whether a kernel computes each of its elements from one sum of a product, so that it can be computed with it."""
    if program.anchor is not None or len(program.stores) != 1 or program.stores[0].value.numel != product.numel:
        return False
    store = program.stores[0]
    try:
        SumReading(product, store, buffers).of_sum(store.value, of(Var("e", product.numel)), 0)
    except MustStore:
        return False
    return True


def tile_kernel(
    name: str,
    product: ProductValue,
    sums: Contraction,
    tile: SumTile,
    store: StoredValue,
    buffers: Mapping[int, str],
    elements: Mapping[str, BufferElement],
) -> KernelText:
    """The kernel and its launch. `store`: what is kept of the product. Raises: Unplanned."""
    if tile.packed:
        packing, sums = _packed(name, product, sums, buffers, elements)
        scratch = {each.name: each.element for each in packing.scratch}
        text = tile_kernel(
            name, product, sums, tile.model_copy(update={"packed": False}), store, buffers, {**elements, **scratch}
        )
        return KernelText(
            f"{packing.source}\n{text.source}", text.launch, (packing.launch, *text.before), (*packing.scratch, *text.scratch)
        )
    first = f"{name}_part" if tile.split > 1 else name
    left = side(f"{first}_a", sums.a, sums, sums.m, tile.k, buffers)
    right = side(f"{first}_b", sums.b, sums, sums.n, tile.k, buffers)
    if tile.split > 1:
        return _in_parts(name, product, sums, tile, store, (left, right), buffers, elements)
    reading = SumReading(product, store, buffers)
    writer = StatementWriter(reading.pool)
    layout = _multiply(writer, name, sums, tile, (left, right), steps_of(product, sums, tile, store))
    if tile.kind == "tile" and not _stored_together(sums, layout.wide):
        writer.line("exchange(sum_of);")
        layout = _exchanged(tile)
    store_sums(writer, reading, sums, layout, store)
    reads = [(each, elements[each]) for each in dict.fromkeys((left.buffer, right.buffer, *reading.loads))]
    source, launch = _launched(name, tile, sums, (left, right), writer, reads, store.buffer, store.value.element)
    return KernelText(left.source + right.source + source, launch)


def _packed(
    name: str, product: ProductValue, sums: Contraction, buffers: Mapping[int, str], elements: Mapping[str, BufferElement]
) -> tuple[KernelText, Contraction]:
    """The launch that copies the first operand as matrices of terms by rows, and the sums over the copy."""
    shape = (sums.batches, sums.k, sums.m)
    copied = Map(
        f"{name}_packed", shape, product.element, product.operands, lambda scope, at: sums.a(scope, at[0], at[2], at[1])
    )
    copy = BufferValue(copied.name, shape, product.element)
    program = KernelProgram(f"{name}_pack", copied.numel, 1, None, [StoredValue(copied, copy.name, by_row=True)])
    axes = Axes(layout="flat", vector=math.gcd(sums.m, 16 // product.element.bytes))
    text = kernel_text(program, axes, buffers, {**elements, copy.name: copy.element})
    scratch = Scratch(name=copy.name, shape=shape, element=copy.element)
    read = replace(sums, a=lambda scope, batch, row, k: scope.read(copy, [batch, k, row]))
    return replace(text, scratch=(scratch,)), read


def _multiply(
    writer: StatementWriter, name: str, sums: Contraction, tile: SumTile, operands: Operands, steps: str
) -> SumLayout:
    """The statements that compute the sums of a thread. `steps`: tiles of terms, in C++."""
    tile_of_cta(writer, sums, tile, "CTAs that run together share columns, which are the longer side as a rule.")
    loop = f"<{name}_a, {name}_b, {tile.m}, {tile.n}, {tile.k}, {tile.tm}, {tile.tn}, {_STAGES[tile.kind]}>"
    sides = ", ".join(_filled_tables(writer, name, tile, operands))
    first = "0u"
    if tile.split > 1:
        each = -(-sums.k // (tile.k * tile.split))
        first, steps = f"blockIdx.y * {each}u", f"min((blockIdx.y + 1u) * {each}u, {steps})"
    given = f"({sides}, m0_at, n0_at, y_at, x_at, {first}, {steps}, sum_of)"
    if tile.kind in ("mma", "dmma"):
        across = tile.n // tile.tn
        writer.line(f"const unsigned x_at = warp_at % {across}u * {tile.tn}u, y_at = warp_at / {across}u * {tile.tm}u;")
        writer.line(f"float sum_of[{tile.tm // 8}][{tile.tn // 4}] = {{}};")
        writer.line(f"multiply_{'matrices' if tile.kind == 'mma' else 'doubles'}{loop}{given};")
    if tile.kind == "mma":
        return SumLayout(
            rows=tile.tm // 8,
            groups=tile.tn // 8,
            wide=2,
            m="m0_at + y_at + i_at / 2u * 16u + i_at % 2u * 8u + lane_at / 4u",
            n="(n0_at + x_at) / 2u + j_at * 4u + lane_at % 4u",
        )
    if tile.kind == "dmma":
        return SumLayout(
            rows=tile.tm // 8,
            groups=tile.tn // 16,
            wide=4,
            m="m0_at + y_at + i_at / 4u * 32u + lane_at / 4u * 4u + i_at % 4u",
            n="(n0_at + x_at) / 4u + j_at / 2u * 8u + lane_at % 4u * 2u + j_at % 2u",
        )
    across = tile.n // tile.tn // 8
    writer.line("// A warp computes the sums of 4 by 8 threads.")
    place = f"y_at = warp_at / {across}u * 4u + lane_at / 8u"
    writer.line(f"const unsigned x_at = warp_at % {across}u * 8u + lane_at % 8u, {place};")
    writer.line(f"float sum_of[{tile.tm}][{tile.tn}] = {{}};")
    writer.line(f"multiply{loop}{given};")
    return SumLayout(
        rows=tile.tm,
        groups=tile.tn // 4,
        wide=4,
        m=f"m0_at + i_at / 4u * {tile.m * 4 // tile.tm}u + y_at * 4u + i_at % 4u",
        n=f"n0_at / 4u + x_at + j_at * {tile.n // tile.tn}u",
    )


def _filled_tables(writer: StatementWriter, name: str, tile: SumTile, operands: Operands) -> list[str]:
    """Both sides in C++, once the tables behind the tiles in shared memory are filled."""
    sides, offset = list[str](), _tile_bytes(tile)
    if any(each.wide for each in operands):
        writer.line("extern __shared__ float4 shared_memory[];")
    for which, each in zip("ab", operands, strict=True):
        side = f"{name}_{which}"
        if each.wide:
            table = f"{which}_terms_at"
            writer.line(f"unsigned* const {table} = reinterpret_cast<unsigned*>(shared_memory) + {offset // 4}u;")
            with writer.block(f"for (unsigned k_at = threadIdx.x; k_at < {each.terms}u; k_at += {tile.threads}u)"):
                writer.line(f"{side}::find_term({table} + k_at * {each.wide}u, k_at / {tile.k}u, k_at % {tile.k}u);")
            offset += each.table_bytes
        sides.append(f"{side}{{{each.buffer}, batch_at{f', {table}' if each.wide else ''}}}")
    if any(each.wide for each in operands):
        writer.line("__syncthreads();")
    return sides


def _tile_bytes(tile: SumTile) -> int:
    """Of the tiles in shared memory."""
    stages = {
        "mma": 2 * tile.k * (tile.m + tile.n),
        "tile": 4 * tile.k * (tile.m + tile.n + 8),
        "dmma": 4 * tile.k * (tile.m + tile.n + 16),
    }
    return stages[tile.kind] * _STAGES[tile.kind]


def _stored_together(sums: Contraction, wide: int) -> bool:
    """Whether `wide` neighbouring sums of a row are stored at once."""
    column = of(Var("n", -(-sums.n // wide))) * wide
    found = [sums.place(of(Var("batch", sums.batches)), of(Var("m", sums.m)), column + lane) for lane in range(wide)]
    places = [place for place, _ in found]
    beside = all(place == places[0] + lane for lane, place in enumerate(places)) and _aligned(places)
    return beside and sums.n % wide == 0 and not any(_limits(inside) for _, inside in found)


def _exchanged(tile: SumTile) -> SumLayout:
    """Of `exchange`: row `i_at % 4` of four, of what were a thread's sums `i_at / 4`."""
    across, apart = tile.n // tile.tn // 8, tile.n // tile.tn * 4
    return SumLayout(
        rows=tile.tm * 4,
        groups=tile.tn // 4,
        wide=1,
        m=f"m0_at + i_at / 16u * {tile.m * 4 // tile.tm}u + (warp_at / {across}u * 4u + i_at % 4u) * 4u + i_at / 4u % 4u",
        n=f"n0_at + warp_at % {across}u * 32u + j_at * {apart}u + lane_at",
        sum="sum_of[i_at / 4u][j_at * 4u + i_at % 4u]",
    )


def tile_of_cta(writer: StatementWriter, sums: Contraction, tile: SumTile, why: str = "") -> None:
    """Declare where a CTA's tile begins, and which warp and lane a thread is. `why`: a comment on the order of tiles.

    Names end in `_at` or `_of`, which those of buffers need not avoid otherwise.
    """
    rows, columns, phases = -(-sums.m // tile.m), -(-sums.n // tile.n), sums.phases
    tiles, turn = rows * columns, "blockIdx.x"
    if phases > 1:
        writer.line("// CTAs that run together store neighbouring elements.")
        turn, phase = f"blockIdx.x / {phases}u", f" * {phases}u + blockIdx.x % {phases}u"
    batch = f"blockIdx.x / {tiles * phases}u" + (phase if phases > 1 else "")
    writer.line(f"const unsigned tile_at = {turn} % {tiles}u, batch_at = {batch};")
    if why:
        writer.line(f"// {why}")
    writer.line(f"const unsigned m0_at = tile_at % {rows}u * {tile.m}u, n0_at = tile_at / {rows}u * {tile.n}u;")
    writer.line("const unsigned warp_at = threadIdx.x / 32, lane_at = threadIdx.x % 32;")


def _launched(
    name: str,
    tile: SumTile,
    sums: Contraction,
    operands: Operands,
    writer: StatementWriter,
    reads: Sequence[Parameter],
    written: str,
    element: BufferElement,
) -> tuple[str, Launch]:
    """The kernel of a main loop."""
    writes = [(written, element)]
    source = kernel_source(name, f"{tile.threads}, {tile.resident}", writer.lines, reads, writes)
    smem = _tile_bytes(tile) + sum(each.table_bytes for each in operands)
    grid = (sums.tiles(tile.m, tile.n), tile.split, 1)
    block, args = (tile.threads, 1, 1), buffer_args(reads, writes)
    return source, Launch(entry=name, grid=grid, block=block, dynamic_smem=smem, args=args)


def _in_parts(
    name: str,
    product: ProductValue,
    sums: Contraction,
    tile: SumTile,
    store: StoredValue,
    operands: Operands,
    buffers: Mapping[int, str],
    elements: Mapping[str, BufferElement],
) -> KernelText:
    """A launch whose CTAs add up parts of the terms, and one that adds the parts in their order and stores."""
    parts, first = f"{name}_parts", f"{name}_part"
    writer = StatementWriter(SumReading(product, store, buffers).pool)
    layout = _multiply(writer, first, sums, tile, operands, f"{-(-sums.k // tile.k)}u")
    whole = sums.batches * sums.m * sums.n
    writer.line("#pragma unroll")
    with writer.block(f"for (unsigned i_at = 0; i_at < {layout.rows}u; ++i_at)"):
        writer.line(f"const unsigned m_at = {layout.m};")
        writer.line("#pragma unroll")
        with writer.block(f"for (unsigned j_at = 0; j_at < {layout.groups * layout.wide}u; ++j_at)"):
            group = layout.n.replace("j_at", f"(j_at / {layout.wide}u)")
            writer.line(f"const unsigned n_at = ({group}) * {layout.wide}u + j_at % {layout.wide}u;")
            place = f"blockIdx.y * {whole}u + (batch_at * {sums.m}u + m_at) * {sums.n}u + n_at"
            writer.line(f"if (m_at < {sums.m}u && n_at < {sums.n}u) {parts}[{place}] = sum_of[i_at][j_at];")
    reads = [(each, elements[each]) for each in dict.fromkeys(each.buffer for each in operands)]
    source, before = _launched(first, tile, sums, operands, writer, reads, parts, BufferElement.F32)
    reading = SumReading(product, store, buffers)
    writer, wide = StatementWriter(reading.pool), 2
    line = -(-sums.n // wide)
    writer.line(f"const unsigned group_at = blockIdx.x * {_ADDING}u + threadIdx.x;")
    if sums.batches > 1:
        writer.line(f"const unsigned batch_at = group_at / {line * sums.m}u;")
    writer.line(f"if (group_at >= {line * sums.m * sums.batches}u) return;")
    writer.line(f"float sum_of[1][{wide}] = {{}};")
    writer.line("#pragma unroll 4")
    with writer.block(f"for (unsigned part_at = 0; part_at < {tile.split}u; ++part_at)"):
        for lane in range(wide):
            inside = "" if sums.n % wide == 0 else f"if (group_at % {line}u * {wide}u + {lane}u < {sums.n}u) "
            place = f"part_at * {whole}u + group_at / {line}u * {sums.n}u + group_at % {line}u * {wide}u + {lane}u"
            writer.line(f"{inside}sum_of[0][{lane}] += {parts}[{place}];")
    adding = SumLayout(rows=1, groups=1, wide=wide, m=f"group_at / {line}u % {sums.m}u", n=f"group_at % {line}u")
    store_sums(writer, reading, sums, adding, store)
    reads = [(parts, BufferElement.F32), *((each, elements[each]) for each in reading.loads)]
    writes = [(store.buffer, store.value.element)]
    source += kernel_source(name, str(_ADDING), writer.lines, reads, writes)
    grid = (-(-line * sums.m * sums.batches // _ADDING), 1, 1)
    launch = Launch(entry=name, grid=grid, block=(_ADDING, 1, 1), args=buffer_args(reads, writes))
    scratch = Scratch(name=parts, shape=(tile.split, whole), element=BufferElement.F32)
    sides = "".join(each.source for each in operands)
    return KernelText(sides + source, launch, (before,), (scratch,))


def main_loop(product: ProductValue, tile: SumTile) -> tuple[str, ...]:
    """The parts of C++ that a product's kernel needs before it."""
    match tile.kind:
        case "tile":
            return COPIES, F32_TILES, SIMT, EXCHANGE
        case "dmma":
            return COPIES, F32_TILES, DOUBLES
        case "mma":
            return COPIES, MATRIX.replace("KIND", "f16" if product.element is BufferElement.F16 else "bf16")
        case "winograd2d" | "winograd3d":
            return *(f"#include <cudal2/{header}.cuh>\n" for header in WINOGRAD_HEADERS), WINOGRAD
        case "wgmma":
            return *(f"#include <cudal2/{header}.cuh>\n" for header in WARPGROUP_HEADERS), WARPGROUPS


def steps_of(product: ProductValue, sums: Contraction, tile: SumTile, store: StoredValue) -> str:
    """How many steps of terms a CTA adds up: none where all that it stores is the zeros of a triangle."""
    steps = f"{-(-sums.k // tile.k)}u"
    value = store.value
    if not isinstance(value, Map) or value.triangle is None or value.of[0] is not product or product.call.call != "mm":
        return steps
    diagonal, lower = value.triangle
    first, last = ("n", "m") if lower else ("m", "n")
    size = tile.m if lower else tile.n
    shift = diagonal if lower else -diagonal
    return f"(int)({last}0_at + {size - 1}u) - (int){first}0_at + {shift} < 0 ? 0u : {steps}"


def store_sums(writer: StatementWriter, reading: SumReading, sums: Contraction, layout: SumLayout, store: StoredValue) -> None:
    batch, row, wide = of(Var("batch_at", sums.batches)), of(Var("m_at", sums.m)), layout.wide
    writer.line("#pragma unroll")
    with writer.block(f"for (unsigned i_at = 0; i_at < {layout.rows}u; ++i_at)"):
        writer.line(f"const unsigned m_at = {layout.m};")
        writer.line(f"if (m_at >= {sums.m}u) continue;")
        writer.line("#pragma unroll")
        with writer.block(f"for (unsigned j_at = 0; j_at < {layout.groups}u; ++j_at)"):
            writer.line(f"const unsigned n_at = {layout.n};")
            group = of(Var("n_at", -(-sums.n // wide)))
            places = [sums.place(batch, row, group * wide + lane) for lane in range(wide)]
            if sums.n % wide == 0 and not any(_limits(inside) for _, inside in places):
                with writer.block(f"if (n_at < {sums.n // wide}u)"):
                    store_places(writer, reading, store, [place for place, _ in places], range(wide), layout)
                return
            for lane, (wanted, inside) in enumerate(places):
                place = wanted
                column = "n_at" if wide == 1 else f"n_at * {wide}u + {lane}u"
                limits = [f"{column} < {sums.n}u", *_limits(inside)]
                with writer.block(f"if ({' && '.join(limits)})"):
                    store_places(writer, reading, store, [place], [lane], layout)


def store_places(
    writer: StatementWriter,
    reading: SumReading,
    store: StoredValue,
    places: Sequence[Index],
    lanes: Sequence[int],
    layout: SumLayout,
) -> None:
    """Store what is kept of neighbouring sums. `lanes`: those of a group that are stored."""
    try:
        exprs = [reading.of_sum(store.value, place, lane) for place, lane in zip(places, lanes, strict=True)]
    except MustStore:  # the way to the element and back is not seen to end where it began: with a name for the place it is
        whole = len(places) > 1 and all(place == places[0] + lane for lane, place in enumerate(places)) and _aligned(places)
        if len(places) > 1 and not whole:
            for place, lane in zip(places, lanes, strict=True):
                with writer.block(""):
                    store_places(writer, reading, store, [place], [lane], layout)
            return
        writer.line(f"const unsigned e_at = ({places[0]}) / {len(places)}u;")
        element = of(Var("e_at", store.value.numel // len(places))) * len(places)
        places = [element + at for at in range(len(places))]
        exprs = [reading.of_sum(store.value, place, lane) for place, lane in zip(places, lanes, strict=True)]
    for lane in lanes:
        writer.know(reading.pool.make("row", "float", data=("sum", lane)), layout.sum_of(lane))
    writer.load(exprs, len(exprs))
    writer.store(store.buffer, store.value.element, places, [writer.write(expr) for expr in exprs])


def _aligned(places: Sequence[Index]) -> bool:
    wide = len(places)
    return places[0].constant % wide == 0 and all(factor % wide == 0 for _, factor in places[0].terms)


def _limits(inside: tuple[tuple[Index, int], ...]) -> list[str]:
    return [f"({index}) < {size}u" for index, size in inside if index.low < 0 or index.high >= size]
