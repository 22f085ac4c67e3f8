"""TMA descriptors over the operands as they lie in memory."""

from typing import Any

from cuda.bindings import driver

from contract.plan import TensorMapSpec, operand_shape
from contract.task import ElementType, GemmTask
from sandbox.cuda.driver import call

ELEMENT_BYTES = 2

_TYPE = {
    ElementType.F16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    ElementType.BF16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
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


def encode_tensor_map(spec: TensorMapSpec, task: GemmTask, pointer: int) -> bytes:
    """The 128 bytes of a descriptor over one operand; what lies outside the operand reads as zero.

    Raises: DriverFault where the driver refuses the box, the stride or the pointer (16-byte aligned).
    """
    encoded = call(driver.cuTensorMapEncodeTiled, *tensor_map_arguments(spec, task, pointer))
    return b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)


def tensor_map_arguments(spec: TensorMapSpec, task: GemmTask, pointer: int) -> tuple[Any, ...]:
    """Arguments of cuTensorMapEncodeTiled: sizes and box fastest dimension first, the one stride in bytes."""
    rows, columns = operand_shape(task, spec.of)
    return (
        _TYPE[task.element],
        2,
        pointer,
        [driver.cuuint64_t(columns), driver.cuuint64_t(rows)],
        [driver.cuuint64_t(columns * ELEMENT_BYTES)],
        [driver.cuuint32_t(size) for size in spec.box],
        [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _SWIZZLE[spec.swizzle],
        _PROMOTION[spec.l2],
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
