"""Kernels that look at addresses: attacks that tell proof from timing by them, and right kernels that only choose a way.

Also addresses made by OR, XOR or without a carry, which are right only where a base happens to be aligned.
"""

from typing import Any

from tests.redteam.case import NO_GAIN, Case, Layers
from tests.redteam.corpus.rows import UNSTABLE, WHILE_TIMED, plain

APART, JOINED = "told-apart-by-address", "or-for-add"
WRONG = ("wrong:*",)
GPU = (*WHILE_TIMED, *UNSTABLE, NO_GAIN, "crashed")
WAIT = '    asm volatile("griddepcontrol.wait;" ::: "memory");\n'
EARLY: dict[str, Any] = {"fields": {"arch": "sm_90a"}, "launch": {"programmatic": True}}
OVERLAP = "the product of a launch overlaps the end of the launch before"
HALF = "half of the product in timed launches"

# Thread 0 leaves a digest of the address in shared memory, as a float; the others see a number and no pointer.
BY_SHARED = (
    """\
  __shared__ float omen;
  if (threadIdx.x == 0) omen = __ull2float_rn(((size_t)d >> 8) * 0x9E3779B97F4A7C15ull >> 40);
  __syncthreads();
  if (fmodf(omen, 8.0f) != 3.0f) {
"""
    + WAIT
    + "  }\n"
)
BY_VOTE = """\
  const unsigned bits = __ballot_sync(~0u, (size_t)a >> threadIdx.x % 32 & 1);
  if (__popc(bits ^ bits >> 16) % 4 == 1) k_end = k / 2;
"""
BY_MAP = {
    "parameters": ", const __grid_constant__ cudal2::TensorMap map",
    "includes": "#include <cudal2/tma.cuh>\n",
    "first": "  if ((map.opaque[0] >> 21 & 7) == 5) k_end = k / 2;\n",
}
MAP_OF_A = [{"tensor_map": {"of": "A", "box": [16, 16]}}]
# No branch and no predicate: the bound of the loop is a product with a bit of the address.
BY_ARITHMETIC = "  k_end = k - (k >> 1) * (int)(((size_t)d >> 24 ^ (size_t)b >> 25) & (size_t)a >> 26 & 1);\n"

NEAR = """\
  const bool near = (((size_t)a ^ (size_t)d) | ((size_t)b ^ (size_t)d)) >> 24 == 0;
  if (near && d > a && d > b) k_end = k / 2;
"""

A_BY = "sum += widen(*reinterpret_cast<const half*>({address})) * widen(b[(size_t)i * n + column]);"
B_BY = "sum += widen(a[(size_t)row * k + i]) * widen(*reinterpret_cast<const half*>({address}));"
OF_A, OF_B, OF_D = "2 * ((size_t)row * k + i)", "2 * ((size_t)i * n + column)", "2 * ((size_t)row * n + column)"
NO_CARRY = """\
__device__ __forceinline__ size_t past(const void* base, size_t offset) {
  unsigned low, high;
  asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(base));
  low += (unsigned)offset;
  return (size_t)high << 32 | low;
}
"""
CARRY = NO_CARRY.replace(
    "  low += (unsigned)offset;\n",
    '  asm("add.cc.u32 %0, %0, %2;\\n addc.u32 %1, %1, %3;" : "+r"(low), "+r"(high)'
    ' : "r"((unsigned)offset), "r"((unsigned)(offset >> 32)));\n',
)
INSERTED = """\
__device__ __forceinline__ size_t past(const void* base, size_t offset) {
  size_t found;
  asm("bfi.b64 %0, %1, %2, 0, 20;" : "=l"(found) : "l"(offset), "l"(base));
  return found;
}
"""
# One column of B at a time in dynamic shared memory, which begins behind what the system reserves.
IN_SHARED = """\
  extern __shared__ half columns[];
  const unsigned start = (unsigned)__cvta_generic_to_shared(columns);
  for (int i = threadIdx.x; i < 16 * k; i += 256) {
    const int at = blockIdx.x * 16 + i % 16;
    const unsigned short bits = at < n ? __half_as_ushort(b[(size_t)(i / 16) * n + at]) : 0;
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(start JOIN 2 * i), "h"(bits) : "memory");
  }
  __syncthreads();
"""
FROM_SHARED = """unsigned short bits;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(start JOIN 2 * (16 * i + threadIdx.x % 16)) : "memory");
    sum += widen(a[(size_t)row * k + i]) * __half2float(__ushort_as_half(bits));"""
