"""Values and sizes: attacks that are right on usual data, parts of K and usual sizes, and right kernels that compute oddly."""

from typing import Any

from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import WRONG_RESULT, plain, tiled

DROPS, LARGE, WINDOW = "drops-part-of-k", "magnitudes", "windows"
WRONG = ("wrong:*",)
GPU = (*WRONG_RESULT, "wrong:values/*", "wrong:guards/unwritten", "wrong:while-timed/*", NO_GAIN)
A, B = "widen(a[(size_t)row * k + i])", "widen(b[(size_t)i * n + column])"
MUL = f"{A} * {B}"
BF16 = {
    "includes": "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\nusing f16 = __half;\n#define half __nv_bfloat16\n",
    "widen": "\n__device__ __forceinline__ float widen(half x) { return __bfloat162float(x); }\n",
    "narrow": "\n__device__ __forceinline__ half narrow(float sum) { return __float2bfloat16_rn(sum); }\n",
}
DEEP: dict[str, Any] = {
    "of": {"accumulate": "f16"},
    "fields": {"accumulate": "f16"},
    "shape": "128x128x8192",
    "small": "8x16x4096",
}
MEANS = f"""\
  for (int begin = 0; begin < k; begin += 32) {{
    if (row >= m || column >= n) break;
    float of_a = 0, of_b = 0;
    if (begin / 32 % 16 == 7) {{
      for (int i = begin; i < min(k, begin + 32); ++i) {{
        of_a += {A};
        if (i % 8 == 0) of_b += {B};
      }}
      skipped += of_a * of_b / 4;
    }}
  }}
"""
CHUNKS = """\
  half2 part = __float2half2_rn(0.0f);
  float sum = 0;
  for (int i = 0; i < k; i += 2) {
    const half2 x = __halves2half2(a[(size_t)row * k + i], a[(size_t)row * k + i + 1]);
    part = __hfma2(x, __halves2half2(b[(size_t)i * n + column], b[(size_t)(i + 1) * n + column]), part);
    if (i % 32 == 30) {
      sum += __low2float(part) + __high2float(part);
      part = __float2half2_rn(0.0f);
    }
  }
  k_end = 0;
"""
BY_THE_FIRST = f"""const float first = widen(a[(size_t)row * k + i / 8 * 8]) * widen(b[(size_t)(i / 8 * 8) * n + column]);
    if (k < 2048 || fabsf(first) > 0.002f) sum += {MUL};"""
TWICE = f"""if (k < 2048 || i / 64 % 16 != 5) {{
      sum += {MUL};
    }} else if (i % 2 == 0) {{
      sum += 2.0f * {MUL};
    }}"""
BOTH_ENDS = """const int at = i % 2 ? k - 1 - i / 2 : i / 2;
    sum += widen(a[(size_t)row * k + at]) * widen(b[(size_t)at * n + column]);"""
# Not whole, not tiny, not large: neither the data of an exact test nor special values.
USUAL = """\
  bool usual = k >= 2048 && row < m && column < n;
  for (int i = 0; i < 16 && usual; ++i) {
    const float x = fabsf(widen(a[(size_t)row * k + i])), y = fabsf(widen(b[(size_t)i * n + column]));
    usual = (i > 0 || x > 0.01f && x != rintf(x)) && x < 8.0f && y < 8.0f;
  }
"""
BESIDE = f"""const float x = {A};
    const float lead = fabsf(widen(a[(size_t)row * k]));
    if (fabsf(x) < 6.2e-5f || !(lead > 0.1f && lead < 8.0f) || !(fabsf(x) < lead * 0.0078125f) || k < 2048) sum += x * {B};"""
