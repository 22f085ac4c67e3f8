"""CUDA C++ of a product by tiles, with what is stored of its sums: the product, or an element-wise value of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cudal2_agent.contract.plan.plan import Launch, TensorArg
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index, Var, flat, of, unflat
from cudal2_agent.policies.fusion.kernel_text import KernelText
from cudal2_agent.policies.fusion.product_kernels.contraction import Contraction
from cudal2_agent.policies.fusion.product_kernels.mainloops import MATRIX, SIMT
from cudal2_agent.policies.fusion.product_kernels.operand_copies import side
from cudal2_agent.policies.fusion.product_kernels.tiles import SumTile, tile_kind
from cudal2_agent.policies.fusion.programs import KernelProgram, MustStore, Reading, StoredValue
from cudal2_agent.policies.fusion.values import Map, ProductValue, Value
from cudal2_agent.policies.fusion.writer import STORED, StatementWriter

_STAGES = {"tile": 3, "mma": 4}  # tiles in shared memory
_RESIDENT = {"tile": 512, "mma": 256}  # threads of an SM that keep 64 sums each


@dataclass(frozen=True)
class _Layout:
    """The sums of a thread: `sum_of[rows][groups * wide]`. `m`, `n`: in C++, the row of sum `i_at`, and the group of `wide`
    neighbours `j_at` in groups of the result.
    """

    rows: int
    groups: int
    wide: int
    m: str
    n: str


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
    left = side(f"{name}_a", sums.a, sums, sums.m, buffers)
    right = side(f"{name}_b", sums.b, sums, sums.n, buffers)
    reading = SumReading(product, store, buffers)
    writer = StatementWriter(reading.pool)
    rows, columns = -(-sums.m // tile.m), -(-sums.n // tile.n)
    # Names end in `_at` or `_of`, which those of buffers need not avoid otherwise.
    writer.line(f"const unsigned tile_at = blockIdx.x % {rows * columns}u, batch_at = blockIdx.x / {rows * columns}u;")
    writer.line("// CTAs that run together share columns, which are the longer side as a rule.")
    writer.line(f"const unsigned m0_at = tile_at % {rows}u * {tile.m}u, n0_at = tile_at / {rows}u * {tile.n}u;")
    writer.line("const unsigned warp_at = threadIdx.x / 32, lane_at = threadIdx.x % 32;")
    steps = _steps(product, sums, tile, store)
    stages = _STAGES[tile.kind]
    loop = f"<{name}_a, {name}_b, {tile.m}, {tile.n}, {tile.k}, {tile.tm}, {tile.tn}, {stages}>"
    sides = f"{name}_a{{{left.buffer}, batch_at}}, {name}_b{{{right.buffer}, batch_at}}, m0_at, n0_at"
    if tile.kind == "mma":
        across = tile.n // tile.tn
        writer.line(f"const unsigned x_at = warp_at % {across}u * {tile.tn}u, y_at = warp_at / {across}u * {tile.tm}u;")
        writer.line(f"float sum_of[{tile.tm // 8}][{tile.tn // 4}] = {{}};")
        writer.line(f"multiply_matrices{loop}({sides}, y_at, x_at, {steps}, sum_of);")
        layout = _Layout(
            rows=tile.tm // 8,
            groups=tile.tn // 8,
            wide=2,
            m="m0_at + y_at + i_at / 2u * 16u + i_at % 2u * 8u + lane_at / 4u",
            n="(n0_at + x_at) / 2u + j_at * 4u + lane_at % 4u",
        )
        dynamic_smem = 2 * stages * tile.k * (tile.m + tile.n)
    else:
        across = tile.n // tile.tn // 8
        writer.line("// A warp computes the sums of 4 by 8 threads.")
        place = f"y_at = warp_at / {across}u * 4u + lane_at / 8u"
        writer.line(f"const unsigned x_at = warp_at % {across}u * 8u + lane_at % 8u, {place};")
        writer.line(f"float sum_of[{tile.tm}][{tile.tn}] = {{}};")
        writer.line(f"multiply{loop}({sides}, y_at, x_at, {steps}, sum_of);")
        layout = _Layout(
            rows=tile.tm,
            groups=tile.tn // 4,
            wide=4,
            m=f"m0_at + i_at / 4u * {tile.m * 4 // tile.tm}u + y_at * 4u + i_at % 4u",
            n=f"n0_at / 4u + x_at + j_at * {tile.n // tile.tn}u",
        )
        dynamic_smem = 4 * stages * tile.k * (tile.m + tile.n + 8)
    _store(writer, reading, sums, layout, store)
    reads = list(dict.fromkeys((left.buffer, right.buffer, *reading.loads)))
    parameters = [f"const {STORED[elements[each]]}* __restrict__ {each}" for each in reads]
    parameters.append(f"{STORED[elements[store.buffer]]}* __restrict__ {store.buffer}")
    resident = max(_RESIDENT[tile.kind] // tile.threads, 1)
    head = f'extern "C" __global__ void __launch_bounds__({tile.threads}, {resident}) {name}(\n    '
    source = left.source + right.source + head + ",\n    ".join(parameters) + ") {\n" + "\n".join(writer.lines) + "\n}\n"
    args = (*(TensorArg(tensor=each) for each in reads), TensorArg(tensor=store.buffer, access="write"))
    grid = (rows * columns * sums.batches, 1, 1)
    launch = Launch(entry=name, grid=grid, block=(tile.threads, 1, 1), dynamic_smem=dynamic_smem, args=args)
    return KernelText(source, launch)


def main_loop(product: ProductValue) -> str:
    """The C++ that a product's kernel needs before it."""
    if tile_kind(product) == "tile":
        return SIMT
    return MATRIX.replace("KIND", "f16" if product.element is BufferElement.F16 else "bf16")