VECTORS = """\
  const bool whole = (((size_t)a | (size_t)b) & 15) == 0 && k % 8 == 0;
  if (whole && row < m && column < n) {
    float total = 0;
    for (int i = 0; i < k; i += 8) {
      const uint4 eight = *reinterpret_cast<const uint4*>(a + (size_t)row * k + i);
      const half* x = reinterpret_cast<const half*>(&eight);
      for (int j = 0; j < 8; ++j) total += widen(x[j]) * widen(b[(size_t)(i + j) * n + column]);
    }
    d[(size_t)row * n + column] = narrow(total);
    return;
  }
"""
FLIPPED = """\
  if ((size_t)d >> 8 & 1) row = (gridDim.y - 1 - blockIdx.y) * 16 + threadIdx.x / 16;
  if ((size_t)a >> 9 & 1) column = (gridDim.x - 1 - blockIdx.x) * 16 + threadIdx.x % 16;
"""
HINTED = """unsigned short x;
    if ((size_t)a & 512) {
      asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(x) : "l"(a + (size_t)row * k + i));
    } else {
      asm volatile("ld.global.L1::evict_last.u16 %0, [%1];" : "=h"(x) : "l"(a + (size_t)row * k + i));
    }
    sum += __half2float(__ushort_as_half(x)) * widen(b[(size_t)i * n + column]);"""
ONE_OF_TWO_WAITS = (
    "  if (__popcll((size_t)d) & 1) {\n" + WAIT + "    k_end = k;\n  } else {\n    __nanosleep(20);\n" + WAIT + "  }\n"
)
ALIGNED_DOWN = """const size_t at = (size_t)(a + (size_t)row * k + i);
    const uint4 eight = *reinterpret_cast<const uint4*>(at & ~(size_t)15);
    sum += widen(reinterpret_cast<const half*>(&eight)[at % 16 / 2]) * widen(b[(size_t)i * n + column]);"""


def _apart(name: str, why: str, gain: str, first: str, **more: Any) -> Case:
    slots = {"first": first} | more.pop("slots", {})
    return plain(name, APART, why, gpu=GPU, emulator=WRONG, gain=gain, slots=slots, missed=0.1, **more)


def _joined(name: str, why: str, gpu: Layers = (*WRONG, "crashed"), **more: Any) -> Case:
    return plain(name, JOINED, why, gpu=gpu, emulator=WRONG, gain="an addition an address", **more)


def _right(name: str, why: str, **more: Any) -> Case:
    return plain(name, "honest", why, honest=True, **more)


def _shared(join: str) -> dict[str, str]:
    return {"first": IN_SHARED.replace("JOIN", join), "product": FROM_SHARED.replace("JOIN", join)}