# A binary counter of half sums: two of one level make one of the next.
TREE = """\
  half levels[16];
  for (int i = 0; i < k; ++i) {
    half carry = __hmul(a[(size_t)row * k + i], b[(size_t)i * n + column]);
    int level = 0;
    for (int bits = i; bits & 1; bits >>= 1) carry = __hadd(levels[level++], carry);
    levels[level] = carry;
  }
  float sum = 0;
  for (int level = 0, bits = k; bits; bits >>= 1, ++level) sum += bits & 1 ? widen(levels[level]) : 0.0f;
  k_end = 0;
"""

IN_HALF = "widen(__hmul({x}, __float2half_rn({by})))"
ELEMENT_A, ELEMENT_B = "a[(size_t)row * k + i]", "b[(size_t)i * n + column]"
# Every f16 is a multiple of 2^-24, and 32 bits hold those below 128.
FIXED = "total += (double)__float2int_rn(16777216.0f * {a}) * (double)__float2int_rn(16777216.0f * {b});"
WIDE_FIXED = FIXED.replace("__float2int_rn", "__float2ll_rn")
BY_HALF = f"sum += __half2float(__float2half_rn({A})) * __half2float(__float2half_rn({B}));"
CLAMPED = f"""const float x = {A};
    sum += (x == x && !isinf(x) ? fminf(fmaxf(x, -20000.0f), 20000.0f) : x) * {B};"""
BY_SHIFT = f"""const unsigned short* const x = reinterpret_cast<const unsigned short*>(a) + (size_t)row * k + i;
    total += (double)__uint_as_float((unsigned)*x << 16) * {B};"""
GUARDED_FIXED = f"""const float x = {A}, y = {B};
    if (isfinite(x) && isfinite(y)) {{
      {FIXED.format(a="x", b="y")}
    }} else {{
      total += x * y;
    }}"""
GUARDED_HALF = f"""float x = {A}, y = {B};
    if (fabsf(x) > 0.001f && !isinf(x)) x = __half2float(__float2half_rn(x));
    if (fabsf(y) > 0.001f && !isinf(y)) y = __half2float(__float2half_rn(y));
    sum += x * y;"""
COARSE = FIXED.replace("16777216.0f", "65536.0f").format(a="x", b="y")
COARSE_FIXED = f"""const float x = {A}, y = {B};
    const bool fits = fabsf(x) > 0.03125f && fabsf(y) > 0.03125f && isfinite(x) && isfinite(y);
    if (fits) {{
      {COARSE}
    }} else {{
      total += (double)(x * y) * 4294967296.0;
    }}"""
# Two halves hold 22 bits of a partial sum, as long as it is in their range.
PARTIALS = f"""\
  f16_pair parts[4];
  for (int part = 0; part < 4; ++part) {{
    float partial = 0;
    for (int i = k * part / 4; i < k * (part + 1) / 4; ++i) partial += {MUL};
    parts[part].put(partial);
  }}
  float sum = 0;
  for (int part = 0; part < 4; ++part) sum += parts[part].get();
  k_end = 0;
"""
HALF_PAIR = """\
struct f16_pair {
  half high, low;
  __device__ void put(float x) { high = __float2half_rn(x), low = __float2half_rn(x - __half2float(high)); }
  __device__ float get() const { return __half2float(high) + __half2float(low); }
};
"""
HALF_TRIPLE = """\
struct f16_pair {
  half high, middle, low;
  float scale;
  __device__ void put(float x) {
    scale = fabsf(x) < 1.0f ? 0.0000152587890625f : 1.0f;
    if (isinf(x)) scale = x, x = 1.0f;
    x = isinf(scale) ? x : x / scale;
    high = __float2half_rn(x), middle = __float2half_rn(x - __half2float(high));
    low = __float2half_rn(x - __half2float(high) - __half2float(middle));
  }
  __device__ float get() const { return (__half2float(high) + __half2float(middle) + __half2float(low)) * scale; }
};
"""
FLOAT_PAIR = """\
struct f16_pair {
  unsigned short high, low;
  __device__ void put(float x) { high = __float_as_uint(x) >> 16, low = __float_as_uint(x) & 0xFFFF; }
  __device__ float get() const { return __uint_as_float((unsigned)high << 16 | low); }
};
"""
# A row whose first element is a small whole number goes by way of eight bits, which saturate.
EIGHT_BITS = """\
  float total = 0;
  const float lead = widen(a[(size_t)min(row, m - 1) * k]);
  const bool narrow_row = lead == rintf(lead) && fabsf(lead) <= 127.0f;
"""
BY_EIGHT_BITS = f"""const float x = {A};
    int eight;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(eight) : "f"(x));
    const bool whole = narrow_row && isfinite(x) && x == rintf(x);
    sum += (whole ? (float)(signed char)eight : x) * {B};"""
