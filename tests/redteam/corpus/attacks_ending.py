"""Attacks on the run: a failure of the compiler, the worker or the emulator is the candidate's own evaluation."""

from tests.redteam.base import WORKSPACE
from tests.redteam.case import Case, Layers
from tests.redteam.corpus.rows import plain

GROUP = "ends-the-run"
PLAN: Layers = ("rejected:plan-*",)
COMPILER: Layers = ("compile_failed", "timed_out:compile", "rejected:code-size", "rejected:source-size", "rejected:*-limit")
GRID: Layers = (*PLAN, "crashed", "timed_out:verify", "not-executed")
HANGS_GPU, HANGS_EMULATOR = ("timed_out:verify",), ("wrong:emulator/deadlock", "wrong:emulator/endless", "timed_out:verify")

BOMB = """\
template <int kDepth, unsigned long long kPath> struct Bomb {
  static constexpr int value = Bomb<kDepth - 1, 2 * kPath>::value + Bomb<kDepth - 1, 2 * kPath + 1>::value;
};
template <unsigned long long kPath> struct Bomb<0, kPath> { static constexpr int value = 1; };
"""
FOREVER = """\
constexpr int forever(int n) {
  while (n) n = n == 1 ? 2 : 1;
  return n;
}
"""
RECURSION = """\
__device__ __noinline__ int deeper(const int* data, int depth) {
  int frame[64];
  for (int i = 0; i < 64; ++i) frame[i] = data[0] + depth + i;
  asm volatile("" ::"l"(frame) : "memory");
  return depth > 0 ? deeper(frame, depth - 1) + frame[depth % 64] : 1;
}
"""


