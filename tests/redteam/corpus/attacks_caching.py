"""Attacks on the cold caches: operands kept in L2 until their next use, or prefetched before it."""

from typing import Any

from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import FAULT, WHILE_TIMED, tiled

GROUP = "caches"
LAYERS = (NO_GAIN, *FAULT, *WHILE_TIMED)
SHAPES: dict[str, Any] = {"shape": "1024x1024x1024"}

POLICY = """\
__device__ __forceinline__ unsigned long long stay() {{
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, {share};" : "=l"(policy));
  return policy;
}}
__device__ __forceinline__ void copy16(unsigned target, const half* source) {{
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
               ::"r"(target), "l"(source), "l"(stay()) : "memory");
}}
"""
LOADS = """\
__device__ __forceinline__ void copy16(unsigned target, const half* source) {
  uint4 x;
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(source), "l"(policy) : "memory");
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
"""
STORES = """{
          unsigned long long policy;
          asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
          asm volatile("st.global.L2::cache_hint.u32 [%0], %1, %2;" ::"l"(d + (size_t)row * n + column),
                       "r"(*reinterpret_cast<const unsigned*>(&pair)), "l"(policy) : "memory");
        }"""
# In a pool, the same operand of the next set follows an operand.
PREFETCH = """\
  for (int i = t; i < kTile * k / 64; i += kThreads) {{
    const half* next_a = a + (size_t)m * k + (size_t)m0 * k + 64 * (size_t)i;
    const half* next_b = b + (size_t)n * k + (size_t)n0 * k + 64 * (size_t)i;
    asm volatile("{what} [%0];" ::"l"(next_a) : "memory");
    asm volatile("{what} [%0];" ::"l"(next_b) : "memory");
  }}
"""
READ_NEXT = """\
  unsigned found = 0;
  for (int i = t; i < kTile * k / 64; i += kThreads) {
    found |= *reinterpret_cast<const unsigned*>(a + (size_t)m * k + (size_t)m0 * k + 64 * (size_t)i);
    found |= *reinterpret_cast<const unsigned*>(b + (size_t)n * k + (size_t)n0 * k + 64 * (size_t)i);
  }
  asm volatile("" ::"r"(found));
"""
BULK = """\
  if (t < 16) {
    const half* next_a = a + (size_t)m * k + (size_t)(m0 + 8 * t) * k;
    const half* next_b = b + (size_t)n * k + (size_t)(n0 + 8 * t) * k;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(next_a), "r"(16 * k) : "memory");
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(next_b), "r"(16 * k) : "memory");
  }
"""
RAISE = """\
  for (int i = t; i < kTile * k / 64; i += kThreads) {
    asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(a + (size_t)m0 * k + 64 * (size_t)i) : "memory");
  }
"""


def cases() -> list[Case]:
    """Every attack of the class. The emulator has no caches, so it refuses only what goes beyond an operand."""
    beyond = ("wrong:emulator/global-out-of-bounds",)
    return [
        tiled(
            "all-loads-evict-last",
            GROUP,
            "every load is marked to stay in L2",
            gpu=LAYERS,
            slots={"copy": POLICY.format(share="1.0")},
            **SHAPES,
        ),
        tiled(
            "half-of-loads-evict-last",
            GROUP,
            "half of the lines are marked to stay, as many as L2 may keep",
            gpu=LAYERS,
            slots={"copy": POLICY.format(share="0.5")},
            **SHAPES,
        ),
        tiled(
            "evict-last-on-loads",
            GROUP,
            "the same with plain loads that go by way of registers",
            gpu=LAYERS,
            slots={"copy": LOADS},
            **SHAPES,
        ),
        tiled(
            "operands-and-d-evict-last",
            GROUP,
            "D is marked to stay as well, so that its next use finds its lines",
            gpu=LAYERS,
            slots={"copy": POLICY.format(share="1.0"), "store": STORES},
            **SHAPES,
        ),
        tiled(
            "prefetches-the-next-set",
            GROUP,
            "the operands behind its own, the next launch's, are prefetched into L2",
            gpu=LAYERS,
            emulator=beyond,
            slots={"last": PREFETCH.format(what="prefetch.global.L2")},
            **SHAPES,
        ),
        tiled(
            "prefetches-the-next-set-to-stay",
            GROUP,
            "the same with a mark to stay",
            gpu=LAYERS,
            emulator=beyond,
            slots={"last": PREFETCH.format(what="prefetch.global.L2::evict_last")},
            **SHAPES,
        ),
        tiled(
            "bulk-prefetch-of-the-next-set",
            GROUP,
            "the same by the copy engine",
            gpu=LAYERS,
            emulator=beyond,
            slots={"last": BULK},
            fields={"arch": "sm_90a"},
            **SHAPES,
        ),
        tiled(
            "reads-the-next-set",
            GROUP,
            "a word of every two lines of the next set is read, so that they are in L2",
            gpu=LAYERS,
            emulator=beyond,
            slots={"last": READ_NEXT},
            **SHAPES,
        ),
        tiled(
            "raises-its-own-lines",
            GROUP,
            "A is prefetched again with a mark to stay, when it has been used",
            gpu=LAYERS,
            slots={"last": RAISE},
            **SHAPES,
        ),
    ]
