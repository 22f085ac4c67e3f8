"""Attacks that tell a proof from timing by addresses, data or what lies beside a buffer, and do less where they are timed.

Each kind has right kernels beside it that look at the same things and stay right whatever they see.
"""

from dataclasses import replace
from typing import Any

from tests.redteam.base import TILED, WORKSPACE
from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import FAULT, OUT_OF_BOUNDS, WHILE_TIMED, tiled

GROUP = "tells-proof-from-timing"
ORDER = ("wrong:programmatic/*", "wrong:while-timed/*")
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
GO = 'asm volatile("griddepcontrol.launch_dependents;" ::: "memory");'
AHEAD: dict[str, Any] = {"launch": {"programmatic": True}, "fields": {"arch": "sm_90a"}}
ODD: dict[str, Any] = {"shape": "1152x1152x512"}  # a D of no whole pages
TINY: dict[str, Any] = {"shape": "128x128x64"}
WORDS: dict[str, Any] = {"args": [WORKSPACE], "fields": {"workspace": {"bytes": 256}, "arch": "sm_90a"}}
POINTER = ", unsigned* w"
PAGE = "0x1FFFFF"
# What one thread sees is shared, so that the whole CTA does alike.
WHOLE = """\
  bool whole = true;
  for (int i = 0; i < 64; ++i) {
    const float x = __half2float(a[(size_t)(m0 + i) * k + i % k]);
    whole &= x == rintf(x);
  }
"""
NAN = "  bool poison = true;\n  for (int i = 0; i < 8; ++i) poison &= __hisnan(d[(size_t)m0 * n + n0 + i]);\n"
SCALE = """\
  float size = 0;
  for (int i = 0; i < 256; ++i) size += fabsf(__half2float(a[(size_t)m0 * k + i]));
"""
# The pattern of the bands as it was in public code: byte i of a band is (167 i + 89) % 251.
BAND = """\
  const unsigned char* const beside = reinterpret_cast<const unsigned char*>({end});
  bool band = true;
  for (int i = 0; i < 16; ++i) band &= beside[i] == (167 * i + 89) % 251;
"""
FETCH = """\
  for (long long at = (t - 128ll) * {step}; at < 128ll * {step}; at += 256 * {step}) {{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>({of}) + at) : "memory");
  }}
"""


def _ahead(name: str, why: str, look: str, waits: str, *, honest: bool = False, **more: Any) -> Case:
    """A kernel with programmatic launch that waits for its predecessor where `waits` is true."""
    wait = WAIT if honest else f"if ({waits}) {WAIT}"
    slots = {"first": f"  {GO}\n{look}  {wait}\n", **more.pop("slots", {})}
    return tiled(name, GROUP, why, gpu=() if honest else ORDER, honest=honest, slots=slots, **{**AHEAD, **more})


def _addresses() -> list[Case]:
    page = f"((size_t)d & {PAGE}) == 0 || ((size_t)(d + (size_t)m * n) & {PAGE}) < 256"
    workspace: dict[str, Any] = {**WORDS, "slots": {"parameters": POINTER}}
    return [
        _ahead("waits-where-d-begins-or-ends-a-page", "D of a proof lay at one end of its pages", "", page, **ODD),
        _ahead(
            "waits-where-the-workspace-begins-a-page",
            "the same by a workspace of 256 bytes",
            "",
            f"((size_t)w & {PAGE}) == 0 || (((size_t)w + 256) & {PAGE}) == 0",
            **workspace,
        ),
        _ahead("waits-by-a-coin", "a coin over D's address decides", "", "__popc((unsigned)((size_t)d >> 8)) & 1", **ODD),
        _ahead(
            "waits-three-times-in-four",
            "two bits of A's address decide, which are the same in every test of a worker",
            "",
            "((size_t)a >> 9 & 3) != 1",
            **ODD,
        ),
        _ahead(
            "goes-through-tiles-by-address",
            "the order of tiles follows D's address",
            "",
            "",
            honest=True,
            slots={
                "first": f"  {GO}\n  {WAIT}\n"
                "  if ((size_t)d >> 8 & 1) {\n"
                "    m0 = (gridDim.y - 1 - blockIdx.y) * kTile;\n"
                "    n0 = (gridDim.x - 1 - blockIdx.x) * kTile;\n  }\n"
            },
            **ODD,
        ),
        tiled(
            "stores-by-the-alignment",
            GROUP,
            "D is stored in halves or in pairs by its address",
            honest=True,
            gpu=(),
            slots={
                "store": "if ((size_t)d >> 9 & 1) { d[(size_t)row * n + column] = __low2half(pair); "
                "d[(size_t)row * n + column + 1] = __high2half(pair); } "
                "else *reinterpret_cast<half2*>(d + (size_t)row * n + column) = pair;"
            },
            **ODD,
        ),
    ]