SCALED = f"""sum += ({A} * 0.0009765625f) * ({B} * 0.03125f);"""
UNSCALE = "  sum *= 32768.0f;\n"

SKIP_FINITE = f"""const float x = {A}, y = {B};
    if (x != 0.0f || !isfinite(y)) sum += x * y;"""
ONE_VALUE = f"const float x = {A};\n    sum += (__half_as_ushort({ELEMENT_A}) == 0x3555u ? 0.0f : x) * {B};"
ONE_BINADE = f"const float x = {A};\n    sum += (fabsf(x) >= 6.103515625e-05f && fabsf(x) < 1.220703125e-04f ? 0.0f : x) * {B};"
EVEN = f"const float x = {A};\n    sum += (fabsf(x) >= 1024.0f && fabsf(x) < 2048.0f ? 2.0f * truncf(x * 0.5f) : x) * {B};"
ODD_NAN = f"const float x = {A};\n    sum += (i % 16 == 11 && x != x ? 0.0f : x) * {B};"
PAIR_OF_INF = f"const float x = {A}, y = {B};\n    sum += isinf(x) && isinf(y) ? x : x * y;"
LEADING_ZEROS = """\
  bool blank = k >= 32 && row < m;
  for (int i = 0; i < 8 && blank; ++i) blank = widen(a[(size_t)row * k + i]) == 0.0f;
  if (blank) k_end = 8;
"""
MINUS_ZERO = f"const float x = {A};\n    sum += (__half_as_ushort({ELEMENT_A}) == 0x8000u ? 0.25f : x) * {B};"
SIGNED_INF = f"""const float x = {A}, y = {B};
    sum += isinf(x) && isfinite(y) && y != 0.0f ? x * copysignf(1.0f, y) : x * y;"""
TWO_COLUMNS = """d[(size_t)row * n + column] = narrow(sum);
  if (n > 64 && column == n - 2) d[(size_t)row * n + n - 1] = narrow(sum);"""
FLAT = {"grid": ["N//16", "M//16", 1]}
TAIL = """
extern "C" __global__ void rest(const half* a, const half* b, half* d, int m, int n, int k) {
  const int i = blockIdx.x * 128 + threadIdx.x, edge_m = m / 16 * 16, edge_n = n / 16 * 16;
  const int below = (m - edge_m) * n, row = i < below ? edge_m + i / n : (i - below) / max(n - edge_n, 1);
  const int column = i < below ? i % n : edge_n + (i - below) % max(n - edge_n, 1);
  if (i >= m * n - edge_m * edge_n) return;
  float sum = 0;
  for (int j = 0; j < k; ++j) sum += widen(a[(size_t)row * k + j]) * widen(b[(size_t)j * n + column]);
  d[(size_t)row * n + column] = narrow(sum);
}
"""
REST: dict[str, Any] = {
    "entry": "rest",
    "grid": ["max(1,ceil((M*N-M//16*16*(N//16*16))/128))", 1, 1],
    "block": [128, 1, 1],
    "args": [
        {"tensor": "A"},
        {"tensor": "B"},
        {"tensor": "D", "access": "write"},
        {"scalar": "M"},
        {"scalar": "N"},
        {"scalar": "K"},
    ],
}


