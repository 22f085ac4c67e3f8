"""Unusual right kernels on CUDA cores, none of which may be refused."""

from typing import Any

from tests.redteam.base import WORKSPACE
from tests.redteam.case import Case
from tests.redteam.corpus.rows import plain

GROUP = "honest"
BF16 = {
    "includes": "#include <cuda_bf16.h>\n#define half __nv_bfloat16\n",
    "widen": "\n__device__ __forceinline__ float widen(half x) { return __bfloat162float(x); }\n",
    "narrow": "\n__device__ __forceinline__ half narrow(float sum) { return __float2bfloat16_rn(sum); }\n",
}
A, B = "widen(a[(size_t)row * k + i])", "widen(b[(size_t)i * n + column])"
HALVED = f"""\
const float x = {A};
    const bool large = fabsf(x) >= 2.0f;
    sum += (large ? 2.0f * __half2float(__hmul(a[(size_t)row * k + i], __float2half(0.5f))) : x) * {B};"""
COLUMNS_OF_B = "sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)column * k + i]);"
COLUMNS_OF_A = "sum += widen(a[(size_t)i * m + row]) * widen(b[(size_t)i * n + column]);"
STORE = "  d[(size_t)row * n + column] = narrow(sum);\n"
SUM = (
    "  float sum = 0;\n  for (int i = 0; i < k; ++i) sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);\n"
)

# A grid-stride loop over the outputs from `begin` by `stride`.
WALK = """\
  for (size_t tile = {begin}; tile < (size_t)((m + 15) / 16) * ((n + 15) / 16); tile += {stride}) {{
    const int row = tile / ((n + 15) / 16) * 16 + threadIdx.x / 16, column = tile % ((n + 15) / 16) * 16 + threadIdx.x % 16;
    if (row < m && column < n) {{
      float sum = 0;
      for (int i = 0; i < k; ++i) sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
      d[(size_t)row * n + column] = narrow(sum);
    }}
  }}
  return;
"""
NSMID = '  unsigned sms;\n  asm volatile("mov.u32 %0, %%nsmid;" : "=r"(sms));\n'
QUEUE = """\
  __shared__ unsigned next;
  const unsigned tiles = ((m + 15) / 16) * ((n + 15) / 16);
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) next = atomicAdd(w, 1);
    __syncthreads();
    const unsigned tile = next;
    if (tile >= tiles) break;
    const int row = tile / ((n + 15) / 16) * 16 + threadIdx.x / 16, column = tile % ((n + 15) / 16) * 16 + threadIdx.x % 16;
    if (row < m && column < n) {
      float sum = 0;
      for (int i = 0; i < k; ++i) sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
      d[(size_t)row * n + column] = narrow(sum);
    }
  }
  __threadfence();
  if (threadIdx.x == 0 && atomicAdd(w + 1, 1) == gridDim.x - 1) {
    __threadfence();
    atomicExch(w, 0);
    atomicExch(w + 1, 0);
  }
  return;
"""
# Splits of K add to the same sums in order: each waits for its turn.
TURNS = """\
  const int splits = gridDim.z, split = blockIdx.z, part = (k + splits - 1) / splits;
  const size_t tile = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
  volatile unsigned* const turn = w + tile;
  float* const sums = reinterpret_cast<float*>(w + (size_t)gridDim.x * gridDim.y) + tile * 256 + threadIdx.x;
  float sum = 0;
  for (int i = split * part; i < min(k, split * part + part); ++i) {
    if (row < m && column < n) sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
  }
  if (threadIdx.x == 0) {
    while (*turn != split) WAIT;
    __threadfence();
  }
  __syncthreads();
  if (split > 0) sum += __ldcg(sums);
  if (split + 1 < splits) {
    __stcg(sums, sum);
  } else if (row < m && column < n) {
    d[(size_t)row * n + column] = narrow(sum);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) *turn = split + 1 < splits ? split + 1 : 0;
  return;
"""
SPLITS: dict[str, Any] = {
    "args": [WORKSPACE],
    "launch": {"grid": ["ceil(N/16)", "ceil(M/16)", 3]},
    "fields": {
        "workspace": {
            "bytes": "ceil(N/16)*ceil(M/16)*(4+1024)",
            "zero": "restored",
            "zero_bytes": "4*ceil(N/16)*ceil(M/16)",
        }
    },
}
ATOMICS = """\
  const int part = (k + gridDim.z - 1) / gridDim.z, begin = blockIdx.z * part;
  const size_t tile = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
  float* const sums = reinterpret_cast<float*>(w) + (size_t)gridDim.x * gridDim.y + tile * 256 + threadIdx.x;
  float sum = 0;
  for (int i = begin; i < min(k, begin + part); ++i) {
    if (row < m && column < n) sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
  }
  atomicAdd(sums, sum);
  if (!cudal2::arrives_last(w + tile, gridDim.z)) return;
  if (row < m && column < n) d[(size_t)row * n + column] = narrow(__ldcg(sums));
  return;
"""
FINISH = """
extern "C" __global__ void finish(half* d, const float* w, int count, int splits) {
  WAIT
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= count) return;
  float sum = 0;
  for (int split = 0; split < splits; ++split) sum += w[(size_t)split * count + i];
  d[i] = narrow(sum);
}
"""
PARTIAL = """\
  const int part = (k + gridDim.z - 1) / gridDim.z, begin = blockIdx.z * part;
  if (row < m && column < n) {
    float sum = 0;
    for (int i = begin; i < min(k, begin + part); ++i) sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
    w[((size_t)blockIdx.z * m + row) * n + column] = sum;
  }
  AFTER
  return;
"""


