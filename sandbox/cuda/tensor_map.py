"""TMA descriptors over a task's buffers, a plan's scratch and its workspace."""

from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver

from cudal2_agent.contract.plan.plan import Scratch, TensorMapSpec
from cudal2_agent.contract.plan.tensor_view import MapLayout, map_layout
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.sandbox.cuda.driver import call

ADDRESS_ALIGNMENT = 256  # of every buffer of the sandbox
_FLIPPED = (
    0x100,
    0xFF00,
    0xFFFF_0000,
    0x7FFF_0000_0000,
)  # address bits to change, to see whether it stands in plain bytes

_TYPE = {
    BufferElement.F16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    BufferElement.BF16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    BufferElement.F32: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    BufferElement.F64: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
    BufferElement.U8: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    BufferElement.I32: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_INT32,
    BufferElement.I64: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_INT64,
    BufferElement.BOOL: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
}
_SWIZZLE = {
    0: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}
_PROMOTION = {
    0: driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
    64: driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    128: driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    256: driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
}


class TensorMaps:
    """Descriptors over one task's buffers at many addresses. `scratch`: of the plan, with whole numbers as shapes.

    The driver takes microseconds for each. Where the first few show that a descriptor holds its address as eight plain
    bytes, and that nothing else depends on it, later ones are made by writing these bytes.
    """

    def __init__(self, task: Task, scratch: Sequence[Scratch] = ()) -> None:
        self._buffers = named_buffers(task, scratch)
        self._patterns: dict[TensorMapSpec, tuple[bytes, int] | None] = {}

    def encode(self, spec: TensorMapSpec, pointer: int) -> bytes:
        """As `encode_tensor_map`."""
        layout = map_layout(spec, self._buffers)
        if spec not in self._patterns:
            self._patterns[spec] = _pattern(spec, layout, pointer)
        pattern = self._patterns[spec]
        if pattern is None or pointer % ADDRESS_ALIGNMENT:
            return encode_tensor_map(spec, layout, pointer)
        descriptor, at = pattern
        return descriptor[:at] + (pointer + layout.offset_bytes).to_bytes(8, "little") + descriptor[at + 8 :]

    def place_of_address(self, spec: TensorMapSpec) -> int | None:
        """The offset of the address in a descriptor that was encoded before; None where that is unknown."""
        pattern = self._patterns.get(spec)
        return None if pattern is None else pattern[1]


def _pattern(spec: TensorMapSpec, layout: MapLayout, pointer: int) -> tuple[bytes, int] | None:
    """A descriptor and where in it the address lies; None where that does not hold for others, or the address is odd."""
    if pointer % ADDRESS_ALIGNMENT:
        return None
    others = [pointer ^ flipped for flipped in _FLIPPED]
    descriptor = encode_tensor_map(spec, layout, pointer)
    at = descriptor.find((pointer + layout.offset_bytes).to_bytes(8, "little"))
    same = at >= 0 and all(
        encode_tensor_map(spec, layout, other)
        == descriptor[:at] + (other + layout.offset_bytes).to_bytes(8, "little") + descriptor[at + 8 :]
        for other in others
    )
    return (descriptor, at) if same else None


def named_buffers(task: Task, scratch: Sequence[Scratch] = ()) -> dict[str, Buffer]:
    """The buffers that a plan's arguments may name."""
    own = [Buffer(name=each.name, shape=tuple(map(int, each.shape)), element=each.element, role=Role.STATE) for each in scratch]
    return {buffer.name: buffer for buffer in (*task.buffers, *own)}


def encode_tensor_map(spec: TensorMapSpec, layout: MapLayout, pointer: int) -> bytes:
    """The 128 bytes of a descriptor over the buffer at an address; elements outside the view read as zero.

    Raises: DriverFault where the driver refuses the box, a stride or the pointer (16-byte aligned).
    """
    encoded = call(driver.cuTensorMapEncodeTiled, *tensor_map_arguments(spec, layout, pointer))
    return b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)


def tensor_map_arguments(spec: TensorMapSpec, layout: MapLayout, pointer: int) -> tuple[Any, ...]:
    """Arguments of cuTensorMapEncodeTiled: sizes and box with the fastest dimension first, strides in bytes.

    Of one dimension there are no strides, and the driver refuses an empty array of them; it reads none.
    """
    return (
        _TYPE[layout.element],
        len(layout.sizes),
        pointer + layout.offset_bytes,
        [driver.cuuint64_t(size) for size in layout.sizes],
        [driver.cuuint64_t(stride) for stride in layout.strides or (ADDRESS_ALIGNMENT,)],
        [driver.cuuint32_t(size) for size in spec.box],
        [driver.cuuint32_t(1) for _ in layout.sizes],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _SWIZZLE[spec.swizzle],
        _PROMOTION[spec.l2],
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
