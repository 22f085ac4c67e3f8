"""CUDA C++ of a half-precision product by warpgroup instructions of sm_90a, with what is stored of its sums."""

from collections.abc import Mapping

from cudal2_agent.contract.plan.plan import Launch, TensorMapArg, TensorMapSpec
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.kernel_text import KernelText, buffer_args, kernel_source
from cudal2_agent.policies.fusion.product_kernels.contraction import Contraction
from cudal2_agent.policies.fusion.product_kernels.operand_copies import matrix
from cudal2_agent.policies.fusion.product_kernels.tile_kernel import SumLayout, SumReading, steps_of, store_sums, tile_of_cta
from cudal2_agent.policies.fusion.product_kernels.tiles import SumTile
from cudal2_agent.policies.fusion.programs import StoredValue
from cudal2_agent.policies.fusion.values import ProductValue, Unplanned
from cudal2_agent.policies.fusion.writer import STORED, StatementWriter

_RING_BYTES = 200 * 1024
_BOX = 64  # numbers of a line of 128 bytes

Operands = tuple[tuple[str, bool], tuple[str, bool]]  # of A and B: the buffer, and whether its lines lie along k


def warpgroup_operands(sums: Contraction, buffers: Mapping[int, str]) -> Operands | None:
    """None where TMA cannot read the operands: they are whole matrices, and a last block of terms finds zeros beyond them."""
    left, right = matrix(sums.a, sums, sums.m, buffers), matrix(sums.b, sums, sums.n, buffers)
    if left is None or right is None:
        return None
    if sums.batches > 1 and sums.k % _BOX and not (left[1] and right[1]):
        return None  # beyond the terms of a matrix lie those of the next
    return left, right


def warpgroup_kernel(
    name: str,
    product: ProductValue,
    sums: Contraction,
    tile: SumTile,
    store: StoredValue,
    buffers: Mapping[int, str],
    elements: Mapping[str, BufferElement],
) -> KernelText:
    """As `tile_kernel`. Raises: Unplanned for operands that TMA cannot read."""
    operands = warpgroup_operands(sums, buffers)
    if operands is None:
        raise Unplanned("a product", "by warpgroups of operands that are no whole matrices")
    reading = SumReading(product, store, buffers)
    writer = StatementWriter(reading.pool)
    tile_of_cta(writer, sums, tile)
    writer.line(f"float sum_of[{tile.n // 2}];")
    stage_bytes = 2 * tile.k * (tile.m + tile.n)
    stages = min(_RING_BYTES // stage_bytes, 8)
    along = ["true" if each else "false" for _, each in operands]
    shape = f"<{STORED[product.element]}, {tile.n}, {stages}, {along[0]}, {along[1]}>"
    places = []
    for (_, by_k), first, size in zip(operands, ("m0_at", "n0_at"), (sums.m, sums.n), strict=True):
        places += [f"batch_at * {size}u + {first}", "0"] if by_k else [first, f"batch_at * {sums.k}u"]
    maps = [f"{name}_{side}" for side in "ab"]
    steps = steps_of(product, sums, tile, store)
    writer.line(f"if (!multiply_warpgroups{shape}({', '.join([*maps, *places, steps])}, sum_of)) return;")
    layout = SumLayout(
        rows=2,
        groups=tile.n // 8,
        wide=2,
        m="m0_at + warp_at * 16u + i_at * 8u + lane_at / 4u",
        n="n0_at / 2u + j_at * 4u + lane_at % 4u",
        sum="sum_of[j_at * 4 + i_at * 2 + {}]",
    )
    store_sums(writer, reading, sums, layout, store)
    reads = [(each, elements[each]) for each in reading.loads]
    writes = [(store.buffer, store.value.element)]
    source = kernel_source(name, f"{tile.threads}, 1", writer.lines, reads, writes, maps)
    boxes = [(_BOX, size if by_k else _BOX) for (_, by_k), size in zip(operands, (tile.m, tile.n), strict=True)]
    args = (
        *(
            TensorMapArg(tensor_map=TensorMapSpec(of=buffer, box=box, swizzle=128))
            for (buffer, _), box in zip(operands, boxes, strict=True)
        ),
        *buffer_args(reads, writes),
    )
    smem = stages * stage_bytes + 1024 + 16 * stages  # a ring aligned to the swizzle, and two barriers a stage
    grid = (sums.tiles(tile.m, tile.n), 1, 1)
    return KernelText(source, Launch(entry=name, grid=grid, block=(tile.threads, 1, 1), dynamic_smem=smem, args=args))
