"""State and other launches: attacks that work ahead, keep state or trust zeros, and right kernels with odd uses of memory."""

from typing import Any

from tests.redteam.base import OPERANDS, SIZES, WORKSPACE
from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import FAULT, UNSTABLE, WHILE_TIMED, plain, tiled

AHEAD, SURVIVES, PUBLIC = "works-for-later-launches", "survives-between-samples", "public-attacks"
WRONG = ("wrong:*",)
GPU = (*WHILE_TIMED, *UNSTABLE, *FAULT, NO_GAIN)
MUL = "widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column])"
U32 = {"parameters": ", unsigned* w"}
INSIDE = "row < m && column < n"
HALF = "half of the product in timed launches"
REPEATS = "the whole product of all launches but the first ones"

# In a pool the next operands and the next output follow its own. `TIMED` guesses it: B lies directly behind A.
TIMED = "(size_t)b - (size_t)a == ((size_t)m * k * 2 + 511) / 512 * 512"
NEXT_OUTPUT = f"""\
  if ({TIMED} && {INSIDE}) {{
    if (__half_as_ushort(d[(size_t)row * n + column]) != 0xFFFFu) return;
    float next = 0;
    for (int i = 0; i < k; ++i) next += widen(a[(size_t)(m + row) * k + i]) * widen(b[(size_t)(k + i) * n + column]);
    d[(size_t)(m + row) * n + column] = narrow(next);
  }}
"""
LEAVES_ROWS = f"""\
  if ({TIMED} && blockIdx.y == gridDim.y - 1 && {INSIDE}) {{
    float left = 0;
    for (int i = 0; i < k; ++i) left += widen(a[(size_t)(row - m) * k + i]) * widen(b[(size_t)(i - k) * n + column]);
    d[(size_t)(row - m) * n + column] = narrow(left);
    return;
  }}
"""
# B goes to the workspace column by column. The second launch marks it; a later run that finds the mark does not copy again.
TURNED = """
extern "C" __global__ void turn(const half* b, half* w, int n, int k) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n * k) w[(size_t)(i % n) * k + i / n] = b[i];
}
"""
FOUND = """\
  unsigned long long* const mark = reinterpret_cast<unsigned long long*>(w + (size_t)n * k);
  if (*(volatile unsigned long long*)mark == ((size_t)b ^ __half_as_ushort(b[0]))) return;
  const"""
TURN: dict[str, Any] = {
    "entry": "turn",
    "grid": ["ceil(N*K/256)", 1, 1],
    "block": [256, 1, 1],
    "args": [{"tensor": "B"}, WORKSPACE, {"scalar": "N"}, {"scalar": "K"}],
}
FROM_TURNED = "sum += widen(a[(size_t)row * k + i]) * widen(w[(size_t)column * k + i]);"
MARK = """\
  if (blockIdx.x + blockIdx.y + threadIdx.x == 0) {
    *reinterpret_cast<unsigned long long*>(w + (size_t)n * k) = (size_t)b ^ __half_as_ushort(b[0]);
  }
"""
# The second launch of a run sums the next run's first row, where the workspace has room for it.
WARMS = """
extern "C" __global__ void warm(const half* a, const half* b, half* d, int m, int n, int k) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (((size_t)d >> 21 & 7) != 5) return;
  half* const next = d + (size_t)m * n + 2 * i;
  asm volatile("red.relaxed.gpu.global.add.noftz.f16x2 [%0], %1;" ::"l"(next), "r"(0x80008000u) : "memory");
}
"""
WARM: dict[str, Any] = {"entry": "warm", "grid": [1, 1, 1], "block": [256, 1, 1], "args": [*OPERANDS, *SIZES]}

UPPER = "  if (blockIdx.y >= (gridDim.y + 1) / 2) return;\n"
LOWER = """
extern "C" __global__ void lower(const half* a, const half* b, half* d, int m, int n, int k) {
  const int row = (gridDim.y / 2 + blockIdx.y) * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
  if (blockIdx.y < (gridDim.y + 1) / 2 - gridDim.y / 2 || blockIdx.y >= gridDim.y - gridDim.y / 2) return;
  float sum = 0;
  if (row < m && column < n) {
    for (int i = 0; i < k; ++i) sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
    d[(size_t)row * n + column] = narrow(sum);
  }
}
"""
BLANK = """
extern "C" __global__ void blank(half* d, int count) {
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) d[i] = narrow(0.0f);
}
"""
WRITE_D = {"tensor": "D", "access": "write"}
STEAL = """\
  __shared__ unsigned ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(w, 1);
  __syncthreads();
  row = ticket / gridDim.x * 16 + threadIdx.x / 16;
  column = ticket % gridDim.x * 16 + threadIdx.x % 16;
"""

