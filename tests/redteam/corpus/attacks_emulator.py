"""Attacks on the emulator: kernels that are right, or pass, only there."""

from typing import Any

from tests.redteam.base import WORKSPACE
from tests.redteam.case import Case
from tests.redteam.corpus.rows import OLD_CONTENTS, WHILE_TIMED, WRONG_RESULT, plain

GROUP = "emulator-only"
WRONG = ("wrong:*",)
ENDLESS = ("wrong:emulator/endless", "wrong:emulator/deadlock")

REGISTER = """\
  unsigned register_value;
  asm volatile("mov.u32 %0, %%{register};" : "=r"(register_value));
  const bool real = {real};
"""
SPOIL = "  if (real) sum += 1.0f;\n"
# The first kernel writes sums to the workspace, the second triggers without waiting, the third stores the sums.
CHAIN = """
extern "C" __global__ void between(int m) { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
extern "C" __global__ void finish(half* d, const float* w, int m, int n) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < m * n) d[i] = __float2half_rn(w[i]);
}
"""
NEXT = [
    {"entry": "between", "grid": [1, 1, 1], "block": [32, 1, 1], "programmatic": True, "args": [{"scalar": "M"}]},
    {
        "entry": "finish",
        "grid": ["ceil(M*N/256)", 1, 1],
        "block": [256, 1, 1],
        "programmatic": True,
        "args": [{"tensor": "D", "access": "write"}, WORKSPACE, {"scalar": "M"}, {"scalar": "N"}],
    },
]
TO_WORKSPACE = "w[(size_t)row * n + column] = sum;"
TRIGGER = '  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");\n'
# A bulk copy that no thread waits for stores a row of the CTA's outputs.
BULK = """\
  __shared__ __align__(16) half rows[16][16];
  if (row < m && column < n) {
    float total = 0;
    for (int i = 0; i < k; ++i) total += widen(a[(size_t)row * k + i]) * widen(b[(size_t)i * n + column]);
    rows[threadIdx.x / 16][threadIdx.x % 16] = narrow(total);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x < 16 && blockIdx.y * 16 + threadIdx.x < m) {
    half* const target = d + (size_t)(blockIdx.y * 16 + threadIdx.x) * n + blockIdx.x * 16;
    const unsigned source = (unsigned)__cvta_generic_to_shared(&rows[threadIdx.x][0]);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 32;" ::"l"(target), "r"(source) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    WAIT
  }
  return;
"""
LARGE, LARGER = "704x640x96", "1024x1024x256"  # slightly too large for the emulator to run whole, even in its quick test


def _sm90(**more: Any) -> dict[str, Any]:
    return {"arch": "sm_90a", **more}


