"""Kernels whose output depends on an earlier launch's data are refused for any values; kernels that only read it are proved."""

import re

import pytest

from cudal2_agent.sandbox.emulator.detector import Detector
from cudal2_agent.sandbox.workers.messages import Done, Verified
from tests.sandbox.emulator.proving import GUARD, STORE, SUM, Build, builder, naive, plan, prove

WORKSPACE = ", unsigned* kept"
HOLDS_STATE = plan(args=({"workspace": 0},), workspace={"bytes": 4096})
ALONE = plan()
SHARED = "  __shared__ unsigned kept[256];\n"
VOLATILE = "((volatile unsigned*)kept)"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return builder(tmp_path_factory.mktemp("compile"))


def guarded(condition: str, first: str = "", parameters: str = "") -> str:
    """The whole product, unless the kept data hold a magic number: then D is not written."""
    return naive(first=first, guard=GUARD + f"  if ({condition}) return;\n", parameters=parameters)


HOSTILE = {
    "d-holds-it": (guarded("d[row * n + column] == __float2half(3.25f)"), ALONE, "a branch"),
    "d-checksum": (
        guarded(
            "check == 0x600D",
            "  unsigned check = 0;\n  for (int i = 0; i < 32; ++i) check = check * 31 + ((unsigned short*)d)[i];\n",
        ),
        ALONE,
        "a branch",
    ),
    "workspace-magic": (guarded("kept[0] == 0x600D", parameters=WORKSPACE), HOLDS_STATE, "a branch"),
    "workspace-compare-chain": (
        guarded("kept[0] > 7u && kept[1] < 9u && (kept[2] ^ kept[3]) == 5u", parameters=WORKSPACE),
        HOLDS_STATE,
        "a branch",
    ),
    "shared-magic": (guarded(f"{VOLATILE}[threadIdx.x] == 0x600D", SHARED), ALONE, "a branch"),
    "shuffled": (
        guarded("__shfl_xor_sync(0xFFFFFFFFu, word, 1) == 0x600D", "  const unsigned word = ((volatile unsigned*)d)[0];\n"),
        ALONE,
        "a branch",
    ),
    "voted": (
        guarded("all", "  const bool all = __all_sync(0xFFFFFFFFu, ((volatile unsigned*)d)[threadIdx.x % 32] == 0x600D);\n"),
        ALONE,
        "a branch",
    ),
    "selected": (
        naive(
            store="  const bool same = kept[0] == 0x600D;\n  d[row * n + column] = __float2half(same ? sum + 1 : sum);\n",
            parameters=WORKSPACE,
        ),
        HOLDS_STATE,
        "an output",
    ),
    "guards-a-store": (
        naive(
            store="  asm volatile(\"{.reg .pred p; setp.ne.u32 p, %0, 24589; @p st.global.b16 [%1], %2;}\" ::\"r\"(kept[0]),"
            " \"l\"(d + row * n + column), \"h\"(__half_as_ushort(__float2half(sum))));\n",
            parameters=WORKSPACE,
        ),
        HOLDS_STATE,
        "the guard",
    ),
    "moves-the-store": (
        naive(store="  d[row * n + column + (kept[0] == 0x600D)] = __float2half(sum);\n", parameters=WORKSPACE),
        HOLDS_STATE,
        "an address",
    ),
    "moves-the-load": (
        naive(total=SUM.replace("a[row * k + i]", "a[row * k + i * (kept[0] != 0x600D)]"), parameters=WORKSPACE),
        HOLDS_STATE,
        "(an output|a branch)",
    ),
    "counts-launches": (
        naive(
            guard=GUARD + "  const unsigned count = atomicAdd(kept, 1u);\n  if (count > 4000000000u) return;\n",
            parameters=WORKSPACE,
        ),
        HOLDS_STATE,
        "a branch",
    ),
    "loop-bound": (
        naive(total=SUM.replace("i < k", "i < (kept[0] == 0x600D ? k / 2 : k)"), parameters=WORKSPACE),
        HOLDS_STATE,
        "a branch",
    ),
    "zero-times": (
        naive(store=STORE.replace("(sum)", "(sum + 0 * __uint_as_float(kept[0] & 0x7Fu))"), parameters=WORKSPACE),
        HOLDS_STATE,
        "an output",
    ),
    "cp-async": (
        guarded(
            f"{VOLATILE}[threadIdx.x] == 0x600D",
            SHARED + "  {\n    const unsigned to = (unsigned)__cvta_generic_to_shared(kept + threadIdx.x);\n"
            '    asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;"'
            ' ::"r"(to), "l"(d + 2 * (threadIdx.x % 8)));\n  }\n',
        ),
        ALONE,
        "a branch",
    ),
    "kept-result": (
        naive(
            store="  const unsigned index = row * n + column;\n"
            "  const unsigned short old = ((unsigned short*)kept)[index % 2048];\n"
            "  d[index] = __ushort_as_half(old == 0x600D ? old : __half_as_ushort(__float2half(sum)));\n",
            parameters=WORKSPACE,
        ),
        HOLDS_STATE,
        "(an output|a branch)",
    ),
    "local-memory": (
        guarded(
            "kept[threadIdx.x % 7] == 0x600D",
            '  unsigned kept[8];\n  kept[7] = threadIdx.x;\n  asm volatile("" :: "l"(kept) : "memory");\n',
        ),
        ALONE,
        "a branch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_kernel_that_uses_old_contents_is_refused(build: Build, name: str) -> None:
    source, launches, where = HOSTILE[name]
    answer = prove(build(source, launches))
    assert isinstance(answer, Done), answer
    test = answer.evaluation.tests[-1]
    assert test.name == Detector.UNINITIALISED_READ, test.message
    assert re.match(f"old, uninitialised contents reach {where}.*at `.*` \\(kernel.cu:\\d+\\)", test.message), test.message


HONEST = {
    "prefetches-d": (
        naive(total="  const unsigned short dead = ((volatile unsigned short*)d)[row * n + column];\n" + SUM),
        ALONE,
    ),
    "prefetches-past-the-end": (
        naive(first=SHARED + f"  unsigned next = {VOLATILE}[threadIdx.x];\n", total=SUM.replace("++i)", "++i, next = i)")),
        ALONE,
    ),
    "pads-with-zeros": (
        naive(
            first=SHARED + "  if (threadIdx.x < 100) kept[threadIdx.x] = 1;\n  __syncthreads();\n"
            f"  const unsigned word = threadIdx.x < 100 ? {VOLATILE}[threadIdx.x] : 0;\n",
            store=STORE.replace("(sum)", "(sum + word * 0)"),
        ),
        ALONE,
    ),
    "reads-and-selects": (
        naive(
            first=SHARED + f"  const unsigned word = {VOLATILE}[threadIdx.x];\n",
            store="  unsigned taken;\n"
            '  asm("{.reg .pred p; setp.lt.s32 p, %1, 0; selp.u32 %0, %2, 0, p;}" : "=r"(taken) : "r"(k), "r"(word));\n'
            + STORE.replace("(sum)", "(sum + taken)"),
        ),
        ALONE,
    ),
    "rows-out-of-bounds": (
        naive(
            first=SHARED + f"  unsigned word = {VOLATILE}[threadIdx.x] * 3 + 1;\n",
            guard="  const bool inside = row < m && column < n;\n",
            total="  float sum = __uint_as_float(word);\n  if (inside) {\n    sum = 0;\n"
            "    for (int i = 0; i < k; ++i) sum += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);\n  }\n",
            store="  if (inside) d[row * n + column] = __float2half(sum);\n",
        ),
        ALONE,
    ),
    "counts-and-drops": (
        naive(first="  if (threadIdx.x == 0) atomicAdd(kept + 9, 1u);\n", parameters=WORKSPACE),
        HOLDS_STATE,
    ),
    "restored-counter": (
        naive(
            first="  if (threadIdx.x == 0 && atomicInc(kept, gridDim.x * gridDim.y - 1) == 0xFFFFFFFFu) d[0] = d[1];\n",
            parameters=WORKSPACE,
        ),
        plan(args=({"workspace": 0},), workspace={"bytes": 64, "zero": "restored", "zero_bytes": 4}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_a_kernel_that_drops_old_contents_is_proved(build: Build, name: str) -> None:
    source, launches = HONEST[name]
    answer = prove(build(source, launches))
    assert isinstance(answer, Verified), answer