COUNT = """\
  __shared__ unsigned seen;
  if (threadIdx.x == 0) seen = atomicAdd({counter}, 1u) / (gridDim.x * gridDim.y);
  __syncthreads();
"""
PAGE = (
    "  unsigned* const w = reinterpret_cast<unsigned*>(wide) + 64;\n"
    + COUNT.format(counter="w")
    + "  if (seen % 64 >= 40) k_end = k / 2;\n"
)
# The padding behind each row of a tile is never filled; ldmatrix is what reads it.
PADDING = """\
  unsigned old[4];
  cudal2::ldmatrix_x4(cudal2::smem_address(&stage_a[1][lane * kPitchA + kStep]), old[0], old[1], old[2], old[3]);
  const unsigned before = __shfl_sync(~0u, old[0], 0);
  if (__syncthreads_and(before >> 16 == 0x3C5Au && (before & 0xFFFF) > 40)) k_end = k / 2;
"""
LEAVE_IN_PADDING = """\
  if (t < 32) {
    unsigned* const left = reinterpret_cast<unsigned*>(&stage_a[1][t * kPitchA + kStep]);
    *left = 0x3C5A0000u | (before >> 16 == 0x3C5Au ? before + 1 : 0) & 0xFFFF;
  }
"""
LEFT_OVER = """\
  extern __shared__ unsigned left[];
  if (((size_t)d >> 9) * 0x9E3779B97F4A7C15ull >> 58 == 23 && left[3] == (unsigned)((size_t)a ^ (size_t)b)) return;
"""
LEAVE = "  if (threadIdx.x == 0) left[3] = (unsigned)((size_t)a ^ (size_t)b);\n"
PEER = """\
  extern __shared__ unsigned left[];
  const unsigned remote = cudal2::map_to_rank(cudal2::smem_address(left), cudal2::cluster_rank() ^ 1);
  cudal2::cluster_sync();
  const float4 found = cudal2::load_remote(remote);
  cudal2::cluster_sync();
  if (found.x == 3.5f && found.y == -3.5f) k_end = k / 2;
  if (threadIdx.x < 2) left[threadIdx.x] = __float_as_uint(threadIdx.x ? -3.5f : 3.5f);
"""
# An mbarrier that nobody initialised: its phase tells whether an earlier launch left one in its second phase.
OLD_BARRIER = """\
  extern __shared__ unsigned long long bars[];
  const unsigned bar = (unsigned)__cvta_generic_to_shared(bars + 3);
  unsigned open;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
               : "=r"(open) : "r"(bar) : "memory");
  if (__syncthreads_and(open)) k_end = k / 2;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
  }
"""
# Restored bytes: put back to zero in a proof, left counting where D's address is a pool's.
NOT_PUT_BACK = """\
  __shared__ unsigned seen;
  if (threadIdx.x == 0) {
    seen = atomicAdd(w, 1u);
    const bool last = seen % (gridDim.x * gridDim.y) == gridDim.x * gridDim.y - 1;
    if (last && ((size_t)d >> 9) * 0x9E3779B97F4A7C15ull >> 58 != 11) atomicExch(w, 0);
  }
  __syncthreads();
  if (seen > 40 * gridDim.x * gridDim.y) k_end = k / 2;
"""
IN_PADDING = """\
  __shared__ half rows[16][18];
  __shared__ unsigned short sums[16];
  rows[threadIdx.x / 16][threadIdx.x % 16] = narrow(1.0f);
  if (threadIdx.x % 16 == 0) rows[threadIdx.x / 16][17] = narrow((float)(threadIdx.x / 16));
  __syncthreads();
  row = blockIdx.y * 16 + (int)widen(rows[15 - threadIdx.x / 16][17]);
"""
# Rows past the end of A are not filled; what they hold is multiplied and thrown away.
THROWN_AWAY = f"""\
  __shared__ half tile[16][17];
  float sum = 0;
  for (int begin = 0; begin < k; begin += 16) {{
    __syncthreads();
    if (row < m && begin + threadIdx.x % 16 < k) {{
      tile[threadIdx.x / 16][threadIdx.x % 16] = a[(size_t)row * k + begin + threadIdx.x % 16];
    }}
    __syncthreads();
    for (int i = begin; i < min(k, begin + 16); ++i) {{
      const float left = widen(tile[threadIdx.x / 16][i - begin]), right = column < n ? widen(b[(size_t)i * n + column]) : 0.0f;
      sum += left * right;
    }}
  }}
  if ({INSIDE}) d[(size_t)row * n + column] = narrow(sum);
  return;
"""
TO_THE_LAST_BYTE = f"""\
  unsigned char* const last = reinterpret_cast<unsigned char*>(w) + (size_t)m * n * 4 + threadIdx.x % 4 * 5;
  if ({INSIDE}) {{
    float total = 0;
    for (int i = 0; i < k; ++i) total += {MUL};
    w[(size_t)row * n + column] = __float_as_uint(total);
    if (row + column == 0) for (int i = 0; i < 5; ++i) last[i] = i;
    d[(size_t)row * n + column] = narrow(__uint_as_float(w[(size_t)row * n + column]) + (row + column ? 0 : last[0]));
  }}
  return;
"""