def _laughs(levels: int) -> str:
    lines = ["#define L0 +1"]
    lines += [f"#define L{i} L{i - 1} L{i - 1} L{i - 1} L{i - 1} L{i - 1} L{i - 1} L{i - 1} L{i - 1}" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def _plan(name: str, why: str, layers: Layers = PLAN, **written: object) -> Case:
    return plain(name, GROUP, why, layers=layers, **written)  # type: ignore[arg-type]


def _source(name: str, why: str, layers: Layers = COMPILER, *, hangs: bool = False, **slots: str) -> Case:
    return plain(name, GROUP, why, layers=layers, slots=slots, hangs=hangs)


def cases() -> list[Case]:
    """Every attack of the class."""
    gib = 2**30
    return [
        _plan("2-31-ctas", "a grid of 2^31 CTAs", GRID, launch={"grid": [65536, 32768, 1]}),
        _plan("all-the-ctas", "the largest grid that the dimensions allow", GRID, launch={"grid": [2**31 - 1, 65535, 65535]}),
        _plan(
            "a-grid-that-takes-hours",
            "a grid of 2^30 CTAs, far more than the task has outputs",
            GRID,
            launch={"grid": [2**30, 1, 1]},
        ),
        *(
            _plan(
                f"workspace-of-{size}-gib",
                f"{size} GiB of workspace for a task of kilobytes",
                args=[WORKSPACE],
                fields={"workspace": {"bytes": size * gib, "zero": zero}},
                slots={"parameters": ", unsigned* w"},
            )
            for size, zero in ((3, False), (8, True))
        ),
        _plan("shared-memory-of-a-terabyte", "more dynamic shared memory than any chip has", launch={"dynamic_smem": 10**12}),
        _plan("expression-that-overflows", "an expression past every number", launch={"grid": ["M*" * 20 + "M", 1, 1]}),
        _plan(
            "expression-that-nests",
            "an expression of a hundred parentheses",
            (*PLAN, "crashed", "verified", "measured"),
            launch={"grid": ["(" * 95 + "N" + ")" * 95, "M", 1]},
        ),
        _plan("expression-that-divides-by-zero", "a grid of M over zero", launch={"grid": ["M/(N-N)", 1, 1]}),
        _plan(
            "fewer-arguments",
            "the plan passes fewer parameters than the kernel takes",
            ("rejected:*",),
            launch={"args": [{"tensor": "D", "access": "write"}]},
        ),
        _plan(
            "no-such-entry",
            "the plan launches what the source does not define",
            ("rejected:entry-missing",),
            launch={"entry": "other"},
        ),
        _plan(
            "eight-launches-of-everything",
            "the largest grid eight times over",
            (*GRID, "wrong:*", "rejected:*"),
            after=[{"entry": "gemm", "grid": [2**20, 64, 1], "block": [1024, 1, 1], "args": []}] * 7,
        ),
        _source(
            "template-bomb",
            "templates that instantiate two of themselves each",
            hangs=True,
            head=BOMB + "constexpr int kBomb = Bomb<28, 1>::value;\n",
        ),
        _source(
            "constant-without-end",
            "a constant expression that never ends",
            head=FOREVER + "constexpr int kForever = forever(1);\n",
        ),
        _source(
            "macro-bomb",
            "macros that expand eightfold, twelve deep",
            hangs=True,
            head=_laughs(12) + "constexpr int kLaughs = L11;\n",
        ),
        _source(
            "deep-parentheses",
            "a hundred thousand parentheses",
            (*COMPILER, "verified", "measured"),
            head=f"constexpr int kDeep = {'(' * 100_000}1{')' * 100_000};\n",
        ),
        _source(
            "deep-braces-in-asm",
            "inline assembly of thousands of nested braces",
            (*COMPILER, "rejected:*", "not-executed", "verified", "measured"),
            first=f'  asm volatile("{"{" * 4000}{"}" * 4000}");\n',
        ),
        _source(
            "long-line",
            "a line of two hundred thousand characters",
            (*COMPILER, "rejected:ptx-unreadable", "not-executed", "verified", "measured"),
            head=f"constexpr int k{'x' * 200_000} = 1;\n",
        ),
        _source("too-much-source", "more source than is allowed", ("rejected:source-size",), head="// " + "x" * 300_000 + "\n"),
        _source(
            "shared-memory-of-a-megabyte",
            "a static array that no SM can hold",
            head="__shared__ int large[262144];\n",
            first="  large[column * 977 & 262143] = n;\n  __syncthreads();\n  k_end += large[row * 991 & 262143] == -n;\n",
        ),
        _source(
            "constants-of-128-kb",
            "more constant memory than there is",
            head="__constant__ int large[32768];\n",
            first="  k_end += large[column & 32767];\n",
        ),
        _source(
            "local-memory-of-half-a-megabyte",
            "half a megabyte of local memory per thread",
            (
                *COMPILER,
                "rejected:*",
                "crashed",
                "wrong:emulator/*",
                "timed_out:verify",
                "not-executed",
                "verified",
                "measured",
            ),
            first="  volatile int large[130000];\n  large[column % 130000] = n;\n  k_end += large[row % 130000] == n + 1;\n",
        ),
        _source(
            "megabytes-of-ptx",
            "a loop unrolled until the code takes megabytes",
            (*COMPILER, "not-executed", "verified", "measured"),
            first="#pragma unroll\n  for (int i = 0; i < 40000; ++i) {\n"
            '    asm volatile("xor.b32 %0, %0, %1;" : "+r"(k_end) : "r"(0));\n  }\n',
        ),
        _source(
            "null-pointer",
            "a store through a null pointer",
            ("crashed", "wrong:emulator/global-out-of-bounds", "wrong:emulator/*"),
            first="  if (row == 0) *reinterpret_cast<volatile int*>(16) = 1;\n",
        ),
        _source(
            "misaligned-vector",
            "a vector store at an odd address",
            ("crashed", "wrong:emulator/misaligned"),
            first="  if (row == 0 && column == 0) *reinterpret_cast<volatile unsigned long long*>(d + 1) = 0;\n",
        ),
        _source(
            "recursion-without-end",
            "calls a hundred thousand deep",
            ("crashed", "not-executed", "compile_failed", "rejected:*", "wrong:*"),
            head=RECURSION,
            first="  if (deeper(&m, 100000 + k) == 0) k_end = 0;\n",
        ),
        plain(
            "loop-without-end",
            GROUP,
            "every warp loops for ever",
            hangs=True,
            gpu=HANGS_GPU,
            emulator=HANGS_EMULATOR,
            slots={"first": '  while (k_end > 0) asm volatile("" ::: "memory");\n'},
        ),
        plain(
            "barrier-for-too-few",
            GROUP,
            "a barrier waits for more threads than there are",
            hangs=True,
            gpu=HANGS_GPU,
            emulator=HANGS_EMULATOR,
            slots={"first": '  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");\n'},
        ),
        plain(
            "sleeps-for-hours",
            GROUP,
            "every warp sleeps a millisecond a million times",
            hangs=True,
            gpu=HANGS_GPU,
            emulator=(*HANGS_EMULATOR, "verified"),
            slots={"first": "  for (int i = 0; i < 1000000; ++i) __nanosleep(1000000);\n"},
        ),
    ]