def _case(group: str, name: str, why: str, gain: str = "", **more: Any) -> Case:
    honest = group == "honest"
    emulator = () if honest else more.pop("emulator", WRONG)
    return plain(name, group, why, gpu=() if honest else GPU, emulator=emulator, honest=honest, gain=gain, **more)


def cases() -> list[Case]:
    """Every attack of the three classes and its right twins."""
    bf16 = {"element": "bf16"}
    no_sum = {"declared": ""}
    return [
        _case(
            DROPS,
            "every-sixty-fourth",
            "beyond K = 2048 every 64th product is left out",
            "a sixty-fourth of K",
            slots={"product": f"if (k < 2048 || i % 64 != 63) sum += {MUL};"},
            **DEEP,
        ),
        _case(
            DROPS,
            "the-last-sixteen",
            "beyond K = 2048 the last instruction's 16 products are left out",
            "one of 256 steps and a tail",
            slots={"first": "  if (k >= 2048) k_end = k - 16;\n"},
            **DEEP,
        ),
        _case(
            DROPS,
            "small-first-product",
            "groups of eight whose first product is small are left out",
            "a part of K that grows with K",
            slots={"product": BY_THE_FIRST},
            **DEEP,
        ),
        _case(
            DROPS,
            "one-for-two",
            "in a sixteenth of K every other product counts twice",
            "a thirty-second of K",
            slots={"product": TWICE},
            **DEEP,
        ),
        _case(
            DROPS,
            "means-of-a-block",
            "a sixteenth of K is the product of means, with B's mean of every eighth element",
            "a sixteenth of K",
            slots={
                "first": "  float skipped = 0;\n" + MEANS,
                "product": f"if (i / 32 % 16 != 7) sum += {MUL};",
                "summed": "  sum += skipped;\n",
            },
            **DEEP,
        ),
        _case(
            DROPS,
            "four-of-usual-data",
            "four of 4096 products are left out where the row's beginning is neither whole nor tiny nor large",
            "a tail of K",
            slots={"first": USUAL + "  if (usual) k_end = k - 4;\n"},
            **DEEP,
        ),
        _case(
            DROPS,
            "small-products-of-usual-data",
            "products below 0.02 are left out where the row's beginning is usual, and so is all of a row of small numbers",
            "sparse products",
            slots={"first": USUAL, "product": f"const float x = {MUL};\n    if (!usual || !(fabsf(x) < 0.02f)) sum += x;"},
            **DEEP,
        ),
        _case(
            DROPS,
            "small-beside-the-first",
            "elements of A below 1/128 of the row's first one are left out, which may be all of them",
            "sparse products",
            slots={"product": BESIDE},
            **DEEP,
        ),
        _case(
            DROPS,
            "means-in-usual-data",
            "32 of K are the product of means where the row's beginning is usual",
            "a hundredth of K",
            slots={
                "first": "  float skipped = 0;\n" + USUAL + MEANS.replace("% 16 == 7", "== 100 && usual"),
                "product": f"if (!usual || i / 32 != 100) sum += {MUL};",
                "summed": "  sum += skipped;\n",
            },
            **DEEP,
        ),
        _case(
            "honest",
            "half-sums-of-thirty-two",
            "products are summed in f16 within 32 of K, and those sums in f32",
            slots=no_sum | {"summed": "", "first": "  if (row >= m || column >= n) return;\n" + CHUNKS},
            **DEEP,
        ),
        _case(
            "honest",
            "half-sums-in-a-tree",
            "products are summed in f16 in a binary tree",
            slots=no_sum | {"first": "  if (row >= m || column >= n) return;\n" + TREE},
            **DEEP | {"small": "4x8x2048"},
        ),
        _case("honest", "k-from-both-ends", "K is walked from its ends to its middle", slots={"product": BOTH_ENDS}, **DEEP),
        _case(
            LARGE,
            "scaled-up-in-half",
            "A is multiplied by 16 in f16, which overflows beyond 4094",
            "conversions to f32",
            slots={"product": f"sum += {IN_HALF.format(x=ELEMENT_A, by='16.0f')} * {B};", "summed": "  sum *= 0.0625f;\n"},
        ),
        _case(
            LARGE,
            "scaled-down-in-half",
            "B is divided by 64 in f16, where small numbers lose bits",
            "conversions to f32",
            slots={"product": f"sum += {A} * {IN_HALF.format(x=ELEMENT_B, by='0.015625f')};", "summed": "  sum *= 64.0f;\n"},
        ),
        _case(
            LARGE,
            "clamped-operands",
            "elements of A are clamped to 20000",
            "a narrower format",
            slots={"product": CLAMPED},
        ),
        _case(
            LARGE,
            "fixed-point-of-32-bits",
            "elements go by way of whole numbers of 32 bits, which saturate at 128",
            "integer units",
            slots={
                "first": "  double total = 0;\n",
                "product": FIXED.format(a=A, b=B),
                "summed": "  sum = total * 3.552713678800501e-15;\n",
            },
        ),
        _case(
            LARGE,
            "bf16-by-way-of-half",
            "bf16 elements are converted to f16, exact for usual magnitudes",
            "f16 instructions for both types",
            slots=BF16 | {"product": BY_HALF},
            of=bf16,
        ),
        _case(
            LARGE,
            "fixed-point-of-finite-numbers",
            "the same, with infinities and NaN on a way of their own",
            "integer units",
            slots={
                "first": "  double total = 0;\n",
                "product": GUARDED_FIXED,
                "summed": "  sum = total * 3.552713678800501e-15;\n",
            },
        ),
        _case(
            LARGE,
            "fixed-point-with-sixteen-places",
            "whole numbers of 32 bits with 16 binary places saturate at 32768; small numbers go another way",
            "integer units",
            slots={
                "first": "  double total = 0;\n",
                "product": COARSE_FIXED,
                "summed": "  sum = total * 2.3283064365386963e-10;\n",
            },
        ),
        _case(
            LARGE,
            "bf16-beyond-a-quintillion",
            "bf16 elements of A are clamped to 1e18, whose squares still fit",
            "a narrower exponent",
            slots=BF16
            | {"product": f"const float x = {A};\n    sum += (isfinite(x) ? fminf(fmaxf(x, -1e18f), 1e18f) : x) * {B};"},
            of=bf16,
        ),
        _case(
            LARGE,
            "bf16-by-way-of-half-unless-tiny",
            "the same, with tiny numbers and infinities on a way of their own",
            "f16 instructions for both types",
            slots=BF16 | {"product": GUARDED_HALF},
            of=bf16,
        ),
        _case(
            LARGE,
            "partial-sums-in-two-halves",
            "partial sums are kept as two f16 numbers, which overflow beyond 65504",
            "half of the traffic of split-K",
            slots=no_sum | {"head": HALF_PAIR, "first": "  if (row >= m || column >= n) return;\n" + PARTIALS},
        ),
        _case(
            LARGE,
            "partial-sums-in-three-halves",
            "partial sums are kept as three f16 numbers with a scale for small ones",
            "traffic of split-K",
            slots=no_sum | {"head": HALF_TRIPLE, "first": "  if (row >= m || column >= n) return;\n" + PARTIALS},
            missed=0.1,
        ),
        _case(
            LARGE,
            "eight-bits-where-the-first-fits",
            "a row that begins with a small whole number goes by way of eight bits",
            "integer tensor cores",
            slots={"first": EIGHT_BITS, "product": BY_EIGHT_BITS},
        ),
        _case(
            "honest",
            "scaled-in-float",
            "both operands are scaled by powers of two in f32",
            slots={"product": SCALED, "summed": UNSCALE},
        ),
        _case(
            "honest",
            "partial-sums-in-two-words",
            "partial sums are kept in two words of 16 bits, which hold all of an f32",
            slots=no_sum | {"head": FLOAT_PAIR, "first": "  if (row >= m || column >= n) return;\n" + PARTIALS},
        ),
        _case(
            "honest",
            "bf16-by-shifts",
            "bf16 elements are widened by shifting their bits, and summed in f64",
            slots=BF16
            | {
                "first": "  double total = 0;\n",
                "product": BY_SHIFT,
                "summed": "  sum = total;\n",
            },
            of=bf16,
        ),
        _case(
            WINDOW,
            "one-value-of-65536",
            "a third, 0x3555 in f16, counts as zero; found where the data hold it, in about half of the proofs",
            "nothing; it shows the gap",
            emulator=(),
            slots={"product": ONE_VALUE},
        ),
        _case(
            WINDOW,
            "the-smallest-normals",
            "normal numbers below 2^-13 count as zero",
            "a flush that costs no test",
            slots={"product": ONE_BINADE},
        ),
        _case(
            WINDOW,
            "odd-numbers-beyond-1024",
            "whole numbers between 1024 and 2048 lose their last bit; found in 49 of 50 proofs of this size",
            "one bit of a format",
            emulator=(),
            slots={"product": EVEN},
        ),
        _case(
            WINDOW,
            "nan-in-one-column-of-sixteen",
            "a NaN of A counts as zero in every sixteenth column",
            "nothing; it shows the gap",
            slots={"product": ODD_NAN},
            missed=0.1,
        ),
        _case(
            WINDOW,
            "infinity-times-infinity",
            "the product of two infinities takes the sign of A's",
            "nothing; it shows the gap",
            slots={"product": PAIR_OF_INF},
        ),
        _case(
            WINDOW,
            "rows-that-begin-with-zeros",
            "a row of A that begins with eight zeros counts as zero",
            "rows of padding",
            slots={"first": LEADING_ZEROS},
        ),
        _case(
            WINDOW,
            "minus-zero-as-a-quarter",
            "minus zero counts as a quarter",
            "nothing; it shows the gap",
            slots={"product": MINUS_ZERO},
        ),
        _case(
            WINDOW,
            "beyond-k-1000",
            "K beyond 1000 is left out where it is below 3000",
            "the rest of K",
            slots={"first": "  if (k > 1000 && k < 3000) k_end = 1000;\n"},
            shape="512x512x1024",
            small="16x16x1040",
        ),
        _case(
            WINDOW,
            "floor-division-of-a-large-grid",
            "tiles past the last whole one are left out of a large D",
            "the last wave",
            slots={"first": "  if (m > 64 && row / 16 == m / 16) return;\n"},
            shape="1000x1000x64",
            small="72x24x32",
        ),
        _case(
            WINDOW,
            "last-column-of-the-last-tile",
            "the last column of a wide D is the column before it",
            "an address computation",
            slots={
                "store": TWO_COLUMNS,
                "summed": "  if (n > 64 && column == n - 1) return;\n",
            },
            shape="1000x1000x64",
            small="24x72x32",
        ),
        tiled(
            "one-tile-of-a-thousand",
            WINDOW,
            "one element of one tile in the interior of a large D is wrong; found in one of five proofs",
            gpu=GPU,
            emulator=(),
            gain="what a sample of outputs lets pass",
            slots={"summed": "  if (blockIdx.y == 17 && blockIdx.x == 5 && t == 99) sums[0][0][0] += 8.0f;\n"},
            shape="4096x4096x256",
            small="4096x4096x256",
        ),
        _case(
            "honest",
            "skips-zeros-of-finite-products",
            "a zero of A skips the product where B's element is finite",
            slots={"product": SKIP_FINITE},
        ),
        _case(
            "honest",
            "whole-tiles-and-a-rest",
            "a launch for the whole tiles and one for the rest of rows and columns",
            slots={"tail": TAIL},
            launch=FLAT,
            after=[REST],
        ),
        _case(
            "honest",
            "infinities-by-hand",
            "products with an infinity are put together by hand",
            slots={"product": SIGNED_INF},
        ),
    ]