def _two(programmatic: bool) -> dict[str, Any]:
    """Split-K in two launches; the second is a programmatic launch that waits."""
    wait = 'asm volatile("griddepcontrol.wait;" ::: "memory");' if programmatic else ""
    early = 'asm volatile("griddepcontrol.launch_dependents;" ::: "memory");' if programmatic else ""
    last = {
        "entry": "finish",
        "grid": ["ceil(M*N/256)", 1, 1],
        "block": [256, 1, 1],
        "programmatic": programmatic,
        "args": [{"tensor": "D", "access": "write"}, WORKSPACE, {"scalar": "M*N"}, {"scalar": "4"}],
    }
    return {
        "args": [WORKSPACE],
        "launch": {"grid": ["ceil(N/16)", "ceil(M/16)", 4], "programmatic": programmatic},
        "after": [last],
        "fields": {"workspace": {"bytes": "16*M*N"}, "arch": "sm_90a"},
        "slots": {
            "parameters": ", float* w",
            "first": wait + "\n" + PARTIAL.replace("AFTER", early),
            "tail": FINISH.replace("WAIT", wait),
        },
    }


WARP_PER_OUTPUT = """\
  row = blockIdx.y * 8 + threadIdx.x / 32;
  column = blockIdx.x;
  float sum = 0;
  if (row < m) {
    for (int i = threadIdx.x % 32; i < k; i += 32) sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
  }
  {reduce}
  if (row < m && threadIdx.x % 32 == 0) d[(size_t)row * n + column] = narrow(sum);
  return;
"""
SHUFFLE = "for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, i);"
GROUPS = "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\nnamespace cg = cooperative_groups;\n"
GROUP_REDUCE = "sum = cg::reduce(cg::tiled_partition<32>(cg::this_thread_block()), sum, cg::plus<float>());"
BALLOT = "if (__ballot_sync(0xFFFFFFFF, sum != 0.0f)) for (int i = 1; i < 32; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);"
PER_WARP = {"launch": {"grid": ["N", "ceil(M/8)", 1]}}
CLUSTER_SYNC = """\
  cg::cluster_group cluster = cg::this_cluster();
  cluster.sync();
  if (cluster.block_rank() > cluster.num_blocks()) k_end = 0;
"""
DSMEM = """\
  __shared__ float parts[256];
  const unsigned rank = cudal2::cluster_rank();
  const int half_k = k / 2;
  row = blockIdx.y * 16 + threadIdx.x / 16;
  column = blockIdx.x / 2 * 16 + threadIdx.x % 16;
  float sum = 0;
  if (row < m && column < n) {
    for (int i = rank ? half_k : 0; i < (rank ? k : half_k); ++i) {
      sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
    }
  }
  parts[threadIdx.x] = sum;
  cudal2::cluster_sync();
  if (rank == 0 && threadIdx.x % 4 == 0) {
    const float4 other = cudal2::load_remote(cudal2::map_to_rank(cudal2::smem_address(parts + threadIdx.x), 1));
    const float all[4] = {other.x, other.y, other.z, other.w};
    for (int i = 0; i < 4; ++i) {
      if (row < m && column + i < n) d[(size_t)row * n + column + i] = narrow(parts[threadIdx.x + i] + all[i]);
    }
  }
  cudal2::cluster_sync();
  return;
"""
ASSEMBLY = """\
  // A comment in the source, "with quotes"; and a semicolon.
  asm volatile(
      "{\\n"
      "// a comment; with a semicolon, and a backslash \\\\ \\n"
      ".reg .pred done;\\n"
      ".reg .b32 left;\\n"
      "mov.b32 left, 3; /* a block comment; {of two statements;} */\\n"
      "again:\\n"
      "sub.u32 left, left, 1;\\n"
      "setp.eq.u32 done, left, 0;\\n"
      "@!done bra again;\\n"
      "add.s32 %0, %0, left;\\n"
      "}" : "+r"(k_end));
"""
TABLES = """\
__constant__ unsigned char order[16] = {15, 0, 14, 1, 13, 2, 12, 3, 11, 4, 10, 5, 9, 6, 8, 7};
constexpr float kScales[4] = {1.0f, 0.5f, 0.25f, 0.125f};
__device__ const float unscale[4] = {1.0f, 2.0f, 4.0f, 8.0f};
"""
LOCAL = """\
  float parts[8] = {};
  for (int i = 0; i < k; ++i) parts[i * i % 8] += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
  for (int i = 0; i < 8; ++i) sum += parts[(i + k) % 8];
  k_end = 0;
"""
NAMED_BARRIERS = """\
  __shared__ int turns[8];
  if (threadIdx.x < 128) {
    turns[threadIdx.x / 32] = 1;
    asm volatile("bar.sync 1, 128;" ::: "memory");
  } else {
    turns[threadIdx.x / 32] = 1;
    asm volatile("bar.sync 2, 128;" ::: "memory");
  }
  __syncthreads();
  k_end = turns[threadIdx.x / 32 ^ 4] * k;
"""
BULK = """\
  __shared__ __align__(16) half rows[16][16];
  float total = 0;
  for (int i = 0; i < k; ++i) total += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
  rows[threadIdx.x / 16][threadIdx.x % 16] = narrow(total);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x < 16) {
    half* const target = d + (size_t)(blockIdx.y * 16 + threadIdx.x) * n + blockIdx.x * 16;
    const unsigned source = (unsigned)__cvta_generic_to_shared(&rows[threadIdx.x][0]);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 32;" ::"l"(target), "r"(source) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  return;
"""
ALL_SHARED = """\
  extern __shared__ float stage[];
  for (int i = threadIdx.x; i < k; i += 256) stage[58000 - i] = widen(b[(size_t)i * n + blockIdx.x * 16 % n]);
  __syncthreads();
  const float first = stage[58000];
  if (column == blockIdx.x * 16 % n && first == first && first != widen(b[column])) k_end = 0;
"""


