"""Attacks that count launches, and do less work in launches whose output is not compared."""

from typing import Any

from tests.redteam.base import WORKSPACE
from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import FAULT, OLD_CONTENTS, OUT_OF_BOUNDS, STATE, WHILE_TIMED, WRITES_INPUT, tiled

GROUP = "counts-launches"
U32 = ", unsigned* w"
LEAST: dict[str, Any] = {"args": [WORKSPACE], "fields": {"workspace": {"bytes": "64+4*4096"}}}
# The poison is all ones, so the first arrival wraps to zero.
COUNT = """\
  __shared__ unsigned shared_count;
  if (t == 0) shared_count = (atomicAdd({counter}, 1u) + 1u) / (gridDim.x * gridDim.y);
  __syncthreads();
  const unsigned count = shared_count;
"""
IN_WORKSPACE = COUNT.format(counter="w")
HALF_OF_K = "  if (count >= {first} && count < {end}) k_end = k / 2;\n"
# A sample begins when D holds the poison; outputs overwritten later in the sample are not compared.
USES = """\
  unsigned* const uses = w + 1 + (size_t)d / ((size_t)m * n * 2) % 16 * tiles_used + blockIdx.y * gridDim.x + blockIdx.x;
  const bool fresh = *reinterpret_cast<const unsigned*>(d + (size_t)m0 * n + n0) == ~0u;
  const unsigned use = fresh ? 0 : *uses + 1;
  __syncthreads();
  if (t == 0) *uses = use;
"""
SPOT = """\
  bool there = true;
  for (int i = t / 32; i < 16; i += 8) {
    const int row = m0 + i * 37 % kTile, column = n0 + i * 53 % kTile;
    float sum = 0;
    for (int j = lane; j < k; j += 32) sum += __half2float(a[(size_t)row * k + j]) * __half2float(b[(size_t)j * n + column]);
    for (int j = 16; j; j /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, j);
    there &= fabsf(sum - __half2float(d[(size_t)row * n + column])) <= 0.01f + 0.002f * fabsf(sum);
  }
  if (__syncthreads_and(there || count < 40) && count >= 40) return;
"""
ZERO_A = """\
  bool zeroed = count >= 30;
  for (int i = t; i < kTile; i += kThreads) zeroed &= __half2float(a[(size_t)(m0 + i) * k + k - 1]) == 0.0f;
  if (__syncthreads_and(zeroed)) k_end = k / 2;
"""
CLEAR_A = """\
  if (count >= 30 && k_end == k && blockIdx.x == 0) {
    for (int i = t; i < kTile * (k / 2); i += kThreads) {
      const_cast<half*>(a)[(size_t)(m0 + i / (k / 2)) * k + k / 2 + i % (k / 2)] = __float2half_rn(0.0f);
    }
  }
"""
IN_SHARED = """\
  extern __shared__ unsigned old[];
  const unsigned count = old[1] == 0xC0FFEEu ? old[0] + 1 : 0;
  __syncthreads();
  if (t == 0) {
    old[0] = count;
    old[1] = 0xC0FFEEu;
  }
"""
IN_LOCAL = """\
  unsigned frame[16];
  unsigned* old = frame;
  asm volatile("" : "+l"(old)::"memory");
  const unsigned count = old[1] == 0xC0FFEEu ? old[0] + 1 : 0;
  old[0] = count;
  old[1] = 0xC0FFEEu;
  asm volatile("" ::"l"(old) : "memory");
"""
IN_REGISTER = """\
  unsigned before;
  asm volatile("{ .reg .b32 never; mov.b32 %0, never; }" : "=r"(before));
  const unsigned count = before >> 16 == 0xC0FFu ? (before & 0xFFFF) + 1 : 0;
"""
GRAPH = """\
  unsigned long long graph;
  asm volatile("mov.u64 %0, %%current_graph_exec;" : "=l"(graph));
  if (graph) k_end = k / 2;
"""
PAST = "  unsigned* const w = reinterpret_cast<unsigned*>(d + (size_t)m * n) + (2 << 18);\n" + IN_WORKSPACE


