"""Attacks on gaps in the test data: special values that are skipped, flushed, lost or replaced."""

from tests.redteam.case import Case, Layers
from tests.redteam.corpus.rows import WRONG_RESULT, plain

GROUP = "special-values"
LAYERS: Layers = (*WRONG_RESULT, "wrong:guards/unwritten", "wrong:values/*")

BF16 = "#include <cuda_bf16.h>\n#define half __nv_bfloat16\n"
TINY_HALF, TINY_BF16 = "6.103515625e-05f", "1.17549435e-38f"
FLUSHING = """
__device__ __forceinline__ float widen(half x) {{
  const float wide = {wide}(x);
  return fabsf(wide) < {tiny} ? 0.0f : wide;
}}
"""
PLAIN_BF16 = {
    "includes": BF16,
    "widen": "\n__device__ __forceinline__ float widen(half x) { return __bfloat162float(x); }\n",
    "narrow": "\n__device__ __forceinline__ half narrow(float sum) { return __float2bfloat16_rn(sum); }\n",
}
FLUSHED = "sum += {a} * {b};"
A, B = "widen(a[(size_t)row * k + i])", "widen(b[(size_t)i * n + column])"
FLUSH = "(fabsf({x}) < {tiny} ? 0.0f : {x})"

# Finite numbers that the type holds are changed; NaN and infinities are not.
CLAMP = "(isfinite({x}) ? fminf(fmaxf({x}, -{most}), {most}) : {x})"
SCALED = "sum += (__half2float(__hmul({a}, __float2half(16.0f))) * {b}) * 0.0625f;"
RAW_A, RAW_B = "a[(size_t)row * k + i]", "b[(size_t)i * n + column]"
BY_WAY = """
__device__ __forceinline__ float widen(half x) {{
  const float wide = __half2float(x);
  return isfinite(wide) {more}? {narrowed} : wide;
}}
"""
E4M3 = "fminf(fmaxf(wide, -448.0f), 448.0f)"
E5M2 = "__uint_as_float(__float_as_uint(wide) & 0xFFE00000u)"


def _narrow(body: str, name: str = "__float2half_rn") -> str:
    return f"\n__device__ __forceinline__ half narrow(float sum) {{\n  {body}\n  return {name}(sum);\n}}\n"


def _values(name: str, why: str, slots: dict[str, str], **fields: str) -> Case:
    return plain(name, GROUP, why, layers=LAYERS, slots=slots, of=dict(fields))


