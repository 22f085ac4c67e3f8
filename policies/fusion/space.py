"""The axes worth trying for a kernel, best expected first, by what moves through memory and how many CTAs share it."""

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import product, zip_longest

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.plan.library_call import CONVOLUTIONS
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.policies.fusion.axes import Axes, LibraryChoice
from cudal2_agent.policies.fusion.fused_source import Choice, fused_products
from cudal2_agent.policies.fusion.grouping import Groups, ProductStep, ScanStep
from cudal2_agent.policies.fusion.index_algebra import Var, of
from cudal2_agent.policies.fusion.product_kernels.contraction import Contraction, contraction
from cudal2_agent.policies.fusion.product_kernels.tiles import (
    DOUBLE_TILES,
    MATRIX_TILES,
    TILES,
    WARPGROUP_TILES,
    WINOGRAD_TILES,
    SumTile,
    tile_kind,
)
from cudal2_agent.policies.fusion.product_kernels.warpgroup_kernel import warpgroup_operands
from cudal2_agent.policies.fusion.product_kernels.winograd_kernel import minimal_filtering, tiles_of_outputs
from cudal2_agent.policies.fusion.programs import KernelProgram
from cudal2_agent.policies.fusion.row_kernels.row_space import row_axes
from cudal2_agent.policies.fusion.row_kernels.window_kernel import line_window
from cudal2_agent.policies.fusion.values import LineWindow, Map, ProductValue

_VECTOR_BYTES = 16
_F32_SHARE = 1 / 16  # of the rate of tensor cores in half precision
_OWN_SHARE = {"tile": 0.6, "dmma": 1.1, "mma": 0.5, "wgmma": 0.9}  # of a library's rate that our products are expected to have
_LIBRARY = 0.65  # of f32's rate that a library's convolutions have
_PACKED_SHARE = 0.9  # the same of convolutions in f32 whose weight is packed
_LEAST_TERMS = 512  # of a part of a sum
_COPIED, _PLACED = 24, 36  # instructions for an element that a thread copies, and for where a window's element lies
_PACKED_FLOPS = 5e8
_WAITING = 0.4  # products in the time in which the warps of a CTA wait for each other, once a step
_MOVED, _INVERTED = 4, 3  # instructions for a transformed number beside its sums; for a sum that is transformed back
_L2_BYTES = 0.185  # in the time of a product in f32
_ADDED_TERMS = 64  # products in the time in which a part of a sum is stored and read again
_TAPS, _LINE = 8, 64  # of a window, and windows of a line, that make up for shared memory
_FAR = 2  # elements between windows of which neighbours still share what they read
_HEAVY = 400  # instructions of an element for which a thread computes one at a time


def axes_of(
    program: KernelProgram, buffers: Mapping[int, str], elements: Mapping[str, BufferElement], chip: Chip
) -> Iterator[Axes]:
    """Every set of axes once, the best expected first."""
    seen: set[Axes] = set()
    for axes in _candidates(program, buffers, elements, chip):
        if axes not in seen:
            seen.add(axes)
            yield axes


def _candidates(
    program: KernelProgram, buffers: Mapping[int, str], elements: Mapping[str, BufferElement], chip: Chip
) -> Iterator[Axes]:
    names = [*program.reads, *(store.buffer for store in program.stores)]
    widest = _VECTOR_BYTES // min((elements[name].bytes for name in names if elements[name].floating), default=4)
    if program.anchor is not None:
        yield from row_axes(program, chip)
        return
    flat = list(_flat(program, widest, chip))
    lines = [] if (window := line_window(program, buffers)) is None else _lines(window)
    # Threads that compute neighbours together share columns as well, unless lines are odd or windows lie far apart.
    far = window is not None and (flat[0].vector == 1 or window.stride > _FAR)
    pays = window is not None and far and window.taps >= _TAPS and window.windows >= _LINE
    first, others = (lines, flat) if pays else (flat, lines)
    yield from (each for turn in zip_longest(first, others) for each in turn if each is not None)


def _lines(window: LineWindow) -> list[Axes]:
    fits = [threads for threads in (256, 512, 128) if threads < 2 * window.windows] or [128]
    return [Axes(layout="lines", threads=threads, items=items) for items in (4, 2, 1) for threads in fits]


