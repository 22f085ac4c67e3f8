"""Named buffers: what a task's kernels read and write, whatever kind the task is of."""

import math
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from cudal2_agent.contract.base import Record

BufferName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,63}$")]


class BufferElement(StrEnum):
    """What one element of a buffer is, as PTX names numbers; `bool` is one byte that holds 0 or 1."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    U8 = "u8"
    I32 = "i32"
    I64 = "i64"
    BOOL = "bool"

    @property
    def bytes(self) -> int:
        return _BYTES[self]

    @property
    def torch_name(self) -> str:
        """The element's type in PyTorch: `torch.float16` is `float16`."""
        return _TORCH_NAMES[self]

    @property
    def floating(self) -> bool:
        return self in (BufferElement.F16, BufferElement.BF16, BufferElement.F32, BufferElement.F64)


_BYTES = {
    BufferElement.F16: 2,
    BufferElement.BF16: 2,
    BufferElement.F32: 4,
    BufferElement.F64: 8,
    BufferElement.U8: 1,
    BufferElement.I32: 4,
    BufferElement.I64: 8,
    BufferElement.BOOL: 1,
}


_TORCH_NAMES = {
    BufferElement.F16: "float16",
    BufferElement.BF16: "bfloat16",
    BufferElement.F32: "float32",
    BufferElement.F64: "float64",
    BufferElement.U8: "uint8",
    BufferElement.I32: "int32",
    BufferElement.I64: "int64",
    BufferElement.BOOL: "bool",
}


class Role(StrEnum):
    """What a task uses a buffer for. A `state` is read and written, as the running mean of a BatchNorm in training."""

    INPUT = "input"
    PARAMETER = "parameter"
    STATE = "state"
    OUTPUT = "output"

    @property
    def written(self) -> bool:
        """Whether a kernel must write it."""
        return self in (Role.STATE, Role.OUTPUT)


class Buffer(Record):
    """A dense row-major array. Shape: outermost dimension first; () is one element.

    `low`, `high`: the least and the greatest value that the problem gives it, both included: of inputs of whole numbers and of
    buffers that are no weights; None where any value may occur. `fixed`: a constant of the module, such as a mask or a table,
    which always has the values that the problem gives it.
    """

    name: BufferName
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    element: BufferElement
    role: Role
    low: Annotated[float | int | None, Field(allow_inf_nan=False, exclude_if=lambda low: low is None)] = None
    high: Annotated[float | int | None, Field(allow_inf_nan=False, exclude_if=lambda high: high is None)] = None
    fixed: Annotated[bool, Field(exclude_if=lambda fixed: not fixed)] = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.element.bytes

    @property
    def rows_and_columns(self) -> tuple[int, int]:
        """The buffer as a matrix: all dimensions but the last, and the last."""
        return (math.prod(self.shape[:-1]), self.shape[-1]) if self.shape else (1, 1)