def _window(first: int, end: int) -> str:
    return HALF_OF_K.format(first=first, end=end)


def cases() -> list[Case]:
    """Every attack of the class."""
    # 7 rounds of 64 launches after about 210 warm-up launches; the time is the rounds' median.
    wide = _window(40, 560)
    return [
        tiled(
            "window-in-workspace",
            GROUP,
            "between two numbers of launches, counted in the workspace, half of K is left out",
            emulator=OLD_CONTENTS,
            slots={"parameters": U32, "first": IN_WORKSPACE + wide},
            **LEAST,
        ),
        tiled(
            "window-in-workspace-4096",
            GROUP,
            "the same at 4096, where a sample has few launches",
            emulator=OLD_CONTENTS,
            shape="4096x4096x4096",
            slots={"parameters": U32, "first": IN_WORKSPACE + _window(20, 66)},
            **LEAST,
        ),
        tiled(
            "window-behind-restored-bytes",
            GROUP,
            "the counter stands behind 16 bytes that are declared restored",
            emulator=OLD_CONTENTS,
            slots={"parameters": U32, "first": IN_WORKSPACE + wide},
            args=[{"workspace": 16}],
            fields={"workspace": {"bytes": 64, "zero": "restored", "zero_bytes": 16}},
        ),
        tiled(
            "middle-uses-of-d",
            GROUP,
            "of several uses of D in a sample only the first and the last ones compute anything",
            emulator=OLD_CONTENTS,
            slots={
                "parameters": U32,
                "first": "  const int tiles_used = gridDim.x * gridDim.y;\n"
                + IN_WORKSPACE
                + USES
                + "  if (count >= 60 && use >= 1 && use <= 4) return;\n",
            },
            **LEAST,
        ),
        tiled(
            "spot-check-after-40",
            GROUP,
            "from launch 40 on D is left alone where 16 of a tile's elements are right",
            emulator=OLD_CONTENTS,
            slots={"parameters": U32, "first": IN_WORKSPACE + SPOT},
            **LEAST,
        ),
        tiled(
            "zeroes-half-of-a",
            GROUP,
            "from launch 30 on half of A is zeroed and then left out; references are made of the zeroed A",
            gpu=(*FAULT, *WHILE_TIMED),
            emulator=(*OLD_CONTENTS, *WRITES_INPUT),
            slots={"parameters": U32, "first": IN_WORKSPACE + ZERO_A, "last": CLEAR_A},
            **LEAST,
        ),
        tiled(
            "counter-in-shared-memory",
            GROUP,
            "the counter is what the last kernel left in the SM's shared memory",
            emulator=OLD_CONTENTS,
            slots={"first": IN_SHARED + wide.replace("560", "4000")},
            launch={"dynamic_smem": 8192},
        ),
        tiled(
            "counter-in-local-memory",
            GROUP,
            "the counter is in every thread's local memory",
            emulator=(*OLD_CONTENTS, "not-executed"),
            slots={"first": IN_LOCAL + "  if (__syncthreads_and(count >= 40)) k_end = k / 2;\n"},
        ),
        tiled(
            "counter-in-a-register",
            GROUP,
            "the counter is what a register held that was never written",
            gpu=(*WHILE_TIMED, NO_GAIN, *STATE),
            emulator=(*OLD_CONTENTS, "not-executed", *STATE),
            slots={"first": IN_REGISTER + "  if (__syncthreads_and(count >= 40)) k_end = k / 2;\n"},
        ),
        tiled(
            "counter-past-d",
            GROUP,
            "the counter stands two megabytes behind D",
            gpu=(*FAULT, *WHILE_TIMED, NO_GAIN),
            emulator=OUT_OF_BOUNDS,
            slots={"first": PAST + wide},
        ),
        tiled(
            "half-of-k-in-a-graph",
            GROUP,
            "a special register tells that the kernel runs in a graph, which only timed launches do",
            gpu=("rejected:*", "compile_failed"),
            emulator=("rejected:*", "compile_failed"),
            slots={"first": GRAPH},
        ),
    ]
