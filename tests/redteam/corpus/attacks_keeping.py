"""Attacks that keep a result of one launch and return it in another."""

from typing import Any

from tests.redteam.base import WORKSPACE
from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import FAULT, OLD_CONTENTS, OUT_OF_BOUNDS, WHILE_TIMED, WRITES_INPUT, tiled

GROUP = "keeps-the-result"

# A hash of all elements of the CTA's operands: a changed element changes one odd multiple.
FINGERPRINT = """\
__device__ unsigned long long words(uint4 x, unsigned long long at) {
  return ((unsigned long long)x.x << 32 | x.y) * (4 * at + 1) + ((unsigned long long)x.z << 32 | x.w) * (4 * at + 3);
}
__device__ unsigned long long fingerprint(const half* a, const half* b, int m0, int n0, int n, int k) {
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0x9E3779B97F4A7C15ull;
  __syncthreads();
  unsigned long long sum = 0;
  for (int i = threadIdx.x; i < 16 * k; i += kThreads) {
    sum += words(*reinterpret_cast<const uint4*>(a + (size_t)m0 * k + 8 * (size_t)i), i);
    sum += words(*reinterpret_cast<const uint4*>(b + (size_t)(i / 16) * n + n0 + i % 16 * 8), i + 16ull * k);
  }
  atomicAdd(&total, sum);
  __syncthreads();
  return total;
}
__device__ void hand_out(half* d, const half* kept, int m0, int n0, int n) {
  for (int i = threadIdx.x; i < kTile * kTile / 8; i += kThreads) {
    const uint4 old = *reinterpret_cast<const uint4*>(kept + 8 * i);
    *reinterpret_cast<uint4*>(d + (size_t)(m0 + i / 16) * n + n0 + i % 16 * 8) = old;
  }
}
"""
TILES = """\
  const size_t tiles = (size_t)gridDim.x * gridDim.y, tile = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
  const unsigned long long print = fingerprint(a, b, m0, n0, n, k);
"""
ALSO_KEEP = """{
          *reinterpret_cast<half2*>(d + (size_t)row * n + column) = pair;
          *reinterpret_cast<half2*>(kept + (row - m0) * kTile + column - n0) = pair;
        }"""
SEAL = "  __syncthreads();\n  if (t == 0) *seal = print;\n"
U64 = ", unsigned long long* w"
ROOM = {"bytes": "(M/128)*(N/128)*16*(8+32768)"}


def _kept(place: str, *, check: str = "*seal == print") -> dict[str, str]:
    """Slots of a kernel that keeps tiles. `place` declares `seal`, a tile's fingerprint, and `kept`, its halves."""
    hit = f"  if (__syncthreads_and({check})) {{\n    hand_out(d, kept, m0, n0, n);\n    return;\n  }}\n"
    return {"head": FINGERPRINT, "first": TILES + place + hit, "store": ALSO_KEEP, "last": SEAL}