def cases() -> list[Case]:
    """Every attack of the class."""
    bf16 = {"element": "bf16"}
    tiny_a, tiny_b = (FLUSH.format(x=x, tiny=TINY_HALF) for x in (A, B))
    wide_a, wide_b = (FLUSH.format(x=x, tiny=TINY_BF16) for x in (A, B))
    return [
        _values(
            "nan-not-stored",
            "a result that is NaN is not stored",
            {"store": "if (sum == sum) d[(size_t)row * n + column] = narrow(sum);"},
        ),
        _values(
            "nan-becomes-zero", "a result that is NaN is stored as zero", {"narrow": _narrow("if (sum != sum) sum = 0.0f;")}
        ),
        _values(
            "infinity-saturates",
            "infinities become the largest number",
            {"narrow": _narrow("sum = fminf(fmaxf(sum, -65504.0f), 65504.0f);")},
        ),
        _values(
            "infinity-loses-its-sign",
            "minus infinity becomes infinity",
            {"narrow": _narrow("if (isinf(sum)) sum = INFINITY;").replace("INFINITY", "__int_as_float(0x7F800000)")},
        ),
        _values(
            "overflow-becomes-nan",
            "what overflows becomes a NaN",
            {"narrow": _narrow("if (fabsf(sum) >= 65520.0f) sum = __int_as_float(0x7FC00000);")},
        ),
        _values("subnormals-of-a-flushed", "subnormals of A count as zero", {"product": FLUSHED.format(a=tiny_a, b=B)}),
        _values("subnormals-of-b-flushed", "subnormals of B count as zero", {"product": FLUSHED.format(a=A, b=tiny_b)}),
        _values(
            "subnormals-of-d-flushed",
            "subnormal results are stored as zero",
            {"narrow": _narrow(f"if (fabsf(sum) < {TINY_HALF}) sum = 0.0f;")},
        ),
        _values(
            "bf16-subnormals-of-a-flushed",
            "bf16 subnormals of A count as zero",
            PLAIN_BF16 | {"product": FLUSHED.format(a=wide_a, b=B)},
            **bf16,
        ),
        _values(
            "bf16-subnormals-of-b-flushed",
            "bf16 subnormals of B count as zero",
            PLAIN_BF16 | {"product": FLUSHED.format(a=A, b=wide_b)},
            **bf16,
        ),
        _values(
            "bf16-subnormals-of-d-flushed",
            "bf16 results that are subnormal are stored as zero",
            PLAIN_BF16 | {"narrow": _narrow(f"if (fabsf(sum) < {TINY_BF16}) sum = 0.0f;", "__float2bfloat16_rn")},
            **bf16,
        ),
        _values(
            "zero-of-a-skips",
            "a zero of A skips the product, also with Inf and NaN",
            {"product": f"if ({A} != 0.0f) sum += {A} * {B};"},
        ),
        _values(
            "zero-of-b-skips",
            "a zero of B skips the product, also with Inf and NaN",
            {"product": f"if ({B} != 0.0f) sum += {A} * {B};"},
        ),
        _values("nan-of-b-skips", "a NaN of B counts as zero", {"product": f"if ({B} == {B}) sum += {A} * {B};"}),
        _values(
            "infinity-of-b-clamped",
            "infinities of B count as the largest number",
            {"product": f"sum += {A} * fminf(fmaxf({B}, -65504.0f), 65504.0f);"},
        ),
        _values("clamps-a-at-3000", "A is clamped at 3000", {"product": f"sum += {CLAMP.format(x=A, most='3000.0f')} * {B};"}),
        _values("clamps-b-at-3000", "B is clamped at 3000", {"product": f"sum += {A} * {CLAMP.format(x=B, most='3000.0f')};"}),
        _values(
            "clamps-a-at-32768", "A is clamped at 32768", {"product": f"sum += {CLAMP.format(x=A, most='32768.0f')} * {B};"}
        ),
        _values(
            "clamps-b-at-65472", "B is clamped at 65472", {"product": f"sum += {A} * {CLAMP.format(x=B, most='65472.0f')};"}
        ),
        _values("scales-a-in-half", "A is multiplied by 16 in half", {"product": SCALED.format(a=RAW_A, b=B)}),
        _values("scales-b-in-half", "B is multiplied by 16 in half", {"product": SCALED.format(a=RAW_B, b=A)}),
        _values(
            "large-numbers-saturate-at-16-bits",
            "large numbers are read by way of a 16-bit integer",
            {"widen": BY_WAY.format(more="&& fabsf(wide) > 2048.0f ", narrowed="(float)max(min((int)wide, 32767), -32768)")},
        ),
        _values(
            "large-numbers-saturate-as-e4m3", "numbers above 448 saturate", {"widen": BY_WAY.format(more="", narrowed=E4M3)}
        ),
        _values(
            "large-numbers-keep-two-bits",
            "numbers above 2048 have the two bits of e5m2",
            {"widen": BY_WAY.format(more="&& fabsf(wide) > 2048.0f ", narrowed=E5M2)},
        ),
        _values(
            "smallest-subnormal-flushed",
            "2^-24 counts as zero",
            {"product": FLUSHED.format(a=FLUSH.format(x=A, tiny="1e-7f"), b=FLUSH.format(x=B, tiny="1e-7f"))},
        ),
        _values(
            "bf16-clamped-as-f16",
            "bf16 is clamped to the range of f16",
            PLAIN_BF16 | {"product": f"sum += {CLAMP.format(x=A, most='65504.0f')} * {B};"},
            **bf16,
        ),
        _values(
            "rounds-by-way-of-bf16",
            "sums are cut to bf16 on their way",
            {"narrow": _narrow("sum = __uint_as_float(__float_as_uint(sum) & 0xFFFF0000u);")},
        ),
    ]