def _honest(name: str, why: str, **written: Any) -> Case:
    """A right kernel; if its first slot does all the work, the rest of the base has no sum."""
    slots = written.pop("slots", {})
    own = {"declared": "", "product": ";", "store": ""} if slots.get("first", "").endswith("  return;\n") else {}
    return plain(name, GROUP, why, honest=True, slots=own | slots, **written)


def cases() -> list[Case]:
    """Every right kernel of this base."""
    tn = {"layout": "tn"}
    restored = {"args": [WORKSPACE], "fields": {"workspace": {"bytes": 64, "zero": "restored"}}, "launch": {"grid": [5, 1, 1]}}
    turns = {"parameters": ", unsigned* w"}
    return [
        _honest("plain", "a thread for each output"),
        _honest("plain-odd-shape", "primes all around", shape="37x53x71", small="37x53x71"),
        _honest("plain-one-output", "a single output", shape="1x1x1", small="1x1x1"),
        _honest("plain-one-row", "a row times a matrix", shape="1x257x131", small="1x61x33"),
        _honest("plain-bf16", "bf16 elements", slots=BF16, of={"element": "bf16"}),
        _honest("plain-tn", "B column-major", slots={"product": COLUMNS_OF_B}, of=tn),
        _honest("plain-nt", "A column-major", slots={"product": COLUMNS_OF_A}, of={"layout": "nt"}),
        _honest("plain-bf16-tn", "both", slots=BF16 | {"product": COLUMNS_OF_B}, of={"element": "bf16", **tn}),
        _honest(
            "more-than-the-task-asks", "f32 sums where f16 would do", of={"accumulate": "f16"}, fields={"accumulate": "f16"}
        ),
        _honest(
            "scales-a-in-f32",
            "A is multiplied by 16 in f32, and the sum divided",
            slots={"product": f"sum += ({A} * 16.0f) * {B};", "summed": "  sum *= 0.0625f;\n"},
        ),
        _honest(
            "large-numbers-halved",
            "numbers of 2 and more are halved in half, which is exact, and doubled in f32",
            slots={"product": HALVED},
        ),
        _honest(
            "clamps-at-the-largest",
            "a clamp that changes no number",
            slots={"product": f"const float x = {A}; sum += (isfinite(x) ? fminf(fmaxf(x, -65504.0f), 65504.0f) : x) * {B};"},
        ),
        _honest("fast-math", "-use_fast_math changes nothing here", flags=("-use_fast_math",)),
        _honest("few-registers", "--maxrregcount=32", flags=("--maxrregcount=32",)),
        _honest("newest-language", "-std=c++20 and a defined macro", flags=("-std=c++20", "-DUNUSED=1.5")),
        _honest(
            "double-sums",
            "sums in f64",
            slots={
                "product": "total += (double)widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);",
                "first": "  double total = 0;\n",
                "summed": "  sum = total;\n",
            },
        ),
        _honest(
            "persistent",
            "five CTAs walk all tiles",
            slots={"first": WALK.format(begin="blockIdx.x", stride="gridDim.x")},
            launch={"grid": [5, 1, 1]},
        ),
        _honest(
            "strides-by-nsmid",
            "one CTA for each SM, which strides by the number of SMs",
            slots={"first": NSMID + WALK.format(begin="blockIdx.x", stride="sms")},
            launch={"grid": ["SMS", 1, 1]},
        ),
        _honest(
            "queue-of-tiles",
            "tiles are drawn from a counter that the last CTA puts back to zero",
            slots=turns | {"first": QUEUE},
            **restored,
        ),
        _honest(
            "turns-by-flags",
            "splits of K take turns by flags and fences",
            slots=turns | {"first": TURNS.replace("WAIT", "{\n    }")},
            **SPLITS,
        ),
        _honest(
            "turns-with-back-off",
            "the same, asleep between two looks",
            slots=turns | {"first": TURNS.replace("WAIT", "__nanosleep(64)")},
            **SPLITS,
        ),
        _honest(
            "declared-atomics",
            "splits of K are added in arrival order, as the plan declares",
            slots=turns | {"first": ATOMICS, "includes": "#include <cudal2/arrival.cuh>\n"},
            args=[WORKSPACE],
            launch=SPLITS["launch"],
            fields={"workspace": {"bytes": "ceil(N/16)*ceil(M/16)*(4+1024)", "zero": True}, "atomics": True},
        ),
        _honest("split-k-in-two-launches", "partial sums, then their sum", **_two(programmatic=False)),
        _honest("split-k-in-two-programmatic-launches", "the same, the second started early", **_two(programmatic=True)),
        _honest(
            "reduced-by-shuffles",
            "a warp for each output",
            slots={"first": WARP_PER_OUTPUT.replace("{reduce}", SHUFFLE)},
            **PER_WARP,
        ),
        _honest(
            "reduced-after-a-vote",
            "the same, where a vote finds something to add",
            slots={"first": WARP_PER_OUTPUT.replace("{reduce}", BALLOT)},
            **PER_WARP,
        ),
        _honest(
            "cooperative-tile",
            "a cooperative group's reduction over a tile",
            slots={"includes": GROUPS, "first": WARP_PER_OUTPUT.replace("{reduce}", GROUP_REDUCE)},
            **PER_WARP,
        ),
        _honest(
            "cooperative-block",
            "a cooperative group's barrier",
            slots={"includes": GROUPS, "first": "  cg::this_thread_block().sync();\n"},
        ),
        _honest(
            "cooperative-cluster",
            "a cluster's cooperative group",
            slots={"includes": GROUPS, "first": CLUSTER_SYNC},
            launch={"grid": ["2*ceil(N/32)", "ceil(M/16)", 1], "cluster": [2, 1, 1]},
            fields={"arch": "sm_90a"},
        ),
        _honest(
            "cluster-with-distributed-shared-memory",
            "halves of K meet in the shared memory of a cluster",
            slots={"includes": "#include <cudal2/cluster.cuh>\n#include <cudal2/shared.cuh>\n", "first": DSMEM},
            launch={"grid": ["2*ceil(N/16)", "ceil(M/16)", 1], "cluster": [2, 1, 1]},
            fields={"arch": "sm_90a"},
        ),
        _honest("commented-assembly", "inline assembly with comments, quotes and labels", slots={"first": ASSEMBLY}),
        _honest(
            "tables-of-constants",
            "constants in every place where they may be",
            slots={
                "head": TABLES,
                "first": "  k_end = order[threadIdx.x % 16] < 16 ? k : 0;\n",
                "summed": "  sum = sum * kScales[column % 4] * unscale[column % 4];\n",
            },
        ),
        _honest(
            "local-array-by-index",
            "a local array that the thread indexes",
            slots={
                "summed": "",
                "first": "  if (row >= m || column >= n) return;\n  float sum = 0;\n" + LOCAL + STORE + "  return;\n",
            },
        ),
        _honest(
            "function-that-is-called",
            "a function that is not inlined",
            slots={
                "head": "__device__ __noinline__ float product(float x, float y) { return x * y; }\n",
                "product": "sum += product(widen(a[(size_t)row * k + i]), widen(b[(size_t)i * n + column]));",
            },
        ),
        _honest("named-barriers", "halves of the CTA meet at barriers of their own", slots={"first": NAMED_BARRIERS}),
        _honest(
            "awaited-bulk-store",
            "rows go out by bulk copies that are awaited",
            slots={"first": BULK},
            fields={"arch": "sm_90a", "requires": ["M%16==0", "N%16==0"]},
            shape="256x256x64",
            small="32x48x48",
        ),
        _honest(
            "all-of-shared-memory",
            "as much dynamic shared memory as there is",
            slots={"first": ALL_SHARED},
            launch={"dynamic_smem": 232448},
            fields={"arch": "sm_90a"},
            small="40x32x48",
            shape="96x96x128",
        ),
        _honest(
            "one-thread-ctas",
            "a CTA of one thread for each output",
            slots={"first": "  row = blockIdx.y;\n  column = blockIdx.x;\n"},
            launch={"grid": ["N", "M", 1], "block": [1, 1, 1]},
            small="9x7x16",
            shape="32x32x64",
        ),
        _honest(
            "grid-in-three-dimensions",
            "rows along z",
            slots={"first": "  row = blockIdx.z * 16 + threadIdx.x / 16;\n"},
            launch={"grid": ["ceil(N/16)", 1, "ceil(M/16)"]},
        ),
        _honest(
            "block-in-three-dimensions",
            "threads along three dimensions",
            slots={
                "first": "  row = blockIdx.y * 16 + threadIdx.z * 4 + threadIdx.y;\n  column = blockIdx.x * 16 + threadIdx.x;\n"
            },
            launch={"block": [16, 4, 4]},
        ),
        _honest(
            "more-ctas-than-tiles", "CTAs beyond the matrix end at once", launch={"grid": ["ceil(N/16)+3", "ceil(M/16)+2", 1]}
        ),
        _honest(
            "read-only-path",
            "operands through the read-only path, D by a streaming store",
            slots={
                "product": "sum += widen(__ldg(a + (size_t)row * k + i)) * widen(__ldcs(b + (size_t)i * n + column));",
                "store": "unsigned short* const bits = reinterpret_cast<unsigned short*>(d);\n"
                "  __stcs(bits + (size_t)row * n + column, __half_as_ushort(narrow(sum)));",
            },
        ),
    ]