def tiles_of(
    product: ProductValue, sums: Contraction, buffers: Mapping[int, str], chip: Chip, parameters: Collection[str] = ()
) -> Iterator[SumTile]:
    """Every tile once, the best expected first: large ones reuse more, small ones waste less and fill the chip.

    `parameters`: the buffers of the module's weights.
    """
    orders = {False: sums, True: contraction(product, by_tap=True)}

    def expected(tile: SumTile) -> float:
        """In products of a CTA slot, with what the parts of a split store and read again."""
        if tile.points > 1:
            return _filtering(product, tile, chip)
        own = orders[tile.packed]
        waves = -(-own.tiles(tile.m, tile.n) * tile.split // (chip.sms * tile.resident))
        of_a, of_b = _copying(product, tile)
        waiting = _WAITING / (tile.k if own.k % tile.k == 0 else 8)
        work = 1 + of_a / tile.n + of_b / tile.m + 4 / (tile.tm * tile.tn) + waiting
        adding = _ADDED_TERMS * tile.split * own.batches * own.m * own.n / chip.sms if tile.split > 1 else 0
        steps = -(-own.k // tile.k) * tile.k
        terms = steps * (own.existing if own.limits(tile.k)[1] else 1)
        return waves * tile.resident * tile.m * tile.n * work * math.ceil(terms / tile.split) + adding

    tiles = list({"tile": TILES, "mma": MATRIX_TILES, None: ()}[tile_kind(product)])
    if tile_kind(product) == "tile" and chip.arch is Arch.SM_90A:
        tiles += DOUBLE_TILES
    for tile in list(tiles):
        most = min(chip.sms * tile.resident // sums.tiles(tile.m, tile.n), sums.k // _LEAST_TERMS)
        tiles += [tile.model_copy(update={"split": split}) for split in dict.fromkeys((most, most // 2)) if split > 1]
    if _packing_pays(product, sums):
        tiles += [tile.model_copy(update={"packed": True}) for tile in tiles]
    if chip.arch is Arch.SM_90A and minimal_filtering(product, buffers, parameters):
        tiles += WINOGRAD_TILES[len(product.shape) - 2]
    tiles.sort(key=expected)
    # Of several kinds, whose rates depend on what is copied, the best of each are tried first.
    firsts = [next(tile for tile in tiles if tile.kind == kind) for kind in dict.fromkeys(tile.kind for tile in tiles)]
    tiles = [*firsts, *(tile for tile in tiles if tile not in firsts)]
    if tile_kind(product) == "mma" and chip.arch is Arch.SM_90A and warpgroup_operands(sums, buffers) is not None:
        whole = sorted(WARPGROUP_TILES, key=expected)
        # A product that fills the chip is faster by warpgroups; a smaller one by what divides it best.
        tiles = [*whole, *tiles] if sums.tiles(whole[0].m, whole[0].n) >= chip.sms // 2 else [*tiles[:1], *whole, *tiles[1:]]
    yield from tiles


def _filtering(product: ProductValue, tile: SumTile, chip: Chip) -> float:
    """What minimal filtering takes, in products of a CTA slot: instructions, or bytes from L2, and half of what is less."""
    channels, rank = -(-product.operands[0].shape[1] // tile.k) * tile.k, len(product.shape) - 2
    transformed = (_MOVED + rank) / tile.m + _INVERTED / channels + _WAITING / tile.k
    work = 1 + transformed + (tile.tm + tile.tn) / (4 * tile.tm * tile.tn)
    moved = 4 * (tile.points * tile.m + (2 * (tile.n + 1) << 2 * (rank - 1))) / (tile.points * tile.m * tile.n) / _L2_BYTES
    places = product.shape[0] * math.prod(tiles_of_outputs(product))
    ctas = -(-product.shape[1] // tile.m) * -(-places // tile.n)
    waves = -(-ctas // (chip.sms * tile.resident))
    return waves * tile.resident * tile.points * tile.m * tile.n * channels * (max(work, moved) + min(work, moved) / 2)


def _packing_pays(product: ProductValue, sums: Contraction) -> bool:
    """Whether the launch for the weight may be made up for, and a step has few taps."""
    taps, inner = math.prod(product.operands[1].shape[2:]), product.operands[0].shape[1] // product.call.groups
    return product.call.call in CONVOLUTIONS and taps > 1 and inner % 4 == 0 and sums.flops > _PACKED_FLOPS


def _copying(product: ProductValue, tile: SumTile) -> tuple[float, float]:
    """Instructions for an element of each operand, from memory to a tile."""
    if product.call.call not in CONVOLUTIONS:
        return _COPIED, _COPIED
    if not tile.packed:
        return _COPIED / 2, _PLACED
    channels = product.operands[0].shape[1] // product.call.groups
    elements = tile.n * tile.k / tile.threads  # of a thread; their places are found once for each column and tap
    places = min(max(tile.n / tile.threads, 1) * max(tile.k / channels, 1), elements)
    return _COPIED / 8, _COPIED / 6 + _PLACED * places / elements


def choices(groups: Groups, chip: Chip) -> dict[str, list[Choice]]:
    """By kernel, what can be tried, the best expected first.

    A plan needs a kernel of ours. Where all steps are products, that is the smallest of them; the others may be a library's.
    """
    found: dict[str, list[Choice]] = {}
    sums = {step.name: contraction(step.product) for step in groups.products}
    tiles = {
        step.name: list(tiles_of(step.product, sums[step.name], groups.buffers, chip, groups.parameters))
        for step in groups.products
    }
    tiled = [name for name, each in tiles.items() if each]
    own = min(tiled, key=lambda name: sums[name].flops, default=None) if len(sums) == len(groups.steps) else None
    best: dict[str, Choice] = {name: each[0] if each else LibraryChoice() for name, each in tiles.items()}
    readers = {product: kernel for kernel, product in fused_products(groups, best).items()}
    for step in groups.steps:
        match step:
            case ProductStep():
                library = [] if step.name == own else _calls(step)
                reader = next((each for each in groups.programs if each.name == readers.get(step.name)), None)
                ours = tiles[step.name]
                pays = bool(ours) and _own_pays(step.product, reader, sums[step.name], ours[0], chip)
                first, second = (ours, library) if pays else (library, ours)
                turns = zip_longest(list[Choice](first), list[Choice](second))
                found[step.name] = [each for turn in turns for each in turn if each is not None]
            case KernelProgram():
                found[step.name] = list(axes_of(step, groups.buffers, groups.elements, chip))
            case ScanStep():
                found[step.name] = list[Choice](_scans(step, chip))
    return found


def _own_pays(product: ProductValue, reader: KernelProgram | None, sums: Contraction, tile: SumTile, chip: Chip) -> bool:
    """Whether a kernel of ours, slower than a library's, saves more time by what it does not store and read again.

    `reader`: the kernel behind the product that is fused.
    """
    in_f32 = tile_kind(product) == "tile"
    if product.call.call == "conv_transpose" and set(product.call.stride) != {1} and in_f32:
        return True  # a library's has a few percent of the rate, and is copied to where it belongs
    if tile.points > 1:
        share = sums.flops / (2 * chip.sms) / _filtering(product, tile, chip) / _LIBRARY
    else:
        share = _PACKED_SHARE if tile.packed and tile.kind == "tile" else _OWN_SHARE[tile.kind]
    if reader is None:
        return share > 1 and (product.call.call not in CONVOLUTIONS or tile.points > 1)
    value = reader.stores[0].value
    if isinstance(value, Map) and value.triangle is not None:
        return True  # half of the tiles add nothing up
    rate = chip.tensor_tflops * (_F32_SHARE if in_f32 else 1)
    slower_us = sums.flops * sums.existing / rate * (1 / share - 1) / 1e6
    saved_us = 2 * product.bytes / chip.dram_tbps / 1e6
    return slower_us < saved_us + chip.launch_us


def _calls(step: ProductStep) -> list[LibraryChoice]:
    return [LibraryChoice(search=True), LibraryChoice()] if step.call.call in CONVOLUTIONS else [LibraryChoice()]


def _scans(step: ScanStep, chip: Chip) -> Iterator[Axes]:
    scan = step.scan
    length = scan.shape[scan.dim]
    rows = scan.numel // max(length, 1)
    width = _VECTOR_BYTES // scan.element.bytes
    if scan.dim == len(scan.shape) - 1 or rows < 64 * chip.sms:
        across = vector(length, width)
        parts = [-(-chip.sms * 4 // rows), 1, -(-chip.sms * 8 // rows)] if rows < chip.sms else [1]
        for count, threads in product((each for each in parts if each * 4096 <= length or each == 1), (256, 512, 1024, 128)):
            yield Axes(layout="rows", vector=across, threads=threads, parts=count)
    if scan.dim < len(scan.shape) - 1:
        for threads in (128, 256, 64):
            yield Axes(layout="columns", vector=vector(rows, width), threads=threads)


def vector(count: int, widest: int) -> int:
    """The largest power of two up to `widest` that divides a count."""
    width = 1
    while width < widest and count % (2 * width) == 0:
        width *= 2
    return width


def _flat_vector(program: KernelProgram, widest: int) -> int:
    """The most neighbours that a thread computes at once, all of whose larger operands lie at constant distances.

    Where a line ends within them, each would be found by itself, and none would share what it reads.
    """
    rows, width = program.rows, vector(program.rows, widest)
    stored = sum(store.value.bytes for store in program.stores)
    large = [access.index for access in program.accesses if 8 * access.bytes >= stored]
    while width > 1:
        first = of(Var("o", rows // width)) * width
        moved = [
            index.replace({Var("o", rows): first + (width - 1)}) - index.replace({Var("o", rows): first}) for index in large
        ]
        if not any(each.terms for each in moved):
            break
        width //= 2
    return width


def _flat(program: KernelProgram, widest: int, chip: Chip) -> Iterator[Axes]:
    best = 1 if program.cost > _HEAVY else _flat_vector(program, widest)
    groups = program.rows // best
    items = 2 if groups >= 2 * 256 * chip.sms * 8 and program.cost <= _HEAVY // 8 else 1
    yield Axes(layout="flat", vector=best, threads=256, items=items)
    for threads in (128, 256, 512):
        for items in (1, 2, 4):
            for width in dict.fromkeys((best, max(best // 2, 1), vector(program.rows, widest))):
                yield Axes(layout="flat", vector=width, threads=threads, items=items)
