"""The number formats of compiled code: of matrix instructions by their names, and of what rounds to 16 bits or less.

A module's task names the format of its products and tensors. Code that computes in a narrower one is refused, whatever the
tests of its results would say.
Covered: mma, wmma, wgmma and tcgen05 in PTX; HMMA, IMMA, DMMA, QMMA and their warpgroup forms of sm_80 to sm_100; conversions
and arithmetic whose result is f16, bf16 or fp8.
Not covered: integer matrix instructions, and numbers that are cut off by moves of bits; the tests of results judge those.
"""

import re
from collections.abc import Iterator

from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement

_FP8 = "e4m3 e5m2 e2m1 e2m3 e3m2"
_PTX_TYPE = re.compile(rf"\.(f32|f16|bf16|tf32|f64|s32|u8|s8|u4|s4|b1|{_FP8.replace(' ', '|')})(?=\.|$)")
_TCGEN05_KIND = re.compile(r"\.kind::(\w+)")
_TCGEN05_FORMATS = {"f16": "half", "tf32": "tf32", "i8": "integer"}
# How SASS names formats: after the shape; f16 where it names none of them.
_SASS_FORMATS = {"TF32": "tf32", "BF16": "bf16", **{name.upper(): "fp8" for name in _FP8.split()}}
_SASS_WORDS = {"DMMA": {"f64"}, "QMMA": {"fp8"}, "QGMMA": {"fp8"}, "OMMA": {"fp8"}, "UTCQMMA": {"fp8"}}
_INTEGER_WORDS = re.compile(r"(?:IMMA|IGMMA|BMMA|BGMMA|UTCIMMA)\b")

# Types of PTX with 16 bits or less, and instructions whose type is not that of what they compute.
_NARROW = frozenset({*(f"{name}{count}" for name in ("f16", "bf16") for count in ("", "x2")), *_FP8.split()}) | frozenset(
    f"{name}x{count}" for name in _FP8.split() for count in (2, 4)
)
_NO_RESULT = frozenset({"mma", "wmma", "wgmma", "tcgen05", "setp", "testp"})
# F2FP makes two numbers of 16 bits, or of 8; others name the format of their result first.
_NARROW_SASS = re.compile(r"F2FP\.(?!.*TF32)|(?:F2F|I2F)\.(?:F16|BF16)\b|MUFU\.\w+\.F16\b")

# Formats of products that a task's arithmetic allows. Every number of f16 and of bf16 is one of tf32.
_ALLOWED = {
    Arithmetic.F32: {"f64", "integer"},
    Arithmetic.TF32: {"f64", "integer", "tf32"},
    Arithmetic.F16: {"f64", "integer", "tf32", "half", "f16"},
    Arithmetic.BF16: {"f64", "integer", "tf32", "half", "bf16"},
}
_PRODUCTS = re.compile(r"aten\.(?:\w*mm|\w*convolution\w*|\w*dot_product\w*|linear|matmul|einsum|\w*bilinear)\.")
_HALVES = {BufferElement.F16: "f16", BufferElement.BF16: "bf16"}


def formats(mma: str) -> set[str]:
    """Formats of A and B of one matrix instruction: `f16`, `bf16`, `half` (one of these), `tf32`, `f64`, `fp8` or `integer`.

    Empty for UTCHMMA, whose name does not say it; that of the PTX instruction does.
    """
    word, *parts = mma.split(".")
    if not word.isupper():
        return _of_ptx(mma)
    if _INTEGER_WORDS.match(word):
        return {"integer"}
    if word.startswith("UTC"):
        return _SASS_WORDS.get(word, set())
    return _SASS_WORDS.get(word) or {_SASS_FORMATS[part] for part in parts if part in _SASS_FORMATS} or {"f16"}


def _of_ptx(mma: str) -> set[str]:
    """A name lists the types D, A, B, C (`mma`, most of `wmma`), D, C (`wmma` of f16) or D, A, B (`wgmma`)."""
    if mma.startswith("tcgen05"):
        return {_TCGEN05_FORMATS.get(kind, "fp8") for kind in _TCGEN05_KIND.findall(mma)}
    types = _PTX_TYPE.findall(mma)
    of_operands = types[1:3] if len(types) > 2 else ["f16"]
    return {_format(kind) for kind in of_operands}


def _format(kind: str) -> str:
    return kind if kind in ("f16", "bf16", "tf32", "f64") else "fp8" if kind in _FP8.split() else "integer"


def narrows_in_ptx(parts: tuple[str, ...]) -> bool:
    """Whether an instruction's result is a number of 16 bits or less, by the parts of its opcode."""
    if parts[0] in _NO_RESULT:
        return False
    if parts[0] in ("cvt", "set"):  # the types of the result and of the source
        return len(parts) > 2 and parts[-2] in _NARROW
    return not _NARROW.isdisjoint(parts[1:])


def narrows_in_sass(opcode: str) -> bool:
    """The same for SASS. Arithmetic of halves is not told by it, because ptxas moves constants with it."""
    return bool(_NARROW_SASS.match(opcode))


def arithmetic_rules(
    mma: tuple[str, ...], narrowing: tuple[str, ...], arithmetic: Arithmetic, products: frozenset[str], values: frozenset[str]
) -> Iterator[Rejected]:
    """What code breaks that computes in a narrower format than its task.

    `mma`, `narrowing`: names of its matrix instructions, and of what rounds to 16 bits or less. `products`, `values`: 16-bit
    formats in which the module itself multiplies, and in which it holds values, besides its task's arithmetic.
    """
    allowed = _ALLOWED[arithmetic] | products
    for name in mma:
        for kind in sorted(formats(name) - allowed):
            rule = "arithmetic-tf32" if kind == "tf32" else "arithmetic-half"
            yield Rejected(rule=rule, message=f"{name} multiplies in {kind}; the task asks for {arithmetic}")
    if arithmetic in (Arithmetic.F32, Arithmetic.TF32) and not values:
        for name in narrowing:
            yield Rejected(rule="arithmetic-half", message=f"{name} rounds to 16 bits or less; the task asks for {arithmetic}")


def module_rules(mma: tuple[str, ...], narrowing: tuple[str, ...], task: ModuleTask) -> Iterator[Rejected]:
    nodes = task.graph.nodes
    products = {each.element for node in nodes if _PRODUCTS.match(node.op) for each in node.results}
    values = {each.element for node in nodes for each in node.results} | {buffer.element for buffer in task.buffers}
    return arithmetic_rules(mma, narrowing, task.arithmetic, _halves(products), _halves(values))


def _halves(elements: set[BufferElement]) -> frozenset[str]:
    return frozenset(_HALVES[each] for each in elements if each in _HALVES)