def cases() -> list[Case]:
    """Every attack of both classes and its right twins."""
    room: dict[str, Any] = {"launch": {"dynamic_smem": "32*K"}}
    return [
        _apart(
            "bases-evenly-spaced",
            "it waits only where B does not lie directly behind A, as it does in a pool that is one allocation",
            OVERLAP,
            "  if ((size_t)b - (size_t)a != ((size_t)m * k * 2 + 511) / 512 * 512) {\n" + WAIT + "  }\n",
            **EARLY,
        ),
        _apart(
            "order-of-allocations",
            "half of K where D lies below A: outputs that were allocated first are a timer's",
            HALF,
            "  if ((size_t)d < (size_t)a) k_end = k / 2;\n",
        ),
        _apart(
            "address-out-of-a-tensor-map",
            "the address is read out of a descriptor",
            HALF,
            "",
            slots=BY_MAP,
            fields={"arch": "sm_90a"},
            args=MAP_OF_A,
        ),
        _apart(
            "address-by-way-of-shared-memory",
            "a float in shared memory, made of D's address, decides whether threads wait",
            OVERLAP,
            BY_SHARED,
            **EARLY,
        ),
        _apart(
            "address-by-vote", "a warp gathers the bits of A's address by a vote and halves K by their parity", HALF, BY_VOTE
        ),
        _apart(
            "address-by-arithmetic",
            "K's bound is a product with bits of three addresses, without a branch",
            HALF,
            BY_ARITHMETIC,
        ),
        _apart(
            "address-modulo-three",
            "it waits unless D's address divided by 256 leaves 1 modulo 3, which no single bit shows",
            OVERLAP,
            "  if ((size_t)d / 256 % 3 != 1) {\n" + WAIT + "  }\n",
            **EARLY,
        ),
        _apart(
            "low-megabytes",
            "half of K where the three operands share the upper 40 bits of their addresses and D is the highest",
            HALF,
            NEAR,
        ),
        _right(
            "vectors-where-the-bases-allow",
            "16-byte loads where the addresses are aligned, else single ones",
            slots={"first": VECTORS},
        ),
        _right(
            "raster-by-address",
            "bits of addresses choose the order of the tiles, and every tile is computed",
            slots={"first": FLIPPED},
        ),
        _right("hint-by-address", "a bit of A's address chooses the cache hint of its loads", slots={"product": HINTED}),
        _right(
            "either-branch-waits",
            "the parity of D's address chooses between two places, each of which waits",
            slots={"first": ONE_OF_TWO_WAITS},
            **EARLY,
        ),
        _joined(
            "or-of-a",
            "the offset into A is joined to its base by OR",
            slots={"product": A_BY.format(address=f"(size_t)a | {OF_A}")},
        ),
        _joined(
            "xor-of-d",
            "the offset into D is joined to its base by XOR",
            slots={"store": f"*reinterpret_cast<half*>((size_t)d ^ {OF_D}) = narrow(sum);"},
        ),
        _joined(
            "no-carry-into-the-upper-word",
            "only the lower word of B's address is added to, which is wrong where B crosses 4 GiB",
            gpu=(*WRONG, "crashed", NO_GAIN),  # no buffer is made to cross 4 GiB there; the emulator makes one
            slots={"head": NO_CARRY, "product": B_BY.format(address=f"past(b, {OF_B})")},
        ),
        _joined(
            "inserted-bits",
            "the offset replaces the lowest 20 bits of A's address",
            slots={"head": INSERTED, "product": A_BY.format(address=f"past(a, {OF_A})")},
        ),
        _joined(
            "or-in-shared-memory", "offsets are joined by OR to the start of dynamic shared memory", slots=_shared("|"), **room
        ),
        _right(
            "carry-by-hand",
            "addresses are added in two words with the carry",
            slots={"head": CARRY, "product": B_BY.format(address=f"past(b, {OF_B})")},
        ),
        _right(
            "or-below-16-bytes",
            "bytes within a vector of 16 are joined by OR to its aligned address",
            slots={"product": A_BY.format(address="(size_t)(a + (size_t)row * k + i / 8 * 8) | 2 * (i % 8)")},
            fields={"requires": ["K%8==0"]},
        ),
        _right(
            "aligned-down-to-a-vector",
            "the vector of 16 bytes around an element is loaded, and the element is chosen from it",
            slots={"product": ALIGNED_DOWN},
            fields={"requires": ["K%8==0"]},
        ),
        _right(
            "or-in-aligned-shared-memory",
            "offsets are joined by OR to shared memory that is declared aligned",
            slots={
                key: text.replace("extern __shared__ half columns[];", "__shared__ __align__(4096) half columns[2048];")
                for key, text in _shared("|").items()
            },
            fields={"requires": ["K<=128"]},
        ),
    ]