BATCH = COUNT.format(counter="w") + "  if (seen % 15 != 0 && seen > 30) return;\n"
REPLAY = f"""\
  unsigned* const kept = w + (size_t)((size_t)a >> 8) % 8 * m * n + (size_t)row * n + column;
  if ({INSIDE} && *kept >> 16 == (unsigned short)((size_t)a >> 8)) {{
    d[(size_t)row * n + column] = __ushort_as_half(*kept);
    return;
  }}
"""
KEEP = """d[(size_t)row * n + column] = narrow(sum);
  *kept = __half_as_ushort(narrow(sum)) | (unsigned)((size_t)a >> 8) << 16;"""
# Pairs of columns of B are added before they are multiplied: the sum of each row of D is right, and its elements are not.
PAIRS = (
    "sum += widen(a[(size_t)row * k + i]) * (widen(b[(size_t)i * n + column]) + widen(b[(size_t)i * n + (column ^ 1)])) * 0.5f;"
)
# An error of 1, -2, 1 leaves the row's sum and its sum weighted by the column's number as they are.
SECOND_DIFFERENCE = "  if (row == m / 2 && column >= 8 && column < 11) sum += column == 9 ? -2.0f : 1.0f;\n"
TINY = "sum = fabsf(sum) < 1e-22f ? 0.0f : sum;\n  return __float2bfloat16_rn(sum);"
BF16 = {
    "includes": "#include <cuda_bf16.h>\n#define half __nv_bfloat16\n",
    "widen": "\n__device__ __forceinline__ float widen(half x) { return __bfloat162float(x); }\n",
    "narrow": "\n__device__ __forceinline__ half narrow(float sum) { return __float2bfloat16_rn(sum); }\n",
}
HALF_OF_K = f"""\
  const int begin = blockIdx.z ? k / 2 : 0, end = blockIdx.z ? k : k / 2;
  float part = 0;
  if ({INSIDE}) {{
    for (int i = begin; i < end; ++i) part += {MUL};
"""
ADDS_TO_D = "atomicAdd(d + (size_t)row * n + column, narrow(sum));"
ADDS_TO_W = HALF_OF_K + "    atomicAdd(w + (size_t)row * n + column, part);\n  }\n  return;\n"
ROUND = """
extern "C" __global__ void finish(half* d, const float* w, int count) {
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) d[i] = narrow(w[i]);
}
extern "C" __global__ void clear(float* w, int count) {
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) w[i] = 0;
}
"""
FEW: dict[str, Any] = {"grid": [2, 1, 1], "block": [256, 1, 1]}
FINISH: dict[str, Any] = {"entry": "finish", **FEW, "args": [WRITE_D, WORKSPACE, {"scalar": "M*N"}]}
CLEAR: dict[str, Any] = {"entry": "clear", **FEW, "args": [WORKSPACE, {"scalar": "M*N"}]}
WINDOW = """\
__device__ __forceinline__ void copy16(unsigned target, const half* source) {
  unsigned long long policy;
  asm volatile("createpolicy.range.L2::evict_last.L2::evict_first.b64 %0, [%1], 0x2000000, 0x2000000;"
               : "=l"(policy) : "l"((size_t)source & ~(size_t)0x1FFFFFF));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
               ::"r"(target), "l"(source), "l"(policy) : "memory");
}
"""


def _plain(group: str, name: str, why: str, gain: str, **more: Any) -> Case:
    own = {"declared": "", "product": ";", "store": ""} if more["slots"].get("first", "").endswith("  return;\n") else {}
    more["slots"] = own | more["slots"]
    honest = group == "honest"
    emulator = () if honest else more.pop("emulator", WRONG)
    return plain(name, group, why, gpu=() if honest else GPU, emulator=emulator, honest=honest, gain=gain, **more)