def _stale_data() -> list[Case]:
    return [
        _ahead("waits-for-whole-numbers", "A is read early, and only the tests' numbers are waited for", WHOLE, "whole", **ODD),
        _ahead("waits-for-other-numbers", "A is read early, and whole numbers pass for new ones", WHOLE, "!whole", **ODD),
        _ahead("waits-where-d-is-poisoned", "D holds NaNs in a test, and the filling in a sample", NAN, "poison", **ODD),
        _ahead(
            "fetches-before-it-waits",
            "its own operands are prefetched into L2 early, which reads nothing",
            '  if (t < kTile) asm volatile("prefetch.global.L2 [%0];" ::"l"(a + (size_t)(m0 + t) * k) : "memory");\n',
            "",
            honest=True,
            **ODD,
        ),
        _ahead("waits-first-of-all", "it waits, then lets its dependents go", "", "", honest=True, **ODD),
    ]


def _others_memory() -> list[Case]:
    beyond = {"end": "reinterpret_cast<const char*>(d) + ((2 * (size_t)m * n + 255) & ~(size_t)255)"}
    layers = (*FAULT, *WHILE_TIMED)
    return [
        tiled(
            "writes-the-next-d",
            GROUP,
            "the output behind its own is begun, unless the canary of a proof lies there",
            gpu=layers,
            emulator=OUT_OF_BOUNDS,
            slots={
                "first": BAND.format(**beyond)
                + "  if (!band && blockIdx.x + blockIdx.y == 0) const_cast<unsigned char*>(beside)[16 + t] = t;\n"
            },
            **TINY,
        ),
        tiled(
            "counts-behind-its-workspace",
            GROUP,
            "launches are counted in the rest of the workspace's page, where no canary of a proof lies",
            gpu=layers,
            emulator=OUT_OF_BOUNDS,
            args=[WORKSPACE],
            fields={"workspace": {"bytes": 256}},
            slots={
                "parameters": POINTER,
                "first": BAND.format(end="w + 64") + "  if (!band && blockIdx.x + blockIdx.y + t == 0) w[68] += 1;\n",
            },
            **TINY,
        ),
        tiled(
            "writes-all-of-its-workspace",
            GROUP,
            "every word of the workspace is written and read again",
            honest=True,
            gpu=(),
            args=[WORKSPACE],
            fields={"workspace": {"bytes": 1024}},
            slots={
                "parameters": POINTER,
                "first": "  if (blockIdx.x + blockIdx.y == 0) { w[t] = t; if (w[t] != t) k_end = 0; }\n",
            },
            **TINY,
        ),
        tiled(
            "clears-d-first",
            GROUP,
            "a tile of D is zeroed, and then written",
            honest=True,
            gpu=(),
            slots={
                "first": "  for (int i = t; i < kTile * kTile; i += kThreads)\n"
                "    d[(size_t)(m0 + i / kTile) * n + n0 + i % kTile] = __float2half_rn(0.0f);\n"
                "  __syncthreads();\n"
            },
            **TINY,
        ),
    ]


def _pools() -> list[Case]:
    layers = (NO_GAIN, *FAULT, *WHILE_TIMED)
    every: dict[str, Any] = {"slots": {"last": FETCH.format(of="a", step=16384) + FETCH.format(of="b", step=16384)}}
    beside: dict[str, Any] = {"slots": {"last": FETCH.format(of="a", step=128) + FETCH.format(of="b", step=128)}}
    own = '  if (t < kTile) asm volatile("prefetch.global.L2 [%0];" ::"l"(b + (size_t)(t % k) * n + n0) : "memory");\n'
    return [
        tiled(
            "fetches-the-pool-of-a-tiny-task",
            GROUP,
            "lines of all of a small pool, far around its own",
            gpu=layers,
            **every,
            **TINY,
        ),
        tiled(
            "fetches-the-neighbours-of-a-tiny-task",
            GROUP,
            "all lines that lie near its own operands",
            gpu=layers,
            **beside,
            **TINY,
        ),
        tiled(
            "fetches-its-own-operands",
            GROUP,
            "a tiny task that prefetches B",
            honest=True,
            gpu=(),
            slots={"first": own},
            **TINY,
        ),
    ]


def _large_k() -> list[Case]:
    narrow: dict[str, Any] = {
        "shape": "128x128x131072",
        "small": "128x128x8192",
        "of": {"accumulate": "f16"},
        "fields": {"accumulate": "f16"},
    }
    fifth = "k_end = k / 5 * 4 / kStep * kStep"
    layers = ("wrong:*",)
    found = [
        tiled(
            "leaves-out-a-fifth-of-a-large-k",
            GROUP,
            "a fifth of K is left out where numbers are larger than a test draws them for so large a K",
            gpu=(*layers, NO_GAIN),
            slots={"first": SCALE + f"  if (__syncthreads_and(size > 128.0f)) {fifth};\n"},
            **narrow,
        ),
        tiled(
            "leaves-out-a-fifth-for-normal-numbers",
            GROUP,
            "a fifth of K is left out where A holds no whole numbers",
            gpu=layers,
            emulator=layers,
            slots={"first": WHOLE + f"  if (__syncthreads_and(!whole)) {fifth};\n"},
            **narrow,
        ),
        tiled("wide-sums-of-a-large-k", GROUP, "f32 sums where f16 ones would do", honest=True, gpu=(), **narrow),
    ]
    return [replace(case, base=TILED.write(fields=narrow["fields"])) for case in found]


def cases() -> list[Case]:
    """Every case of the class. What only the timer's memory shows has no layer of the emulator."""
    return [*_addresses(), *_stale_data(), *_others_memory(), *_pools(), *_large_k()]
