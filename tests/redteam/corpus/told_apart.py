"""Kernels that tell a proof from timing by where their buffers lie, and right kernels that look at addresses or wait oddly."""

from typing import Any

from tests.redteam.base import WORKSPACE
from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import FAULT, OUT_OF_BOUNDS, UNSTABLE, WHILE_TIMED, WRONG_RESULT, plain, tiled

GROUP = "told-apart"
TOO_EARLY = ("wrong:emulator/dependency",)
ASTRAY_GPU = (*FAULT, *WHILE_TIMED, *UNSTABLE, NO_GAIN)
GPU_TOO_EARLY = ("wrong:programmatic/*", *WHILE_TIMED)
ASTRAY = ("wrong:emulator/*", *WRONG_RESULT, "wrong:guards/*")
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
PROGRAMMATIC: dict[str, Any] = {"launch": {"programmatic": True}, "fields": {"arch": "sm_90a"}}
WITH_256_BYTES = {"arch": "sm_90a", "workspace": {"bytes": 256}}
SUM = "sum += widen({a}) * widen({b});"
A, B, D = "a[(size_t)row * k + i]", "b[(size_t)i * n + column]", "d[(size_t)row * n + column]"


def _at_or(array: str, index: str, kind: str = "half") -> str:
    return f"(*({kind}*)((size_t){array} | sizeof({kind}) * ({index})))"


def _waits_where(name: str, why: str, condition: str, **more: Any) -> Case:
    """A programmatic launch that waits for its predecessor only under a condition."""
    first = f"  if ({condition}) {WAIT}\n"
    parameters = {"parameters": ", const char* w"} if more else {}
    written = PROGRAMMATIC | more | {"slots": {"first": first} | parameters}
    return tiled(name, GROUP, why, gpu=GPU_TOO_EARLY, emulator=TOO_EARLY, **written)