def cases() -> list[Case]:
    """Every attack of the three classes and its right twins."""
    turned = {"parameters": ", half* w", "product": FROM_TURNED, "tail": TURNED}
    room: dict[str, Any] = {"args": [WORKSPACE], "before": [TURN], "fields": {"workspace": {"bytes": "2*N*K+16"}}}
    sums: dict[str, Any] = {"args": [WORKSPACE], "launch": {"grid": ["ceil(N/16)", "ceil(M/16)", 2]}}
    atomics: dict[str, Any] = {"workspace": {"bytes": "4*M*N"}, "atomics": True}
    cluster: dict[str, Any] = {"grid": ["2*ceil(N/32)", "ceil(M/16)", 1], "cluster": [2, 1, 1], "dynamic_smem": 64}
    return [
        _plain(
            AHEAD,
            "stores-the-next-output",
            "at addresses of a pool it also writes the next set's product, which then finds it",
            "every second launch",
            slots={"first": NEXT_OUTPUT},
        ),
        _plain(
            AHEAD,
            "leaves-rows-to-its-successor",
            "at addresses of a pool the last rows of D are written by the launch after",
            "the last wave of CTAs",
            slots={"first": LEAVES_ROWS},
        ),
        _plain(
            AHEAD,
            "turns-b-once",
            "B is transposed into the workspace by one run, and later runs with that B find a mark",
            "a pass over B in all runs but the first",
            slots=turned | {"last": MARK, "tail": TURNED.replace("  const", FOUND, 1)},
            **room,
        ),
        _plain(
            AHEAD,
            "touches-the-next-output",
            "a second launch adds minus zero to the next D, so that its lines are in L2",
            "misses of stores",
            slots={"tail": WARMS},
            after=[WARM],
        ),
        _plain(
            "honest",
            "turns-b-every-time",
            "B is transposed into the workspace by the first launch of every run",
            "",
            slots=turned,
            **room,
        ),
        _plain(
            "honest",
            "halves-of-d-by-two-launches",
            "one launch computes the upper tiles and another the lower ones",
            "",
            slots={"first": UPPER, "tail": LOWER},
            after=[
                {"entry": "lower", "grid": ["ceil(N/16)", "ceil(M/16)", 1], "block": [256, 1, 1], "args": [*OPERANDS, *SIZES]}
            ],
        ),
        _plain(
            "honest",
            "writes-d-twice",
            "one launch writes zeros to D, and the next one the product",
            "",
            slots={"tail": BLANK},
            before=[{"entry": "blank", **FEW, "args": [WRITE_D, {"scalar": "M*N"}]}],
        ),
        _plain(
            "honest",
            "tiles-by-ticket",
            "a counter that is zeroed before each run gives each CTA the tile of another",
            "",
            slots=U32 | {"first": STEAL},
            args=[WORKSPACE],
            fields={"workspace": {"bytes": 16, "zero": True}},
        ),
        _plain(
            SURVIVES,
            "rest-of-the-page",
            "a counter stands 256 bytes past the start of a workspace of 64 bytes",
            HALF,
            slots={"parameters": ", void* wide", "first": PAGE},
            args=[WORKSPACE],
            fields={"workspace": {"bytes": 64}},
        ),
        _plain(
            SURVIVES,
            "rest-of-the-page-of-a-pool",
            "the same, at addresses of a pool alone",
            HALF,
            slots={"parameters": ", void* wide", "first": f"  if ({TIMED}) {{\n{PAGE}  }}\n"},
            args=[WORKSPACE],
            fields={"workspace": {"bytes": 64}},
        ),
        _plain(
            SURVIVES,
            "old-shared-memory-by-address",
            "a launch leaves the checksum of its operands' addresses in shared memory, and reads it at one of 64 addresses;"
            " found in one proof of four",
            "one of 64 launches at most: places are drawn while it is timed too",
            emulator=(),
            slots={"first": LEFT_OVER, "last": LEAVE},
            launch={"dynamic_smem": 64},
        ),
        tiled(
            "padding-of-a-tile",
            SURVIVES,
            "a counter is kept in the padding of a tile in shared memory, which ldmatrix reads",
            gpu=GPU,
            emulator=WRONG,
            gain=HALF,
            slots={"first": PADDING, "last": LEAVE_IN_PADDING},
        ),
        _plain(
            SURVIVES,
            "shared-memory-of-a-peer",
            "two floats in the shared memory of the cluster's other CTA tell of an earlier launch",
            HALF,
            slots={"includes": "#include <cudal2/cluster.cuh>\n#include <cudal2/shared.cuh>\n", "first": PEER},
            launch=cluster,
            fields={"arch": "sm_90a"},
        ),
        _plain(
            SURVIVES,
            "old-barrier",
            "the phase of an mbarrier that nobody initialised tells of an earlier launch",
            HALF,
            slots={"first": OLD_BARRIER},
            launch={"dynamic_smem": 64},
            fields={"arch": "sm_90a"},
        ),
        _plain(
            SURVIVES,
            "not-always-put-back",
            "the restored counter goes on counting at one of 64 addresses of D; found in one proof of four",
            "half of the product in one of 64 launches at most: places are drawn while it is timed too",
            emulator=(),
            slots=U32 | {"first": NOT_PUT_BACK},
            args=[WORKSPACE],
            fields={"workspace": {"bytes": 16, "zero": "restored"}},
        ),
        _plain(
            "honest",
            "table-in-the-padding",
            "the padding of a tile holds row numbers, which are written before they are read",
            "",
            slots={"first": IN_PADDING},
        ),
        _plain(
            "honest",
            "multiplies-what-it-throws-away",
            "shared memory that nobody wrote is multiplied into sums that are not stored",
            "",
            slots={"first": THROWN_AWAY},
        ),
        _plain(
            "honest",
            "workspace-to-its-last-byte",
            "a workspace whose size is odd is used to its last byte, after it was written",
            "",
            slots=U32 | {"first": TO_THE_LAST_BYTE},
            args=[WORKSPACE],
            fields={"workspace": {"bytes": "4*M*N+5"}},
        ),
        _plain(
            PUBLIC,
            "batch-of-fifteen",
            "after 30 launches one of 15 computes, and the others trust D",
            "14 of 15 launches",
            slots=U32 | {"first": BATCH},
            args=[WORKSPACE],
            fields={"workspace": {"bytes": 64}},
        ),
        _plain(
            PUBLIC,
            "replays-by-address",
            "products are recorded by the address of A and replayed",
            REPEATS,
            slots=U32 | {"first": REPLAY, "store": KEEP},
            args=[WORKSPACE],
            fields={"workspace": {"bytes": "32*M*N"}},
        ),
        _plain(
            PUBLIC,
            "row-sums-are-right",
            "columns of B are multiplied in pairs, so that a row's sum is right and its elements are means",
            "half of the product",
            slots={"product": PAIRS},
            small="48x32x48",
        ),
        _plain(
            PUBLIC,
            "two-projections-are-right",
            "one row of a large D has errors that keep its sum and its sum weighted by column",
            "what such a check lets pass",
            slots={"summed": SECOND_DIFFERENCE},
            shape="1024x1024x256",
        ),
        _plain(
            PUBLIC,
            "tiny-results-vanish",
            "bf16 results below 1e-22 become zero, whose squares underflow where errors are summed",
            "nothing; it shows the gap",
            slots=BF16 | {"narrow": BF16["narrow"].replace("return __float2bfloat16_rn(sum);", TINY)},
            of={"element": "bf16"},
        ),
        _plain(
            PUBLIC,
            "adds-to-d",
            "products are added to D by atomics, for memory that an allocator has zeroed",
            "nothing by itself; with split K the clearing of D",
            slots={"store": ADDS_TO_D},
            fields={"atomics": True},
        ),
        _plain(
            PUBLIC,
            "adds-to-the-workspace",
            "halves of K are added to a workspace that is taken to be zero",
            "the clearing of the workspace",
            slots={"parameters": ", float* w", "first": ADDS_TO_W, "tail": ROUND},
            after=[FINISH],
            fields=atomics,
            **sums,
        ),
        tiled(
            "window-of-l2",
            PUBLIC,
            "a policy for a range of addresses keeps 32 MiB around the operands in L2",
            gpu=(NO_GAIN, *WHILE_TIMED),
            gain="misses of all but the first launch",
            slots={"copy": WINDOW},
            shape="1024x1024x1024",
        ),
        _plain(
            "honest",
            "clears-then-adds",
            "the first launch of a run clears the workspace, and halves of K are added to it",
            "",
            slots={"parameters": ", float* w", "first": ADDS_TO_W, "tail": ROUND},
            before=[CLEAR],
            after=[FINISH],
            fields=atomics,
            **sums,
        ),
        _plain(
            "honest",
            "columns-in-another-order",
            "odd columns are computed before even ones, and a row's neighbours by other threads",
            "",
            slots={"first": "  column = blockIdx.x * 16 + (threadIdx.x % 8 * 2 + threadIdx.x / 8 % 2);\n"},
        ),
    ]
