"""CUDA C++ of a convolution in f32 by minimal filtering (Winograd), with what is stored of its sums.

Covered: three taps in each of two or three dimensions, stride and dilation 1, one group, any padding and sizes, plain or
transposed. A first launch transforms the weight, in f64. Not covered: infinities, and sums of taps or of inputs beyond f32's
range, may make a NaN of all outputs of a tile.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cudal2_agent.contract.plan.library_call import CONVOLUTIONS
from cudal2_agent.contract.plan.plan import Launch, Scratch
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.index_algebra import Index, Var, flat, of
from cudal2_agent.policies.fusion.kernel_text import KernelText, buffer_args, kernel_source
from cudal2_agent.policies.fusion.product_kernels.tile_kernel import SumLayout, SumReading, store_places
from cudal2_agent.policies.fusion.product_kernels.tiles import SumTile, tile_kind
from cudal2_agent.policies.fusion.programs import KernelProgram, Reading, StoredValue
from cudal2_agent.policies.fusion.values import BufferValue, ProductValue, Unplanned, Value
from cudal2_agent.policies.fusion.writer import StatementWriter

_FILTER_THREADS = 128
_PLACES = 2**31  # of the input, which a thread keeps as an int


@dataclass(frozen=True)
class _Operand:
    """A buffer, and by dimension the distance of neighbours in it."""

    buffer: str
    strides: tuple[int, ...]


def minimal_filtering(product: ProductValue, buffers: Mapping[int, str], parameters: Collection[str]) -> bool:
    """Whether a product is a convolution that this kernel computes, to what f32 allows.

    An output errs by the largest number of its window times the largest tap, whichever taps these meet. So taps of very
    different sizes are left to tiles: the weight is one of the `parameters`.
    """
    weight = product.operands[1]
    if (
        not _three_taps(product)
        or (weight.name if isinstance(weight, BufferValue) else buffers.get(id(weight))) not in parameters
    ):
        return False
    try:
        _operand(product.operands[0], buffers)
    except Unplanned:
        return False
    return True


def _three_taps(product: ProductValue) -> bool:
    call, weight = product.call, product.operands[1]
    if call.call not in CONVOLUTIONS or len(weight.shape) not in (4, 5) or tile_kind(product) != "tile":
        return False
    if product.operands[0].numel >= _PLACES:
        return False
    return set(weight.shape[2:]) == {3} and {*call.stride, *call.dilation, call.groups} == {1} and not any(call.output_padding)


def tiles_of_outputs(product: ProductValue) -> list[int]:
    """By spatial dimension, how many tiles of two outputs there are."""
    return [-(-size // 2) for size in product.shape[2:]]


def _operand(value: Value, buffers: Mapping[int, str]) -> _Operand:
    """Raises: Unplanned for one that is not the elements of a buffer at constant distances."""
    reading = Reading(KernelProgram("", 1, 1, None, []), buffers)
    variables = [Var(f"d{at}", size) for at, size in enumerate(value.shape)]
    read = reading.read(value, [of(each) for each in variables])
    if read.kind != "load" or not {atom for atom, _ in read.data[1].terms} <= set(variables) or read.data[1].constant:
        raise Unplanned("a product", "by minimal filtering of an operand that is computed")
    strides = dict(read.data[1].terms)
    return _Operand(read.data[0], tuple(strides.get(each, 0) for each in variables))


def _geometry(name: str, product: ProductValue, x: _Operand, weight: _Operand) -> str:
    """The struct `G` of the loop."""
    call, value = product.call, product.operands[0]
    turned = call.call == "conv_transpose"
    tiles, taps = tiles_of_outputs(product), list(weight.strides[2:])
    pads = [2 - pad if turned else pad for pad in call.padding]
    out, inner = (weight.strides[1], weight.strides[0]) if turned else weight.strides[:2]
    first = 2 * sum(taps) if turned else 0
    even = x.strides[-1] == 1 and not any(each % 2 for each in (*x.strides[:-1], value.shape[-1]))
    fields: dict[str, int] = {
        "Dims": len(taps),
        "Points": 4 ** len(taps),
        "In": value.shape[1],
        "Out": product.shape[1],
        "Images": product.shape[0],
        "Image": x.strides[0],
        "Channel": x.strides[1],
        "TapsOut": out,
        "TapsIn": inner,
        "TapsFirst": first,
        "Pairs": pads[-1] % 2 if even else -1,
    }
    sizes = ("Depth", "Height", "Width")
    for dim, (axis, size) in enumerate(zip("ZYX", sizes, strict=True)):
        at = dim - 3 + len(taps)
        by_axis = (1, 1, 0, 0, 0) if at < 0 else (tiles[at], value.shape[2 + at], pads[at], x.strides[2 + at], taps[at])
        count, extent, pad, stride, tap = by_axis
        tap = -tap if turned else tap
        fields |= {f"Tiles{axis}": count, size: extent, f"Pad{axis}": pad, axis: stride, f"Taps{axis}": tap}
    unsigned = {"In", "Out", "Images", *sizes, *(f"Tiles{axis}" for axis in "ZYX")}
    lines = [f"  static constexpr {'unsigned' if key in unsigned else 'int'} k{key} = {at};" for key, at in fields.items()]
    return "\n".join([f"struct {name} {{", *lines, "};\n"])


def winograd_kernel(
    name: str,
    product: ProductValue,
    tile: SumTile,
    store: StoredValue,
    buffers: Mapping[int, str],
    elements: Mapping[str, BufferElement],
) -> KernelText:
    """As `tile_kernel`: the launch for the weight, and the kernel. Raises: Unplanned."""
    if not _three_taps(product) or tile.points != 4 ** len(product.shape[2:]):
        raise Unplanned("a product", f"by {tile.text()}")
    x, weight = (_operand(each, buffers) for each in product.operands)
    loop = f"{name}_filtering"
    struct = _geometry(f"{name}_geometry", product, x, weight)
    struct += f"using {loop} = Winograd<{name}_geometry, {tile.m}, {tile.n}, {tile.tm}, {tile.tn}>;\n"
    filters = _filters(name, product, tile, weight.buffer)
    blocks, channels = _padded(product, tile)
    reading = SumReading(product, store, buffers)
    writer = StatementWriter(reading.pool)
    writer.line("// CTAs that run together share tiles.")
    writer.line(f"const unsigned m0_at = blockIdx.x % {blocks}u * {tile.m}u, n0_at = blockIdx.x / {blocks}u * {tile.n}u;")
    writer.line(f"float sum_of[{tile.tm}][{tile.tn}] = {{}};")
    of_block = f"m0_at * {channels * tile.points}u"
    writer.line(f"{loop}::multiply({x.buffer}, {filters.scratch[0].name} + {of_block}, n0_at, sum_of);")
    count = product.shape[0] * math.prod(tiles_of_outputs(product))
    _store_sums(writer, reading, product, tile, store, loop)
    reads = [(each, elements[each]) for each in dict.fromkeys((x.buffer, *reading.loads))]
    reads.append((filters.scratch[0].name, BufferElement.F32))
    writes = [(store.buffer, store.value.element)]
    source = kernel_source(name, f"{tile.threads}, {tile.resident}", writer.lines, reads, writes)
    grid, block = (blocks * -(-count // tile.n), 1, 1), (tile.threads, 1, 1)
    args = buffer_args(reads, writes)
    launch = Launch(entry=name, grid=grid, block=block, dynamic_smem=tile.filtering_bytes, args=args)
    return KernelText(f"{struct}{filters.source}\n{source}", launch, (filters.launch,), filters.scratch)


def _padded(product: ProductValue, tile: SumTile) -> tuple[int, int]:
    """Blocks of the result's channels, and channels in whole steps."""
    return -(-product.shape[1] // tile.m), -(-product.operands[0].shape[1] // tile.k) * tile.k


def _filters(name: str, product: ProductValue, tile: SumTile, weight: str) -> KernelText:
    """The launch that transforms the weight: for each block of a CTA's channels and each channel, points as they are read."""
    blocks, channels = _padded(product, tile)
    filters = Scratch(name=f"{name}_filters", shape=(blocks, channels, tile.points * tile.m), element=BufferElement.F32)
    reads, writes = [(weight, BufferElement.F32)], [(filters.name, BufferElement.F32)]
    lines = [f"  {name}_filtering::filter({weight}, {filters.name});"]
    source = kernel_source(f"{name}_filter", str(_FILTER_THREADS), lines, reads, writes)
    grid, block = (-(-blocks * tile.m * channels // _FILTER_THREADS), 1, 1), (_FILTER_THREADS, 1, 1)
    launch = Launch(entry=f"{name}_filter", grid=grid, block=block, args=buffer_args(reads, writes))
    return KernelText(source, launch, scratch=(filters,))


def _store_sums(
    writer: StatementWriter, reading: SumReading, product: ProductValue, tile: SumTile, store: StoredValue, loop: str
) -> None:
    """Statements that transform sums back, by way of shared memory, and store what is kept of the outputs."""
    tiles, across = tiles_of_outputs(product), tile.m // tile.tm
    together = across * 4
    writer.line("#pragma unroll")
    with writer.block(f"for (unsigned round_at = 0; round_at < {tile.tm // 4}u; ++round_at)"):
        writer.line(f"{loop}::share(sum_of, round_at);")
        writer.line("#pragma unroll 1")
        each = f"unsigned j_at = threadIdx.x; j_at < {tile.n * together}u; j_at += {tile.threads}u"
        with writer.block(f"for ({each})"):
            writer.line("// The halves of a warp that read two channels read the first and the fifth, which meet other banks.")
            writer.line(f"const unsigned slot_at = j_at % {tile.n}u, i_at = j_at / {tile.n}u;")
            writer.line(f"const unsigned o_at = i_at % {across}u * 4u + i_at / {across}u;")
            writer.line(f"const unsigned m_at = m0_at + round_at * {together}u + o_at, n_at = n0_at + slot_at;")
            count = product.shape[0] * math.prod(tiles)
            writer.line(f"if (m_at >= {product.shape[1]}u || n_at >= {count}u) continue;")
            writer.line(f"float result_of[{2 ** len(tiles)}];")
            writer.line(f"{loop}::outputs(slot_at, o_at, result_of);")
            _store_tile(writer, reading, product, tiles, store)


def _store_tile(
    writer: StatementWriter, reading: SumReading, product: ProductValue, tiles: list[int], store: StoredValue
) -> None:
    """Statements for the outputs `result_of` of tile `n_at` and channel `m_at`: those of a line together where it is even."""
    shape, rank = product.shape, len(tiles)
    rest = "n_at"
    names = ["z_at", "y_at", "x_at"][3 - rank :]
    for name, size in reversed(list(zip(names, tiles, strict=True))):
        writer.line(f"const unsigned {name} = {rest} % {size}u;")
        rest = f"{rest} / {size}u"
    writer.line(f"const unsigned image_at = {rest};")
    outer = [of(Var("image_at", shape[0])), of(Var("m_at", shape[1]))]
    wide = 2 if shape[-1] % 2 == 0 else 1
    writer.line("#pragma unroll")
    with writer.block(f"for (unsigned l_at = 0; l_at < {2**rank // wide}u; ++l_at)"):
        place = list[Index]()
        for dim, (name, size) in enumerate(zip(names, shape[2:], strict=True)):
            own, after = f"{name[0]}_of", rank - 1 - dim
            if after == 0 and wide == 2:
                place.append(of(Var(name, size // 2)) * 2)
                continue
            shift = f"l_at / {2**after // wide}u % 2u" if 2**after > wide else "l_at % 2u"
            writer.line(f"const unsigned {own} = {name} * 2u + {shift};")
            if size % 2:
                writer.line(f"if ({own} >= {size}u) continue;")
            place.append(of(Var(own, size)))
        places = [flat([*outer, *place[:-1], place[-1] + lane], shape) for lane in range(wide)]
        layout = SumLayout(rows=1, groups=1, wide=wide, m="", n="", sum=f"result_of[l_at * {wide}u + {{}}]")
        store_places(writer, reading, store, places, range(wide), layout)
