"""Tensor maps that are no parameters, and prefetches of what belongs to other launches; right kernels with both."""

from dataclasses import replace
from typing import Any

from tests.redteam.case import Case
from tests.redteam.corpus.honest_tiled import TMA, _family
from tests.redteam.corpus.rows import FAULT, OUT_OF_BOUNDS, tiled

GROUP = "maps-and-prefetches"
NO_MAP = ("wrong:emulator/tensor-map",)
SM90 = {"arch": "sm_90a"}
PREFETCH = 'asm volatile("{what} [%0];" ::"l"({address}) : "memory");'
BULK = 'asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"({address}), "r"({bytes}) : "memory");'
FIRST_MAP = "tma_prefetch_map(map_a);"
OWN_MAP = """\
__shared__ __align__(128) unsigned long long own_map[16];
    for (int i = 0; i < 16; ++i) own_map[i] = reinterpret_cast<const unsigned long long*>(&map_a)[i];
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("prefetch.tensormap [%0];" ::"l"(own_map) : "memory");"""


def _maps(name: str, why: str, instead: str) -> Case:
    """A kernel of a family that prefetches another map than its first."""
    right = _family(name, why, TMA, "128x128x128")
    assert FIRST_MAP in right.source
    source = right.source.replace(FIRST_MAP, instead)
    return replace(right, group=GROUP, source=source, honest=False, gpu=(*FAULT, "measured"), emulator=NO_MAP)


def _prefetches(name: str, why: str, code: str, *, honest: bool = False) -> Case:
    layers: dict[str, Any] = {"gpu": ()} if honest else {"emulator": OUT_OF_BOUNDS}
    return tiled(
        name,
        "honest" if honest else GROUP,
        why,
        honest=honest,
        fields=SM90,
        slots={"first": f"  if (t == 0) {{ {code} }}\n"},
        **layers,
    )


def cases() -> list[Case]:
    """Attacks that a GPU refuses only where they bring time, and their honest twins."""
    pool, next_d = (
        BULK.format(address="a", bytes="32 * m * k"),
        PREFETCH.format(what="prefetch.L2", address="d + (size_t)m * n"),
    )
    last_line = PREFETCH.format(what="prefetch.global.L2", address="(const char*)(a + (size_t)m * k) - 1")
    return [
        _maps(
            "map-behind-the-parameters", "the map eight parameters on is prefetched", FIRST_MAP.replace("map_a", "(&map_a)[8]")
        ),
        _maps(
            "map-between-parameters",
            "an address within a map",
            FIRST_MAP.replace("map_a", "*(const TensorMap*)((const char*)&map_a + 64)"),
        ),
        _maps("map-of-its-own-making", "a copy of a map in shared memory", OWN_MAP),
        _prefetches("a-pool-at-once", "the operands of sixteen launches by one bulk prefetch", pool),
        _prefetches("the-next-d", "the D behind its own, by a generic address", next_d),
        _prefetches(
            "the-operand-before",
            "uniform prefetch of what lies before A",
            PREFETCH.format(what="prefetchu.L1", address="a - 64"),
        ),
        _prefetches(
            "own-rows-in-bulk",
            "its own rows of A by bulk prefetch",
            BULK.format(address="a", bytes="2 * kTile * k"),
            honest=True,
        ),
        _prefetches("the-last-line", "the line of A's last byte", last_line, honest=True),
    ]
