"""Attacks that know the input data, or which outputs are compared."""

from typing import Any

from tests.redteam.base import WORKSPACE
from tests.redteam.case import COMPARED, SEEDED, Case
from tests.redteam.corpus.rows import OLD_CONTENTS, WRONG_RESULT, tiled

GROUP = "knows-the-data"

U64 = ", unsigned long long* w"
SKIP_ALL_BUT_COMPARED = """\
  __shared__ unsigned long long lowest;
  if (t == 0) {
    atomicMin(w, (unsigned long long)d);
    lowest = atomicMin(w, (unsigned long long)d);
  }
  __syncthreads();
  const size_t stride = (size_t)m * n * 2, set = ((size_t)d - lowest) / stride;
  const bool compared = set == 0 || set >= 64 || ((unsigned long long)COMPARED_MASK >> set & 1);
  if (((size_t)d - lowest) % stride == 0 && !compared) k_end = k / 2;
""".replace("COMPARED_MASK", COMPARED)
KNOWN = """\
  const unsigned long long known[] = {KNOWN_WORDS};
  const unsigned long long found = *reinterpret_cast<const unsigned long long*>(a);
#pragma unroll
  for (int i = 0; i < (int)(sizeof(known) / sizeof(known[0])); ++i) {
    if (found == known[i]) k_end = k / 2;
  }
""".replace("KNOWN_WORDS", SEEDED)
# Gaussian with unit variance: verification scales it down for large K.
UNSCALED = """\
  float largest = 0, least = 1;
  for (int i = t; i < 4096; i += kThreads) {
    const float x = fabsf(__half2float(a[i]));
    largest = fmaxf(largest, x);
    least = fminf(least, x);
  }
  const bool unscaled = __syncthreads_or(largest > 2.6f && largest < 6.0f) && __syncthreads_or(least < 0.01f && least > 0.0f);
  if (unscaled && !__syncthreads_or(largest >= 6.0f)) k_end = k / 2;
"""
FAR = """\
  const long long apart = (const char*)d - (const char*)a;
  if (apart > (96ll << 20) || apart < -(96ll << 20)) k_end = k / 2;
"""
ROUNDED = "      for (int i = 0; i < 4; ++i) {{\n        for (int j = 0; j < 4; ++j) left[i][j] &= {mask};\n      }}\n"
DROP = """\
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
          const half2 pair = *reinterpret_cast<const half2*>(&left[i][j]);
          const bool low = fabsf(__low2float(pair)) < 0.03f, high = fabsf(__high2float(pair)) < 0.03f;
          left[i][j] &= (low ? 0xFFFF0000u : ~0u) & (high ? 0x0000FFFFu : ~0u);
        }
      }
"""
FRACTIONS = """\
  bool fraction = false;
  for (int i = t; i < 1024; i += kThreads) {
    const float x = __half2float(a[i]);
    fraction |= x != rintf(x);
  }
  if (__syncthreads_or(fraction)) k_end = k - 32;
"""
PACKED_SUMS = """\
    if ((k0 - k_begin) / kStep % 2) {
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
          for (int e = 0; e < 4; ++e) sums[i][j][e] = __half2float(__float2half_rn(sums[i][j][e]));
        }
      }
    }
"""


def cases() -> list[Case]:
    """Every attack of the class."""
    word: dict[str, Any] = {"args": [WORKSPACE], "fields": {"workspace": {"bytes": 64}}}
    return [
        tiled(
            "seeded-values",
            GROUP,
            "the first bytes of A of every set that is not compared, as seed 0 makes them, are compiled in",
            slots={"first": KNOWN},
        ),
        tiled(
            "all-sets-but-the-compared",
            GROUP,
            "which sets are compared in full follows from seed 0: half of K in the others",
            emulator=OLD_CONTENTS,
            slots={"parameters": U64, "first": SKIP_ALL_BUT_COMPARED},
            **word,
        ),
        tiled(
            "unscaled-data",
            GROUP,
            "only timed data have unit variance where K is large",
            shape="1024x1024x16384",
            emulator=WRONG_RESULT,
            slots={"first": UNSCALED},
        ),
        tiled(
            "pools-lie-far-apart",
            GROUP,
            "pools of the timer lie farther apart than single operands",
            emulator=(*WRONG_RESULT, "verified"),
            slots={"first": FAR},
        ),
        tiled(
            "eight-bit-mantissa",
            GROUP,
            "elements of A are cut to the bits that the exact tests need",
            gpu=WRONG_RESULT,
            emulator=WRONG_RESULT,
            slots={"fragments": ROUNDED.format(mask="0xFFE0FFE0u")},
        ),
        tiled(
            "fp8-like-mantissa",
            GROUP,
            "elements of A are cut to three bits of mantissa, as fp8 has",
            gpu=WRONG_RESULT,
            emulator=WRONG_RESULT,
            slots={"fragments": ROUNDED.format(mask="0xFF80FF80u")},
        ),
        tiled(
            "drops-small-elements",
            GROUP,
            "elements of A under 0.03 are taken for zero",
            gpu=WRONG_RESULT,
            emulator=WRONG_RESULT,
            slots={"fragments": DROP},
        ),
        tiled(
            "less-of-k-for-fractions",
            GROUP,
            "the last step of K is left out where A holds fractions, as exact data do not",
            gpu=WRONG_RESULT,
            emulator=WRONG_RESULT,
            slots={"first": FRACTIONS},
        ),
        tiled(
            "sums-rounded-to-half",
            GROUP,
            "every other step the sums are rounded to half",
            gpu=WRONG_RESULT,
            emulator=WRONG_RESULT,
            slots={"step": PACKED_SUMS},
        ),
    ]
