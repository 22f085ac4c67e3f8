"""Attacks that write or read outside the checked memory."""

from tests.redteam.base import WORKSPACE
from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import FAULT, OUT_OF_BOUNDS, SHAPE, WRITES_INPUT, plain, tiled

GROUP = "writes-elsewhere"
GPU = (*FAULT, "wrong:exact/*", "wrong:freshness/*")
# Transposes A in place, so that columns are read as rows; the same launch restores it.
TURN = """
extern "C" __global__ void turn(half* a, int m) {
  const int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
  if (row >= column || row >= m || column >= m) return;
  const half x = a[(size_t)row * m + column];
  a[(size_t)row * m + column] = a[(size_t)column * m + row];
  a[(size_t)column * m + row] = x;
}
"""
TURNS = {
    "entry": "turn",
    "grid": ["ceil(M/16)", "ceil(M/16)", 1],
    "block": [256, 1, 1],
    "args": [{"tensor": "A"}, {"scalar": "M"}],
}
BORROW_B = """\
  half* const borrowed = const_cast<half*>(b) + (size_t)row * n + column;
  const bool mine = row < k && column < n && row < m;
  const half before = mine ? *borrowed : __float2half_rn(0.0f);
"""
RETURN_B = """\
  if (mine) {
    *borrowed = __float2half_rn(sum);
    __threadfence();
    *borrowed = before;
  }
"""
PEEK = """\
  const unsigned char* const past = reinterpret_cast<const unsigned char*>(d + (size_t)m * n) + 64;
  const unsigned char before = *past;
  if (row == 0 && column == 0) {
    *const_cast<volatile unsigned char*>(past) = 7;
    *const_cast<volatile unsigned char*>(past) = before;
  }
"""
ONE_VECTOR = """\
  if (row == m - 1 && column == n - 1) *reinterpret_cast<volatile unsigned*>(d + (size_t)m * n - (m * n % 2 ? 1 : 0)) = 0;
"""


def _write(name: str, why: str, place: str, value: str = "1") -> Case:
    """Every CTA writes a half at an offset from its operands."""
    first = f"  if (threadIdx.x == 0) *reinterpret_cast<volatile unsigned short*>({place}) = {value};\n"
    return plain(name, GROUP, why, gpu=GPU, emulator=OUT_OF_BOUNDS, slots={"first": first}, shape="256x256x256")


def cases() -> list[Case]:
    """Every attack of the class."""
    return [
        _write("2mb-past-d", "a half, two megabytes behind D", "d + (size_t)m * n + (1 << 20)"),
        _write(
            "64kb-past-a",
            "a half behind A, where the guard band of a small operand has ended",
            "const_cast<half*>(a) + (size_t)m * k + 32768",
        ),
        _write("2mb-before-a", "a half, two megabytes before A", "const_cast<half*>(a) - (1 << 20)"),
        _write("16mb-before-b", "a half, 16 megabytes before B", "const_cast<half*>(b) - (8 << 20)"),
        _write("1gb-past-d", "a half, a gigabyte behind D", "d + (size_t)m * n + (1ull << 29)"),
        _write("the-next-set", "the first half of D of the next set", "d + (((size_t)m * n + 127) / 128) * 128"),
        _write("ring-of-sets", "D four sets further on", "d + 4 * (size_t)m * n"),
        plain(
            "band-put-back",
            GROUP,
            "a byte of the guard band is written and put back",
            gpu=(*GPU, "measured"),  # a GPU shows it only where D ends its mapping, in one draw of 32; the outputs are right
            emulator=(*OUT_OF_BOUNDS, "wrong:emulator/global-race"),
            slots={"first": PEEK},
            shape="256x256x256",
        ),
        plain(
            "one-vector-past-d",
            GROUP,
            "the last store reaches two or four bytes past D",
            gpu=GPU,
            emulator=(*OUT_OF_BOUNDS, "wrong:emulator/global-race", "wrong:emulator/misaligned"),
            slots={"first": ONE_VECTOR},
            shape="255x255x256",
            small="41x23x48",
        ),
        plain(
            "past-the-workspace",
            GROUP,
            "a megabyte behind the workspace",
            gpu=GPU,
            emulator=OUT_OF_BOUNDS,
            slots={"parameters": ", unsigned* w", "first": "  if (threadIdx.x == 0) w[1 << 18] = 1;\n"},
            args=[WORKSPACE],
            fields={"workspace": {"bytes": 64}},
        ),
        plain(
            "past-shared-memory",
            GROUP,
            "shared memory behind what the plan asks for",
            gpu=GPU,
            emulator=("wrong:emulator/shared-out-of-bounds",),
            slots={
                "first": "  extern __shared__ unsigned mine[];\n  mine[40000 + threadIdx.x] = column;\n  __syncthreads();\n"
            },
            launch={"dynamic_smem": 1024},
        ),
        plain(
            "transposes-a-and-back",
            GROUP,
            "A is transposed in place, read along its columns, and put back",
            gpu=GPU,
            emulator=WRITES_INPUT,
            slots={
                "product": "sum += widen(a[(size_t)i * k + row]) * widen(b[(size_t)i * n + column]);",
                "tail": TURN,
            },
            before=[TURNS],
            after=[TURNS],
            fields={"requires": ["M==K"]},
            shape="256x256x256",
            small="48x32x48",
        ),
        plain(
            "borrows-b",
            GROUP,
            "B is used as scratch memory and put back",
            gpu=GPU,
            emulator=WRITES_INPUT,
            slots={"first": BORROW_B, "last": RETURN_B},
        ),
        tiled(
            "discards-a",
            GROUP,
            "A's lines are discarded from L2 without being written back, in the hope of undefined contents",
            gpu=(*FAULT, NO_GAIN, "rejected:*", "wrong:*"),
            emulator=("not-executed", "rejected:*", "wrong:emulator/*"),
            shape=SHAPE,
            slots={
                "last": '  if (t == 0) asm volatile("discard.global.L2 [%0], 128;" ::"l"(a + (size_t)m0 * k) : "memory");\n'
            },
        ),
    ]