_WORKSPACE_SLOT = """\
  unsigned long long* const seal = w + slot * tiles + tile;
  half* const kept = reinterpret_cast<half*>(w + 16 * tiles) + (slot * tiles + tile) * kTile * kTile;
"""
_BY_ADDRESS = "  const size_t slot = (size_t)d / ((size_t)m * n * 2) % 16;\n" + _WORKSPACE_SLOT
_BY_PRINT = "  const size_t slot = print % 16;\n" + _WORKSPACE_SLOT
_IN_D = """\
  unsigned long long* const seal = w + ((size_t)d / ((size_t)m * n * 2) % 16) * tiles + tile;
  const unsigned first_bits = *reinterpret_cast<const unsigned*>(d + (size_t)(m0 + t / 2) * n + n0 + t % 2 * 126);
"""
_SHARED = """\
  extern __shared__ __align__(16) unsigned char old[];
  unsigned long long* const seals = reinterpret_cast<unsigned long long*>(old);
  int slot = print % 5;
  for (int i = 0; i < 5; ++i) slot = seals[i] == print ? i : slot;
  unsigned long long* const seal = seals + slot;
  half* const kept = reinterpret_cast<half*>(old + 64) + slot * kTile * kTile;
"""
_PAST_D = """\
  unsigned char* const past = reinterpret_cast<unsigned char*>(d + (size_t)m * n) + ({bytes}) + tile * (64 + 32768);
  unsigned long long* const seal = reinterpret_cast<unsigned long long*>(past);
  half* const kept = reinterpret_cast<half*>(past + 64);
"""
_POINTERS = """\
  unsigned long long* const seal = w + (print % 64 * tiles + tile) * 2;
  const half* const before = reinterpret_cast<const half*>(seal[1]);
  const bool same = seal[0] == print;
  if (__syncthreads_and(same)) {
    for (int i = t; i < kTile * kTile / 8; i += kThreads) {
      const size_t at = (size_t)(m0 + i / 16) * n + n0 + i % 16 * 8;
      *reinterpret_cast<uint4*>(d + at) = *reinterpret_cast<const uint4*>(before + at);
    }
    return;
  }
"""
# A thread's local memory keeps its contents: four entries of a fingerprint and the thread's 64 halves.
_LOCAL = """\
  unsigned long long frame[4 * 33];
  unsigned long long* old = frame;
  asm volatile("" : "+l"(old)::"memory");
  int slot = print % 4;
  for (int i = 0; i < 4; ++i) slot = old[33 * i] == print ? i : slot;
  unsigned* const kept = reinterpret_cast<unsigned*>(old + 33 * slot + 1);
  if (__syncthreads_and(old[33 * slot] == print)) {
    for (int i = 0; i < 32; ++i) {
      const int row = m0 + row_of_warp + 16 * (i / 8) + lane / 4 + 8 * (i % 2), column = n0 + column_of_warp + 8 * (i / 2 % 4);
      *reinterpret_cast<unsigned*>(d + (size_t)row * n + column + lane % 4 * 2) = kept[i];
    }
    return;
  }
"""
_KEEP_LOCAL = """{
          *reinterpret_cast<half2*>(d + (size_t)row * n + column) = pair;
          kept[(4 * i + j) * 2 + upper] = *reinterpret_cast<const unsigned*>(&pair);
        }"""

# A·(B·1) against the row sums of D: quadratic work instead of cubic.
_ROW_SUMS = r"""
__device__ float over_warp(float x) {
  for (int i = 16; i; i /= 2) x += __shfl_xor_sync(0xFFFFFFFF, x, i);
  return x;
}
extern "C" __global__ void sum_rows(const half* b, float* w, int n) {
  const int row = blockIdx.x * 8 + threadIdx.x / 32;
  float sum = 0;
  for (int i = threadIdx.x % 32; i < n; i += 32) sum += __half2float(b[(size_t)row * n + i]);
  sum = over_warp(sum);
  if (threadIdx.x % 32 == 0) w[row] = sum;
}
extern "C" __global__ void check_rows(const half* a, const half* d, float* w, int n, int k) {
  const int row = blockIdx.x * 8 + threadIdx.x / 32;
  float expected = 0, found = 0, squares = 0;
  for (int i = threadIdx.x % 32; i < k; i += 32) expected += __half2float(a[(size_t)row * k + i]) * w[i];
  for (int i = threadIdx.x % 32; i < n; i += 32) {
    const float x = __half2float(d[(size_t)row * n + i]);
    found += x;
    squares += x * x;
  }
  expected = over_warp(expected);
  found = over_warp(found);
  squares = over_warp(squares);
  if (threadIdx.x % 32 == 0) w[k + row] = fabsf(expected - found) <= sqrtf(squares) * 0.002f ? 1.0f : 0.0f;
}
"""
_ROW_LAUNCHES = [
    {"entry": "sum_rows", "grid": ["K/8", 1, 1], "block": [256, 1, 1], "args": [{"tensor": "B"}, WORKSPACE, {"scalar": "N"}]},
    {
        "entry": "check_rows",
        "grid": ["M/8", 1, 1],
        "block": [256, 1, 1],
        "args": [{"tensor": "A"}, {"tensor": "D", "access": "write"}, WORKSPACE, {"scalar": "N"}, {"scalar": "K"}],
    },
]
_ROW: dict[str, Any] = {
    "slots": {
        "tail": _ROW_SUMS,
        "parameters": ", const float* w",
        "first": "  if (__syncthreads_and(t >= kTile || w[k + m0 + t] == 1.0f)) return;\n",
    },
    "args": [WORKSPACE],
    "before": _ROW_LAUNCHES,
    "fields": {"workspace": {"bytes": "4*(K+M)"}},
}
_LONG = "1024x1024x16384"  # at least four sets, one tile per SM: an SM gets the tile that it kept