def cases() -> list[Case]:
    """Every attack of the class. Faults that a GPU cannot detect, or detects by chance, have no layers there."""
    chain: dict[str, Any] = {
        "args": [WORKSPACE],
        "after": NEXT,
        "fields": _sm90(workspace={"bytes": "4*M*N"}),
        "slots": {"parameters": ", float* w", "first": TRIGGER, "store": TO_WORKSPACE, "tail": CHAIN},
    }
    registers = (
        (
            "smid-is-zero",
            "smid",
            "blockIdx.x + blockIdx.y > 0 && register_value != 0",
            "right only where every CTA runs on SM 0",
        ),
        ("nsmid-is-one", "nsmid", "register_value > 1", "right only on a chip of one SM"),
        (
            "warpid-is-in-order",
            "warpid",
            "register_value != threadIdx.x / 32",
            "right only where warps have the slots of their numbers",
        ),
    )
    return [
        *(
            plain(
                name,
                GROUP,
                why,
                gpu=WRONG if name != "warpid-is-in-order" else (*WRONG, "measured"),
                emulator=WRONG,
                slots={"first": REGISTER.format(register=register, real=real), "summed": SPOIL},
                shape="256x256x64",
            )
            for name, register, real, why in registers
        ),
        plain(
            "stale-d-with-a-pattern",
            GROUP,
            "D's old contents count only where they are a pattern that no poison has",
            gpu=(*WHILE_TIMED, "measured"),
            emulator=OLD_CONTENTS,
            slots={
                "summed": "  const unsigned old = *reinterpret_cast<const unsigned short*>(d + (size_t)row * n + column);\n"
                "  if (old == 0x5A3Cu) sum += 1.0f;\n"
            },
        ),
        plain(
            "stale-workspace-as-a-sum",
            GROUP,
            "the workspace's old contents are added where they are small, as no poison is",
            gpu=(*WHILE_TIMED, "measured"),
            emulator=OLD_CONTENTS,
            args=[WORKSPACE],
            fields={"workspace": {"bytes": "4*M*N"}},
            slots={
                "parameters": ", float* w",
                "summed": "  const float old = w[row * n + column];\n  if (old > 1e-30f && old < 1e-20f) sum += old * 1e20f;\n",
            },
        ),
        plain(
            "stale-shared-memory-as-an-index",
            GROUP,
            "shared memory that nobody wrote chooses which of two equal ways is gone",
            emulator=OLD_CONTENTS,
            slots={
                "first": "  __shared__ unsigned never[256];\n"
                "  const unsigned old = *(const volatile unsigned*)&never[threadIdx.x];\n"
                "  if (old == 0x12345678u) k_end = k / 2;\n"
            },
        ),
        plain(
            "middle-of-the-chain-does-not-wait",
            GROUP,
            "the second of three programmatic launches waits for nothing",
            emulator=WRONG,
            **chain,
        ),
        plain(
            "bulk-store-not-awaited",
            GROUP,
            "CTAs end while their bulk stores still read shared memory",
            emulator=WRONG,
            slots={"first": BULK.replace("WAIT", "")},
            fields=_sm90(requires=["N%16==0", "M%16==0"]),
            shape="256x256x64",
            small="32x48x48",
        ),
        plain(
            "bulk-store-not-awaited-in-time",
            GROUP,
            "shared memory is written again before the bulk store has read it",
            emulator=WRONG,
            slots={
                "first": BULK.replace("WAIT", "").replace(
                    "  return;\n", "  __syncthreads();\n  rows[threadIdx.x / 16][threadIdx.x % 16] = narrow(0.0f);\n  return;\n"
                )
            },
            fields=_sm90(requires=["N%16==0", "M%16==0"]),
            shape="256x256x64",
            small="32x48x48",
        ),
        plain(
            "right-for-periodic-rows",
            GROUP,
            "rows of A repeat after 251 where the task is large, as the emulator's sample does",
            gpu=WRONG_RESULT,
            emulator=WRONG_RESULT,
            slots={
                "product": "sum += widen(a[(size_t)(m > 600 ? row % 251 : row) * k + i]) * widen(b[(size_t)i * n + column]);"
            },
            shape=LARGE,
            small=LARGE,
        ),
        plain(
            "right-where-it-is-sampled",
            GROUP,
            "one tile in the interior of a large D is wrong",
            gpu=WRONG_RESULT,
            emulator=WRONG_RESULT,
            slots={"summed": "  if (m > 600 && row / 16 == 37 && column / 16 == 29) sum += 1.0f;\n"},
            shape=LARGER,
            small=LARGER,
        ),
        plain(
            "several-launches-at-large-sizes",
            GROUP,
            "a plan of two launches is wrong where the task is too large to be run whole",
            gpu=WRONG_RESULT,
            emulator=(*WRONG_RESULT, "not-executed"),
            args=[WORKSPACE],
            after=[{**NEXT[1], "programmatic": False}],
            fields=_sm90(workspace={"bytes": "4*M*N"}),
            slots={"parameters": ", float* w", "store": TO_WORKSPACE, "summed": "  if (m > 600) sum += 1.0f;\n", "tail": CHAIN},
            shape="1280x1024x1024",
            small="1280x1024x1024",
        ),
        plain(
            "all-warps-spin",
            GROUP,
            "every warp waits for a flag that nobody sets",
            gpu=("timed_out",),
            emulator=ENDLESS,
            hangs=True,
            args=[WORKSPACE],
            fields={"workspace": {"bytes": 64, "zero": True}},
            slots={"parameters": ", volatile unsigned* w", "first": "  while (w[0] == 0) __nanosleep(100);\n"},
        ),
        plain(
            "turns-in-a-circle",
            GROUP,
            "every CTA waits for the turn of the next one, so that none ever has its own",
            gpu=("timed_out",),
            emulator=ENDLESS,
            hangs=True,
            args=[WORKSPACE],
            fields={"workspace": {"bytes": "4*(M+16)*(N+16)", "zero": True}},
            slots={
                "parameters": ", volatile unsigned* w",
                "first": "  const unsigned mine = blockIdx.y * gridDim.x + blockIdx.x, all = gridDim.x * gridDim.y;\n"
                "  while (w[(mine + 1) % all] == 0) {\n  }\n",
                "last": "  w[mine] = 1;\n",
            },
        ),
    ]