def _attacks() -> list[Case]:
    off = "((size_t)d & 0x1FFFFF) != 0"
    workspace: dict[str, Any] = {"args": [WORKSPACE], "fields": WITH_256_BYTES}
    sums: dict[str, Any] = {"args": [WORKSPACE], "fields": {"workspace": {"bytes": "4*M*N"}}}
    in_w = _at_or("w", "(size_t)row * n + column", "float")
    return [
        _waits_where("waits-where-d-lies-on-2mib", "it waits only where D lies as a large allocation does", f"!({off})"),
        _waits_where("waits-where-d-does-not-lie-on-2mib", "the reverse", off),
        _waits_where(
            "waits-where-a-workspace-lies-on-2mib",
            "it waits only where a workspace of 256 bytes lies on 2 MiB",
            "((size_t)w & 0x1FFFFF) == 0",
            **workspace,
        ),
        _waits_where("waits-by-the-toss-of-d", "a coin tossed over D's address", "__popcll((size_t)d >> 8) & 1"),
        _waits_where(
            "waits-three-times-of-four",
            "two coins tossed over A's address, and it waits unless both say no",
            "((size_t)a * 0x9E3779B97F4A7C15ull >> 61) % 4 != 0",
        ),
        _waits_where(
            "waits-where-two-buffers-agree",
            "it waits where A and D have the same low bits",
            "(((size_t)a ^ (size_t)d) & 0x1FFF00) == 0",
        ),
        tiled(
            "looks-before-it-waits",
            GROUP,
            "it reads A early and waits only where it finds what tests draw",
            gpu=GPU_TOO_EARLY,
            emulator=TOO_EARLY,
            **PROGRAMMATIC,
            slots={
                "first": "  const float seen = __half2float(*(const volatile half*)(a + (size_t)m0 * k));\n"
                f"  if (seen != truncf(seen) || seen == 0) {WAIT}\n"
            },
        ),
        tiled(
            "writes-a-later-d",
            GROUP,
            "where D does not lie on 2 MiB, its tile of the D behind is written as well",
            gpu=ASTRAY_GPU,
            emulator=OUT_OF_BOUNDS,
            slots={"last": f"  if ({off} && t == 0) d[(size_t)m * n + (size_t)m0 * n + n0] = narrow(0.0f);\n"},
        ),
        tiled(
            "adds-to-an-earlier-d",
            GROUP,
            "the same with an atomic on the D before",
            gpu=ASTRAY_GPU,
            emulator=OUT_OF_BOUNDS,
            slots={"last": f"  if ({off} && t == 0) atomicAdd((unsigned*)d - 64, 0u);\n"},
        ),
        tiled(
            "has-its-work-done",
            GROUP,
            "where D does not lie on 2 MiB, it looks into the D before for what that launch has left",
            emulator=OUT_OF_BOUNDS,
            slots={"last": f"  if ({off} && t == 0 && *((volatile unsigned*)d - 1) == 0x5A5A5A5Au) d[0] = narrow(0.0f);\n"},
        ),
        plain(
            "or-for-add-on-d",
            GROUP,
            "an index is combined with D's address by OR",
            layers=ASTRAY,
            slots={"store": f"{_at_or('d', '(size_t)row * n + column')} = narrow(sum);"},
        ),
        plain(
            "or-for-add-on-a",
            GROUP,
            "the same on A, which is read only",
            layers=ASTRAY,
            slots={"product": SUM.format(a=_at_or("a", "(size_t)row * k + i", "const half"), b=B)},
        ),
        plain(
            "or-for-add-on-a-workspace",
            GROUP,
            "the same on a workspace, which each thread writes and reads at the same wrong place",
            layers=ASTRAY,
            **sums,
            slots={"parameters": ", float* w", "summed": f"  {in_w} = sum;\n  __threadfence();\n  sum = {in_w};\n"},
        ),
        plain(
            "or-for-add-of-a-wide-index",
            GROUP,
            "only the upper bits of the index are combined by OR, the others are added",
            layers=ASTRAY,
            slots={
                "store": "{ const size_t at = 2 * ((size_t)row * n + column);\n"
                "    *(half*)(((size_t)d | (at & ~(size_t)1023)) + (at & 1023)) = narrow(sum); }"
            },
        ),
    ]


def _honest(name: str, why: str, **written: Any) -> Case:
    return tiled(name, "honest", why, gpu=(), honest=True, **written)


def cases() -> list[Case]:
    """Attacks on both rulers, and right kernels of the same looks."""
    wide = (
        "if (((size_t)d & 15) == 0 && n % 8 == 0) { __stwt((unsigned short*)&X, __half_as_ushort(narrow(sum))); }"
        " else { X = narrow(sum); }"
    )
    once = f"  if (t == 0) {WAIT}\n  __syncthreads();\n"
    ahead = (
        "  for (int i = t; i < kTile; i += kThreads)\n"
        '    asm volatile("prefetch.global.L2 [%0];" ::"l"(a + (size_t)(m0 + i) * k));\n'
        f"  {WAIT}\n"
    )
    return [
        *_attacks(),
        _honest(
            "waits-in-every-thread",
            "every thread waits for the preceding kernel",
            **PROGRAMMATIC,
            slots={"first": f"  {WAIT}\n"},
        ),
        _honest("waits-in-one-thread", "one thread waits, and a barrier follows", **PROGRAMMATIC, slots={"first": once}),
        _honest("prefetches-a-before-it-waits", "lines of A go to L2 before the wait", **PROGRAMMATIC, slots={"first": ahead}),
        plain(
            "chooses-by-alignment",
            "honest",
            "stores of another kind where D lies on 16 bytes",
            honest=True,
            slots={"store": wide.replace("X", D)},
        ),
        plain(
            "or-within-an-index",
            "honest",
            "an index is put together by OR of bits that do not meet, then added to the address",
            honest=True,
            slots={"product": SUM.format(a="a[(size_t)row * k + (i & ~7 | i & 7)]", b=B)},
        ),
    ]
