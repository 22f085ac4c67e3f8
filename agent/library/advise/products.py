"""The matrix products of a model: what was multiplied, in which part of a pass, and how often.

A recording of a model and a trace of PyTorch's profiler both give these records.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from cudal2_agent.agent.campaign.shapes import RecordedProduct, ShapeFile
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.task import Activation, ElementType

Part = Literal["forward", "dX", "dW", "backward"]
Operator = Literal["mm", "addmm", "bmm", "baddbmm"]
Gated = Literal["joined", "apart"]
Sizes = Sequence[int]

PARTS: tuple[Part, ...] = ("forward", "dX", "dW", "backward")
OPERATORS: tuple[Operator, ...] = ("mm", "addmm", "bmm", "baddbmm")
# Element types by the names of PyTorch's dtypes and of its profiler. Other names stay as they are.
ELEMENTS = {
    **dict.fromkeys(("torch.float16", "c10::Half"), "f16"),
    **dict.fromkeys(("torch.bfloat16", "c10::BFloat16"), "bf16"),
    **dict.fromkeys(("torch.float32", "float"), "f32"),
    **dict.fromkeys(("torch.float64", "double"), "f64"),
}


class MatrixProduct(Record):
    """One matrix product. `operator`: of PyTorch; `addmm` and `baddbmm` add something to it.

    `bias`: that is N elements, which are added to every row, and nothing is scaled. `activation`: what alone its result goes
    into, in a forward pass. `gated`: two such products of one A, of which the activated one is multiplied by the other. N is
    the width of each; a program has their B joined as one matrix, or apart.
    `element`: as `ElementType` has it, else PyTorch's name. `layout`: as `Layout` has it, or `tt` where both operands are
    stored transposed. `packed`: no operand has gaps or repetitions. `batch`: matrices per call. `part`: of the pass: forward,
    dX (gradient of an input), dW (gradient of a weight), or a product of the backward pass that is neither.
    """

    part: Part
    m: int
    n: int
    k: int
    layout: str
    element: str
    operator: Operator
    batch: int = 1
    packed: bool = True
    bias: Annotated[bool, Field(exclude_if=lambda bias: not bias)] = False
    activation: Annotated[Activation | None, Field(exclude_if=lambda activation: activation is None)] = None
    gated: Annotated[Gated | None, Field(exclude_if=lambda gated: gated is None)] = None

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def operands(self) -> str:
        """How they are stored, such as `tn f16`, with ` bias` and ` gelu` behind it where these belong to the product."""
        activation = f" {self.activation}" if self.activation is not None else ""
        first = " bias" if self.bias else " gated" if self.gated else ""
        return f"{self.layout} {self.element}{first}{activation}"

    @property
    def alone(self) -> "MatrixProduct":
        """Without its activation; of a gated one each product that PyTorch runs."""
        n = 2 * self.n if self.gated == "joined" else self.n
        return self.model_copy(update={"n": n, "activation": None, "gated": None})

    @property
    def products(self) -> int:
        """How many products PyTorch runs for it."""
        return 2 if self.gated == "apart" else 1


class CountedProduct(Record):
    """`calls`: in the whole recording. `gpu_us`: time of the kernels of all these calls; None where no GPU was traced.

    `again`: calls that stand with the product alone too, of which this is the form that compiled programs run.
    """

    product: MatrixProduct
    calls: int
    gpu_us: float | None = None
    again: Annotated[bool, Field(exclude_if=lambda again: not again)] = False


class Recording(Record):
    """The products of a model. `passes`: how many passes `calls` and times add up.

    `gpu`: the GPU of a trace, and `capability` its compute capability as one number, such as 90; None where none was traced.
    `gpu_us`: time of all kernels and copies of the trace. Unit: microseconds.
    """

    products: tuple[CountedProduct, ...]
    passes: int = 1
    gpu: str | None = None
    capability: int | None = None
    gpu_us: float | None = None

    def alone(self) -> "Recording":
        """The products without their activations."""
        return self._changed(lambda product: product.alone)

    def both_ways(self) -> "Recording":
        """The products without their activations, and those that have one with it again."""
        return self._and_again(self.alone(), [one for one in self.products if one.product.activation is not None])

    def gated_both_ways(self) -> "Recording":
        """The products with their activations, and those of gated layers once more without."""
        gated = [one for one in self.products if one.product.gated is not None]
        return self if not gated else self._and_again(self._changed(lambda one: one.alone if one.gated else one), gated)

    def _and_again(self, once: "Recording", again: Sequence[CountedProduct]) -> "Recording":
        counted = (one.model_copy(update={"again": True}) for one in again)
        return self.model_copy(update={"products": in_order((*once.products, *counted))})

    def in_half_precision(self, element: str) -> "Recording":
        """The same products, those of other elements as if they had this one.

        Raises: ValueError for a recording with times: those of other elements say nothing.
        """
        half = tuple(ElementType)
        other = [one for one in self.products if one.product.element not in half]
        if other and self.gpu_us is not None:
            raise ValueError("times of a trace belong to its element types")
        if not other:
            return self
        return self._changed(lambda one: one if one.element in half else one.model_copy(update={"element": element}))

    def _changed(self, change: Callable[[MatrixProduct], MatrixProduct]) -> "Recording":
        """Other products, with the calls and the times of equal ones added up. The same recording where nothing changes."""
        if all(change(one.product) == one.product for one in self.products):
            return self
        calls, times = Counter[MatrixProduct](), dict[MatrixProduct, float | None]()
        for one in self.products:
            product = change(one.product)
            before = times.get(product, 0.0)
            calls[product] += one.calls * (one.product.products if product.gated is None else 1)
            times[product] = None if before is None or one.gpu_us is None else before + one.gpu_us
        found = (CountedProduct(product=one, calls=count, gpu_us=times[one]) for one, count in calls.items())
        return self.model_copy(update={"products": in_order(found)})


def read_product(
    operator: Operator, part: Part, element: str, a: tuple[Sizes, Sizes], b: tuple[Sizes, Sizes], added: Sizes | None = None
) -> MatrixProduct | None:
    """The product of two operands, each given by shape and strides; None for one without elements.

    A batch that shares B is one product of a longer A. `added`: the shape of what is added without a scale, if anything is.
    """
    (a_shape, _), (b_shape, b_strides) = a, b
    m, k, n = a_shape[-2], a_shape[-1], b_shape[-1]
    batch = math.prod(a_shape[:-2])
    if 0 in (m, n, k, batch):
        return None
    if batch > 1 and b_strides[0] == 0:
        m, batch = m * batch, 1
    layout = _letter(*b) + _letter(*a)
    packed = _packed(*a) and _packed(*b)
    return MatrixProduct(
        part=part,
        m=m,
        n=n,
        k=k,
        layout=layout,
        element=element,
        operator=operator,
        batch=batch,
        packed=packed,
        bias=operator == "addmm" and added is not None and tuple(added) == (n,),
    )


def in_order(counted: Iterable[CountedProduct]) -> tuple[CountedProduct, ...]:
    """The most frequent first."""

    def place(one: CountedProduct) -> tuple[object, ...]:
        product = one.product
        kind = product.activation or "", product.gated or ""
        return -one.calls * product.batch, tuple(product.alone.model_dump().values()), *kind

    return tuple(sorted(counted, key=place))


def shape_file(counted: Iterable[CountedProduct]) -> ShapeFile:
    """The shapes for `campaign run`, without activations, the most frequent first. A batch counts once per matrix."""
    counts: Counter[tuple[Part, int, int, int, str, bool]] = Counter()
    for one in counted:
        product, calls = one.product.alone, one.calls * one.product.products
        counts[product.part, product.m, product.n, product.k, product.layout, product.bias] += calls * product.batch
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ShapeFile(
        products=tuple(
            RecordedProduct(part=part, m=m, n=n, k=k, layout=layout, count=count, bias=bias)
            for (part, m, n, k, layout, bias), count in order
        )
    )


def _letter(shape: Sizes, strides: Sizes) -> str:
    """`t` for a matrix whose columns are contiguous. One that neither rows nor columns are is copied by rows before use."""
    return "t" if strides[-1] != 1 and shape[-1] > 1 and strides[-2] == 1 else "n"


def _packed(shape: Sizes, strides: Sizes) -> bool:
    """Whether rows follow each other without gaps, or columns do. The strides of sizes of 1 do not count."""
    (rows, columns), (by_row, by_column) = shape[-2:], strides[-2:]
    row_major = (columns == 1 or by_column == 1) and (rows == 1 or by_row == columns)
    column_major = (rows == 1 or by_row == 1) and (columns == 1 or by_column == rows)
    return row_major or column_major