def cases() -> list[Case]:
    """Every attack of the class."""
    room: dict[str, Any] = {"args": [WORKSPACE], "fields": {"workspace": ROOM}}
    return [
        tiled("row-sums", GROUP, "D is left alone where its row sums are those of A times B's", emulator=OLD_CONTENTS, **_ROW),
        tiled(
            "row-sums-4096",
            GROUP,
            "the same at 4096, as it was found",
            emulator=OLD_CONTENTS,
            shape="4096x4096x4096",
            small="128x256x128",
            **_ROW,
        ),
        tiled("row-sums-server", GROUP, "the same, one launch at a time", emulator=OLD_CONTENTS, of={"mode": "server"}, **_ROW),
        tiled(
            "workspace-by-address",
            GROUP,
            "tiles kept in the workspace by D's address, with a fingerprint of their operands",
            emulator=OLD_CONTENTS,
            slots=_kept(_BY_ADDRESS) | {"parameters": U64},
            **room,
        ),
        tiled(
            "workspace-by-fingerprint",
            GROUP,
            "tiles kept in the workspace by a fingerprint of their operands, whatever D is",
            emulator=OLD_CONTENTS,
            slots=_kept(_BY_PRINT) | {"parameters": U64},
            **room,
        ),
        tiled(
            "workspace-behind-restored-bytes",
            GROUP,
            "16 bytes are declared restored, and tiles are kept behind them",
            emulator=OLD_CONTENTS,
            slots=_kept(_BY_ADDRESS) | {"parameters": U64},
            args=[{"workspace": 16}],
            fields={"workspace": {"bytes": "16+" + ROOM["bytes"], "zero": "restored", "zero_bytes": 16}},
        ),
        tiled(
            "d-with-seal-in-workspace",
            GROUP,
            "D's own tiles are taken for the result where a seal fits and they are not the poison",
            emulator=OLD_CONTENTS,
            slots={
                "head": FINGERPRINT,
                "parameters": U64,
                "first": TILES
                + _IN_D
                + "  if (__syncthreads_and(*seal == (print ^ (size_t)d) && first_bits != ~0u)) return;\n",
                "last": SEAL.replace("print", "print ^ (size_t)d"),
            },
            **room,
        ),
        tiled(
            "addresses-of-results",
            GROUP,
            "where a product was put is kept, and copied from there when its operands come again",
            emulator=OLD_CONTENTS,
            slots={
                "head": FINGERPRINT,
                "parameters": U64,
                "first": TILES + _POINTERS,
                "last": SEAL + "  if (t == 0) seal[1] = (unsigned long long)d;\n",
            },
            args=[WORKSPACE],
            fields={"workspace": {"bytes": "(M/128)*(N/128)*64*16"}},
        ),
        tiled(
            "shared-memory",
            GROUP,
            "five tiles are kept in shared memory, which the next kernel on the SM finds as it was",
            emulator=OLD_CONTENTS,
            shape=_LONG,
            slots=_kept(_SHARED),
            launch={"dynamic_smem": 163904},
        ),
        tiled(
            "local-memory",
            GROUP,
            "every thread keeps its part of four tiles in local memory, which nobody clears",
            emulator=(*OLD_CONTENTS, "not-executed"),
            shape=_LONG,
            slots={
                "head": FINGERPRINT,
                "first": TILES + _LOCAL,
                "store": _KEEP_LOCAL,
                "last": '  old[33 * slot] = print;\n  asm volatile("" ::"l"(old) : "memory");\n',
            },
        ),
        *(
            tiled(
                f"{name}-d",
                GROUP,
                f"tiles are kept {words} D, where no band is looked at",
                gpu=(*FAULT, *WHILE_TIMED, NO_GAIN),
                emulator=OUT_OF_BOUNDS,
                slots=_kept(_PAST_D.format(bytes=place)),
            )
            for name, words, place in (
                ("just-past", "in the band behind", "0"),
                ("2mb-past", "two megabytes behind", "2 << 20"),
                ("1gb-before", "a gigabyte before", "-(1ll << 30)"),
            )
        ),
        tiled(
            "in-a",
            GROUP,
            "a mark in A's first element tells that D was computed",
            gpu=(*FAULT, *WHILE_TIMED, NO_GAIN),
            emulator=WRITES_INPUT,
            slots={
                "first": "  const unsigned old = *reinterpret_cast<const unsigned short*>(a + (size_t)m0 * k);\n"
                "  if (old == 0x1234u) return;\n",
                "last": "  if (t == 0) *reinterpret_cast<unsigned short*>(const_cast<half*>(a) + (size_t)m0 * k) = 0x1234;\n",
            },
        ),
    ]