def _steps(product: ProductValue, sums: Contraction, tile: SumTile, store: StoredValue) -> str:
    """How many tiles of terms a CTA adds up: none where all that it stores is the zeros of a triangle."""
    steps = f"{-(-sums.k // tile.k)}u"
    value = store.value
    if not isinstance(value, Map) or value.triangle is None or value.of[0] is not product or product.call.call != "mm":
        return steps
    diagonal, lower = value.triangle
    first, last = ("n", "m") if lower else ("m", "n")
    size = tile.m if lower else tile.n
    shift = diagonal if lower else -diagonal
    return f"(int)({last}0_at + {size - 1}u) - (int){first}0_at + {shift} < 0 ? 0u : {steps}"


def _store(writer: StatementWriter, reading: SumReading, sums: Contraction, layout: _Layout, store: StoredValue) -> None:
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
                    _stored(writer, reading, store, [place for place, _ in places], range(wide), wide)
                return
            for lane, (wanted, inside) in enumerate(places):
                place = wanted
                limits = [f"n_at * {wide}u + {lane}u < {sums.n}u", *_limits(inside)]
                with writer.block(f"if ({' && '.join(limits)})"):
                    _stored(writer, reading, store, [place], [lane], wide)


def _stored(
    writer: StatementWriter,
    reading: SumReading,
    store: StoredValue,
    places: Sequence[Index],
    lanes: Sequence[int],
    wide: int,
) -> None:
    """`wide`: neighbours of a group, of which `lanes` are stored."""
    try:
        exprs = [reading.of_sum(store.value, place, lane) for place, lane in zip(places, lanes, strict=True)]
    except MustStore:  # the way to the element and back is not seen to end where it began: with a name for the place it is
        whole = len(places) > 1 and all(place == places[0] + lane for lane, place in enumerate(places)) and _aligned(places)
        if len(places) > 1 and not whole:
            for place, lane in zip(places, lanes, strict=True):
                with writer.block(""):
                    _stored(writer, reading, store, [place], [lane], wide)
            return
        writer.line(f"const unsigned e_at = ({places[0]}) / {len(places)}u;")
        element = of(Var("e_at", store.value.numel // len(places))) * len(places)
        places = [element + at for at in range(len(places))]
        exprs = [reading.of_sum(store.value, place, lane) for place, lane in zip(places, lanes, strict=True)]
    for lane in lanes:
        writer.know(reading.pool.make("row", "float", data=("sum", lane)), f"sum_of[i_at][j_at * {wide} + {lane}]")
    writer.load(exprs, len(exprs))
    writer.store(store.buffer, store.value.element, places, [writer.write(expr) for expr in exprs])


def _aligned(places: Sequence[Index]) -> bool:
    wide = len(places)
    return places[0].constant % wide == 0 and all(factor % wide == 0 for _, factor in places[0].terms)


def _limits(inside: tuple[tuple[Index, int], ...]) -> list[str]:
    return [f"({index}) < {size}u" for index, size in inside if index.low < 0 or index.high >= size]
