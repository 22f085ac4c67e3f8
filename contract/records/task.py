"""The task: what a kernel computes, on which target, and in which timing mode."""

import re
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role

MAX_OPERAND_ELEMENTS = 2**31 - 1
BIAS = "bias"  # the buffer of a task that adds one
UP = "up"  # the buffer of a gated task: the second matrix that A is multiplied by


class ElementType(StrEnum):
    F16 = "f16"
    BF16 = "bf16"


class AccumulatorType(StrEnum):
    F32 = "f32"
    F16 = "f16"


class Layout(StrEnum):
    """How the operands are stored. The first letter is `t` where B is column-major, the second where A is.

    `nn`: A is M×K and B is K×N in memory. `tn`: B is N×K in memory. `nt`: A is K×M in memory. D is always row-major M×N.
    """

    NN = "nn"
    TN = "tn"
    NT = "nt"

    @property
    def transposes_a(self) -> bool:
        """Whether A is column-major: K×M in memory."""
        return self is Layout.NT

    @property
    def transposes_b(self) -> bool:
        """Whether B is column-major: N×K in memory."""
        return self is Layout.TN


class Arch(StrEnum):
    SM_80 = "sm_80"
    SM_86 = "sm_86"
    SM_89 = "sm_89"
    SM_90A = "sm_90a"
    SM_100A = "sm_100a"

    @property
    def number(self) -> int:
        """Compute capability as one number: 80, 86, 89, 90, 100."""
        return int(re.sub(r"\D", "", self.value))


class TimingMode(StrEnum):
    OFFLINE = "offline"
    SERVER = "server"


class Activation(StrEnum):
    """A function of each output, as PyTorch defines it.

    relu: max(x, 0). gelu: x·Φ(x). gelu_tanh: its approximation by tanh. silu: x / (1 + exp(-x)).
    """

    RELU = "relu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SILU = "silu"


class GemmTask(Record):
    """D = activation(A·B + bias), where A is M×K and B is K×N; alpha is 1, beta is 0.

    `bias`: N elements of the operands' type, added to every row. `activation`: of the sums, before D is rounded; None for the
    sums themselves. `gated`: D = activation(A·B) · (A·up), element by element and rounded once; `up` is as B is. That is the
    first half of a SwiGLU layer, where B is the weight of its gate.
    """

    kind: Literal["gemm"] = "gemm"
    m: int = Field(gt=0)
    n: int = Field(gt=0)
    k: int = Field(gt=0)
    element: ElementType = ElementType.F16
    accumulate: AccumulatorType = AccumulatorType.F32
    layout: Layout = Layout.NN
    arch: Arch = Arch.SM_90A
    mode: TimingMode = TimingMode.OFFLINE
    bias: Annotated[bool, Field(exclude_if=lambda bias: not bias)] = False
    activation: Annotated[Activation | None, Field(exclude_if=lambda activation: activation is None)] = None
    gated: Annotated[bool, Field(exclude_if=lambda gated: not gated)] = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if problem := too_large(self.m, self.n, self.k):
            raise ValueError(problem)
        if self.element is ElementType.BF16 and self.accumulate is AccumulatorType.F16:
            raise ValueError("bf16 elements accumulate in f32 only; use accumulate f32")
        if self.bias and self.accumulate is AccumulatorType.F16:
            raise ValueError("a bias is added in f32 only; use accumulate f32")
        if self.activation is not None and self.accumulate is AccumulatorType.F16:
            raise ValueError("an activation is computed in f32 only; use accumulate f32")
        if self.gated and self.activation is None:
            raise ValueError("a gated product has an activation; name one, such as silu")
        if self.gated and self.bias:
            raise ValueError("a gated product adds no bias")
        return self

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def id(self) -> str:
        return digest(self.model_dump(mode="json"))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of A, B, the bias or `up`, and D, as the layout has them in memory."""
        a = (self.k, self.m) if self.layout.transposes_a else (self.m, self.k)
        b = (self.n, self.k) if self.layout.transposes_b else (self.k, self.n)
        third = {BIAS: (self.n,)} if self.bias else {UP: b} if self.gated else {}
        return {"A": a, "B": b, **third, "D": (self.m, self.n)}

    @property
    def third(self) -> str | None:
        """The buffer that is read beside A and B, if any: `BIAS` or `UP`."""
        return BIAS if self.bias else UP if self.gated else None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """A, B, the bias or `up`, and D."""
        element = BufferElement(self.element.value)
        return tuple(
            Buffer(name=name, shape=shape, element=element, role=Role.OUTPUT if name == "D" else Role.INPUT)
            for name, shape in self.shapes.items()
        )

    @property
    def dims(self) -> dict[str, int]:
        """The sizes by the names that launch plans use."""
        return {"M": self.m, "N": self.n, "K": self.k}

    @property
    def formula(self) -> str:
        """What D is, such as `gelu(A·B + bias)` or `silu(A·B) · (A·up)`."""
        sums = "A·B + bias" if self.bias else "A·B"
        activated = sums if self.activation is None else f"{self.activation}({sums})"
        return f"{activated} · (A·{UP})" if self.gated else activated

    @property
    def epilogue(self) -> str:
        """What follows the product, behind other words: empty, ` bias`, ` gelu`, ` bias gelu` or ` gated silu`."""
        first = " bias" if self.bias else " gated" if self.gated else ""
        return f"{first}{f' {self.activation}' if self.activation else ''}"

    @property
    def products(self) -> int:
        """How many matrix products of M×N×K it has."""
        return 2 if self.gated else 1

    @property
    def flops(self) -> int:
        """Floating-point operations; a multiply-add counts as two."""
        return 2 * self.m * self.n * self.k * self.products

    @property
    def operand_bytes(self) -> int:
        """Bytes of all buffers together: the minimum traffic through device memory."""
        weights = self.products * self.k * self.n
        return 2 * (self.m * self.k + weights + self.m * self.n + (self.n if self.bias else 0))


def too_large(m: int, n: int, k: int) -> str:
    """Why a product is larger than tasks may be; empty where it is not."""
    largest = max(m * k, k * n, m * n)
    if largest <= MAX_OPERAND_ELEMENTS:
        return ""
    return f"the largest operand of {m}x{n}x{k} has {largest} elements; at most 2^31-1 are supported"


def parse_shape(text: str) -> tuple[int, int, int]:
    """Read `4096x1024x512` or `4096_1024_512` as (m, n, k).

    Raises: UsageError for anything else, zero and negative sizes included.
    """
    match = re.fullmatch(r"(\d{1,9})[xX_×](\d{1,9})[xX_×](\d{1,9})", text.strip(), flags=re.ASCII)
    if not match:
        raise UsageError(f"shape {text!r} is not M x N x K in positive whole numbers; write it like 4096x1024x512")
    m, n, k = (int(part) for part in match.groups())
    if 0 in (m, n, k):
        raise UsageError(f"shape {text!r} has a zero size; M, N and K must each be at least 1")
    return m, n, k
