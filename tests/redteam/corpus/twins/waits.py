"""Programmatic launches: attacks that wait rarely or look at operands before they wait, and right kernels that wait oddly."""

from typing import Any

from tests.redteam.base import OPERANDS, SIZES, WORKSPACE
from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import UNSTABLE, WHILE_TIMED, plain

RARELY, LOOKS = "waits-rarely", "looks-first"
WRONG = ("wrong:*",)
GPU = (*WHILE_TIMED, *UNSTABLE, NO_GAIN)
OVERLAP = "the product of a launch overlaps the end of the launch before"
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
TRIGGER = '  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");\n'
TILE = "(size_t)(d + (size_t)blockIdx.y * 16 * n + blockIdx.x * 16)"
READ_A = "*reinterpret_cast<const volatile unsigned short*>(a + (size_t)blockIdx.y * 16 * k)"
MUL = "widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column])"
SUM = f"    sum = 0;\n    for (int i = 0; i < k; ++i) sum += {MUL};\n"

STALE_COIN = f"""\
  extern __shared__ unsigned left_over[];
  const unsigned coin = *(const volatile unsigned*)(left_over + blockIdx.x % 16);
  if ((coin * 0x9E3779B1u >> 28) != 5) {WAIT}
"""
SM_COIN = f"""\
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (sm % 16 != 7) {WAIT}
"""
# A warp whose turn it is by the address waits for the others, which do not meet it at a barrier.
WARP_COIN = f"  if (threadIdx.x / 32 == ((size_t)d >> 9) % 8) {WAIT}\n"
DEPTH_COIN = f"""\
  const unsigned coin = __popcll((size_t)d ^ (size_t)a >> 7);
  for (unsigned i = 0; i < coin % 5; ++i) {WAIT}
"""
READS_TWICE = f"""\
  const unsigned early = {READ_A};
  float sum = 0;
  if (row < m && column < n) {{
{SUM}  }}
  if (__syncthreads_or({READ_A} != early)) {{
    {WAIT}
    if (row < m && column < n) {{
{SUM}    }}
  }}
  if (row < m && column < n) d[(size_t)row * n + column] = narrow(sum);
  return;
"""
POLLS = f"""\
  unsigned tries = 0;
  while ({READ_A} == 0xFFFFu && tries < 1000) ++tries;
  if (tries == 1000) {WAIT}
"""
# cp.async fetches the first elements of A before the wait; they are waited for again only where they are the poison.
COPIES = f"""\
  __shared__ __align__(16) unsigned short first_of_a[16][8];
  if (threadIdx.x < 16 && blockIdx.y * 16 + threadIdx.x < m) {{
    const unsigned target = (unsigned)__cvta_generic_to_shared(first_of_a[threadIdx.x]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(a + (size_t)(blockIdx.y * 16 + threadIdx.x) * k)
                 : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
  }}
  __syncthreads();
  if (first_of_a[0][0] == 0xFFFFu) {WAIT}
"""
# The copy engine fetches a row of B before the wait; a row of zeros alone makes the kernel wait.
BULK_LOOK = f"""\
  __shared__ __align__(16) unsigned row_of_b[8];
  __shared__ __align__(8) unsigned long long bar;
  const unsigned mbarrier = (unsigned)__cvta_generic_to_shared(&bar);
  if (threadIdx.x == 0) {{
    cudal2::mbarrier_init(mbarrier, 1);
    cudal2::mbarrier_init_fence();
    cudal2::mbarrier_arrive_expect(mbarrier, 16);
    cudal2::bulk_load((unsigned)__cvta_generic_to_shared(row_of_b), b, 16, mbarrier);
  }}
  __syncthreads();
  cudal2::mbarrier_wait(mbarrier, 0);
  if (row_of_b[0] == 0 || row_of_b[0] == ~0u) {WAIT}
"""
ENGINE = "#include <cudal2/bulk.cuh>\n#include <cudal2/mbarrier.cuh>\n"
# The first launch lets the second start before it has waited itself, so the second may run beside the launches before both.
SECOND = """
extern "C" __global__ void finish(const half* a, const half* b, half* d, const float* w, int m, int n, int k) {
  const int row = blockIdx.x, column = blockIdx.y * 64 + threadIdx.x;
  float sum = 0;
  for (int i = k / 2; i < k && column < n; ++i) sum += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (column < n) d[(size_t)row * n + column] = narrow(sum + w[(size_t)row * n + column]);
}
"""
FINISH: dict[str, Any] = {
    "entry": "finish",
    "grid": ["M", "ceil(N/64)", 1],
    "block": [64, 1, 1],
    "programmatic": True,
    "args": [*OPERANDS, WORKSPACE, *SIZES],
}
HALVES: dict[str, Any] = {
    "args": [WORKSPACE],
    "after": [FINISH],
    "fields": {"arch": "sm_90a", "workspace": {"bytes": "4*M*N"}},
    "slots": {"parameters": ", float* w", "store": "w[(size_t)row * n + column] = sum;", "tail": SECOND},
}
# B lies directly behind A where a pool is one allocation.
PACKED = "(size_t)b - (size_t)a == ((size_t)m * k * 2 + 511) / 512 * 512"
PACKED_LOOK = f"""\
  unsigned tries = 0;
  if ({PACKED}) {{
    while ({READ_A} == 0xFFFFu && ++tries < 1000) {{
    }}
  }} else {{
    {WAIT}
  }}
"""
LATER_LOOK = f"""\
  const bool now = ({TILE} >> 9) * 0x9E3779B97F4A7C15ull >> 60 == 6;
  const unsigned early = now ? {READ_A} : 0;
  {WAIT}
  if (now && {READ_A} != early) k_end = 0;
"""
D_LOOK = f"  if (*reinterpret_cast<const volatile unsigned short*>({TILE}) == 0xFFFFu) {WAIT}\n"
WORKSPACE_LOOK = f"  if (w[0] != 0x600Du) {WAIT}\n"
SETS_UP = f"""\
  __shared__ __align__(8) unsigned long long bars[3];
  __shared__ int column_of[256];
  if (threadIdx.x < 3) cudal2::mbarrier_init((unsigned)__cvta_generic_to_shared(bars + threadIdx.x), 256);
  column_of[threadIdx.x] = column;
  __syncthreads();
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
{TRIGGER}  {WAIT}
  cudal2::mbarrier_arrive((unsigned)__cvta_generic_to_shared(bars + 1));
  cudal2::mbarrier_wait((unsigned)__cvta_generic_to_shared(bars + 1), 0);
  column = column_of[threadIdx.x ^ 1] ^ 1;
"""
PREFETCHES = f"""\
  if (row < m && threadIdx.x % 16 == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(a + (size_t)row * k));
  if (threadIdx.x < k && blockIdx.x * 16 < n) {{
    asm volatile("prefetch.global.L2::evict_normal [%0];" ::"l"(b + (size_t)threadIdx.x * n + blockIdx.x * 16));
  }}
  {WAIT}
"""


