"""The axes worth trying for a kernel, best expected first, by what moves through memory and how many CTAs share it."""

from collections.abc import Iterator, Mapping
from itertools import product

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.plan.library_call import CONVOLUTIONS
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.axes import Axes, LibraryChoice
from cudal2_agent.policies.fusion.fused_source import Choice
from cudal2_agent.policies.fusion.grouping import Groups, ProductStep, ScanStep
from cudal2_agent.policies.fusion.index_algebra import Index, Var, of
from cudal2_agent.policies.fusion.product_kernels.contraction import Contraction, contraction
from cudal2_agent.policies.fusion.product_kernels.tiles import MATRIX_TILES, TILES, SumTile, tile_kind
from cudal2_agent.policies.fusion.programs import KernelProgram, step_of
from cudal2_agent.policies.fusion.row_kernels.row_space import row_axes
from cudal2_agent.policies.fusion.values import ProductValue

_VECTOR_BYTES = 16
_HEAVY = 400  # instructions of an element for which a thread computes one at a time


def axes_of(program: KernelProgram, elements: Mapping[str, BufferElement], chip: Chip) -> Iterator[Axes]:
    """Every set of axes once, the best expected first."""
    seen: set[Axes] = set()
    for axes in _candidates(program, elements, chip):
        if axes not in seen:
            seen.add(axes)
            yield axes


def _candidates(program: KernelProgram, elements: Mapping[str, BufferElement], chip: Chip) -> Iterator[Axes]:
    names = [*program.reads, *(store.buffer for store in program.stores)]
    widest = _VECTOR_BYTES // min((elements[name].bytes for name in names if elements[name].floating), default=4)
    yield from _flat(program, widest, chip) if program.anchor is None else row_axes(program, chip)


def tiles_of(product: ProductValue, sums: Contraction, chip: Chip) -> Iterator[SumTile]:
    """Every tile once, the best expected first: large ones reuse more, small ones waste less and fill the chip."""

    def expected(tile: SumTile) -> float:
        ctas = sums.batches * -(-sums.m // tile.m) * -(-sums.n // tile.n)
        resident = max(2048 // tile.threads // 4, 1)
        waves = -(-ctas // (chip.sms * resident))
        reuse = 1 + 24 / tile.m + 24 / tile.n + 4 / (tile.tm * tile.tn)
        return waves * resident * tile.m * tile.n * reuse

    tiles = {"tile": TILES, "mma": MATRIX_TILES, None: ()}[tile_kind(product)]
    yield from sorted(tiles, key=expected)


def choices(groups: Groups, chip: Chip) -> dict[str, list[Choice]]:
    """By kernel, what can be tried, the best expected first.

    A plan needs a kernel of ours. Where all steps are products, that is the smallest of them; the others may be a library's.
    """
    found: dict[str, list[Choice]] = {}
    sums = {step.name: contraction(step.product) for step in groups.products}
    tiled = [step.name for step in groups.products if tile_kind(step.product)]
    own = min(tiled, key=lambda name: sums[name].flops, default=None) if len(sums) == len(groups.steps) else None
    for step in groups.steps:
        match step:
            case ProductStep():
                library = [] if step.name == own else _calls(step)
                found[step.name] = [*library, *tiles_of(step.product, sums[step.name], chip)]
            case KernelProgram():
                found[step.name] = list(axes_of(step, groups.elements, chip))
            case ScanStep():
                found[step.name] = list[Choice](_scans(step, chip))
    return found


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


def _beside(index: Index, rows: int) -> bool:
    """Whether the elements of neighbouring rows are neighbours."""
    row = of(Var("o", rows))
    return bool(row.terms) and step_of(index, row) == 1


def _flat(program: KernelProgram, widest: int, chip: Chip) -> Iterator[Axes]:
    shape = program.stores[0].value.shape
    # Where elements do not lie as their operands do, neighbours in one line share what they read.
    beside = all(_beside(access.index, program.rows) for access in program.accesses)
    line = program.rows if beside or not shape else shape[-1]
    best = 1 if program.cost > _HEAVY else vector(line, widest)
    groups = program.rows // best
    items = 2 if groups >= 2 * 256 * chip.sms * 8 and program.cost <= _HEAVY // 8 else 1
    yield Axes(layout="flat", vector=best, threads=256, items=items)
    for threads in (128, 256, 512):
        for items in (1, 2, 4):
            for width in dict.fromkeys((best, max(best // 2, 1), vector(program.rows, widest))):
                yield Axes(layout="flat", vector=width, threads=threads, items=items)