def _attack(group: str, name: str, why: str, first: str, **more: Any) -> Case:
    fields = {"arch": "sm_90a"} | more.pop("fields", {})
    launch = {"programmatic": True} | more.pop("launch", {})
    own = {"declared": "", "product": ";", "store": ""} if first.endswith("  return;\n") else {}
    slots = own | {"first": TRIGGER + first} | more.pop("slots", {})
    return plain(name, group, why, gpu=GPU, emulator=WRONG, gain=OVERLAP, slots=slots, fields=fields, launch=launch, **more)


def _right(name: str, why: str, first: str, **more: Any) -> Case:
    slots = {"first": first} | more.pop("slots", {})
    return plain(
        name, "honest", why, honest=True, slots=slots, fields={"arch": "sm_90a"}, launch={"programmatic": True}, **more
    )


def cases() -> list[Case]:
    """Every attack of both classes and its right twins."""
    return [
        _attack(
            RARELY,
            "coin-over-the-tile",
            "a hash of the address of the CTA's own tile of D decides; fifteen of sixteen tiles wait",
            f"  if (({TILE} >> 4) * 0x9E3779B97F4A7C15ull >> 60 != 11) {WAIT}\n",
        ),
        _attack(
            RARELY,
            "coin-over-stale-shared-memory",
            "a word of shared memory that nobody wrote decides; fifteen of sixteen wait",
            STALE_COIN,
            launch={"dynamic_smem": 64},
        ),
        _attack(RARELY, "coin-over-the-sm", "CTAs on one SM of sixteen do not wait", SM_COIN),
        _attack(
            RARELY, "one-warp-of-eight", "one warp waits, which D's address chooses, and meets the others nowhere", WARP_COIN
        ),
        _attack(
            RARELY, "loop-that-may-not-turn", "it waits in a loop whose number of turns is the address modulo five", DEPTH_COIN
        ),
        _attack(
            RARELY,
            "coin-over-an-element-of-b",
            "the lowest bits of an element of B decide, which was read without waiting",
            f"  if ((__half_as_ushort(b[blockIdx.x]) & 7) != 3) {WAIT}\n",
        ),
        _attack(
            RARELY,
            "one-cta-of-sixteen",
            "one CTA of 16, by its place in the grid, does not wait",
            f"  if ((blockIdx.x * 37 + blockIdx.y * 11) % 16 != 15) {WAIT}\n",
            small="72x72x16",
        ),
        _right(
            "one-thread-waits-for-its-cta",
            "one thread waits, and the others meet it at a barrier",
            f"  if (threadIdx.x == 77) {WAIT}\n  __syncthreads();\n",
        ),
        _right(
            "waits-in-a-loop-that-turns",
            "it waits once, twice or three times, as an address says",
            f"  for (unsigned i = 0; i <= ((size_t)d >> 9) % 3; ++i) {WAIT}\n",
        ),
        _right(
            "triggers-by-a-coin",
            "a hash of the tile's address decides whether the next launch may start early; each waits",
            f"  if (({TILE} >> 4) * 0x9E3779B97F4A7C15ull >> 63) {{\n  {TRIGGER}  }}\n  {WAIT}\n",
        ),
        _attack(
            LOOKS,
            "reads-twice",
            "it multiplies at once, and again behind a wait where an element of A has changed since",
            READS_TWICE,
        ),
        _attack(
            LOOKS,
            "polls-an-element",
            "it polls the first element of its rows of A and waits only where that stays the poison",
            POLLS,
        ),
        _attack(
            LOOKS,
            "copies-before-the-wait",
            "cp.async fetches the beginnings of rows, and a poisoned one alone makes it wait",
            COPIES,
            fields={"requires": ["K%8==0"]},
        ),
        _attack(
            LOOKS,
            "copy-engine-looks",
            "a bulk copy brings the beginning of B; zeros or poison make it wait",
            BULK_LOOK,
            slots={"includes": ENGINE},
        ),
        _attack(LOOKS, "looks-at-d", "it waits where its tile of D holds the poison, which only a proof writes", D_LOOK),
        _attack(
            LOOKS,
            "looks-at-the-workspace",
            "a mark in the workspace, which the first launch leaves, says that a proof is over",
            WORKSPACE_LOOK,
            args=[WORKSPACE],
            slots={"parameters": ", volatile unsigned* w", "last": "  if (threadIdx.x == 0) w[0] = 0x600Du;\n"},
            fields={"workspace": {"bytes": 64}},
        ),
        _attack(
            LOOKS,
            "looks-in-one-tile-of-sixteen",
            "where a hash of the tile's address says so, it reads A, waits, and leaves its product out if A has changed",
            LATER_LOOK,
            missed=0.1,
        ),
        _attack(
            LOOKS,
            "polls-where-operands-are-packed",
            "it polls an element of A instead of a wait where B lies directly behind A",
            PACKED_LOOK,
        ),
        _attack(
            LOOKS,
            "second-launch-looks",
            "the first of two launches triggers before it waits, and the second multiplies half of K before its wait",
            f"  {WAIT}\n  k_end = k / 2;\n",
            **HALVES,
        ),
        _right("prefetches-before-it-waits", "its own lines are brought into L2 before it waits", PREFETCHES),
        _right(
            "sets-up-before-it-waits",
            "barriers, an index table and the descriptor are ready before it waits",
            SETS_UP,
            args=[{"tensor_map": {"of": "A", "box": [16, 16]}}],
            slots={
                "includes": "#include <cudal2/mbarrier.cuh>\n#include <cudal2/tma.cuh>\n",
                "parameters": ", const __grid_constant__ cudal2::TensorMap map",
            },
        ),
        _right(
            "waits-in-the-loop",
            "the first turn of the loop over K waits",
            TRIGGER,
            slots={"product": f"if (i == 0) {WAIT}\n    sum += {MUL};"},
        ),
    ]
