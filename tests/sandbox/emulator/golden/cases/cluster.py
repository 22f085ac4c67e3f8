"""Cases of clusters, distributed shared memory, barriers of a CTA, and instructions without effect."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.case import Buffers, Bytes, Case, Family, raw, unwritten
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.sources import source

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]


def cluster_family() -> Family:
    return Family("clusters", source("clusters.cu"), tuple(_cases()))


def _cases() -> Iterator[Case]:
    for grid, cluster in (((4, 2, 1), (2, 1, 1)), ((4, 4, 2), (2, 2, 1)), ((2, 4, 2), (1, 2, 2)), ((3, 2, 1), (1, 1, 1))):
        yield _case("specials", grid, cluster, 4, 24, 0, partial(_specials, grid, cluster))
    for ctas in (2, 4):
        grid, cluster = (2 * ctas, 1, 1), (ctas, 1, 1)
        yield _case("remote_loads", grid, cluster, 32, 8, 4, partial(_loaded, ctas))
        yield _case("remote_stores", grid, cluster, 32, 5, 4, partial(_stored, ctas))
        yield _case("async_stores", grid, cluster, 32, 8, 8, partial(_sent, ctas))
        yield _case("remote_arrivals", grid, cluster, 32, 2, 1, partial(_arrived, ctas))
        yield _case("cluster_barriers", grid, cluster, 64, 1, 1, partial(_gone_round, ctas))
    one = (1, 1, 1)
    yield _case("block_barriers", one, one, 256, 8, 1, _met)
    yield _case("no_effect", one, one, 128, 1, 1, lambda words: words + np.roll(words, -5, axis=1))
    yield _case("register_counts", one, one, 384, 1, 1, lambda words: words * np.repeat([3, 5, 5], 128)[None, :, None])
    yield _case("addresses", one, one, 32, 10, 1, _addressed, smem=512)


def _case(
    kernel: str, grid: Shape, cluster: Shape, threads: int, out: int, given: int, words: Callable[[Array], Array], smem: int = 0
) -> Case:
    """`given`, `out`: words per thread; `words`: from [cta][thread][word] to [cta][thread][word]."""
    ctas = int(np.prod(grid))

    def build(draw: Draw) -> Buffers:
        return raw(draw.bits(max(ctas * threads * given, 4), 32)), unwritten(ctas * threads * out * 4)

    def expected(data: Bytes, _: Bytes) -> Bytes:
        shaped = data.view(np.uint32)[: ctas * threads * given].reshape(ctas, threads, given)
        return raw(words(shaped).astype(np.uint64).astype(np.uint32))

    name = f"clusters/{kernel} grid {'x'.join(map(str, grid))} cluster {'x'.join(map(str, cluster))}"
    return Case(name, kernel, build, grid, (threads, 1, 1), cluster, smem=smem, expected=expected)


def _specials(grid: Shape, cluster: Shape, _: Array) -> Array:
    """A launch without the cluster attribute is one of clusters of one CTA, and not an explicit one."""
    rows = []
    for z, y, x in np.ndindex(*reversed(grid)):
        cta = np.array((x, y, z))
        inner = cta % cluster
        rank = (inner[2] * cluster[1] + inner[1]) * cluster[0] + inner[0]
        parts = (cta // cluster, np.array(grid) // cluster, inner, cluster, (rank, np.prod(cluster)), cta, grid)
        explicit = int(cluster != (1, 1, 1))
        rows.append([[*(int(word) for part in parts for word in part), thread, 4, explicit, 1] for thread in range(4)])
    return np.array(rows)


def _next(words: Array, ctas: int) -> Array:
    """Every CTA's words replaced by those of the next CTA of its cluster."""
    return np.roll(words.reshape(-1, ctas, *words.shape[1:]), -1, axis=1).reshape(words.shape)


def _previous(words: Array, ctas: int) -> Array:
    return np.roll(words.reshape(-1, ctas, *words.shape[1:]), 1, axis=1).reshape(words.shape)


def _loaded(ctas: int, words: Array) -> Array:
    other = _next(words, ctas)
    owner = np.broadcast_to(((np.arange(len(words)) + 1) % ctas)[:, None, None], (*words.shape[:2], 2))
    return np.concatenate([other[:, :, 1:2], other, other[:, :, 2:3], owner], axis=2)


def _stored(ctas: int, words: Array) -> Array:
    sums = words[:, :, :1].reshape(-1, ctas, words.shape[1], 1).astype(np.uint64)
    first = np.zeros_like(sums)
    first[:, 0] = sums.sum(1)
    return np.concatenate([_previous(words, ctas), first.reshape(*words.shape[:2], 1)], axis=2)


def _sent(ctas: int, words: Array) -> Array:
    result = _previous(words, ctas).copy()
    result[:, :, 1] = 0
    return result


def _arrived(ctas: int, words: Array) -> Array:
    result = np.zeros((*words.shape[:2], 2), np.uint32)
    result[::ctas, :, 0] = words[ctas - 1 :: ctas, :, 0]
    result[::ctas, :, 1] = words[1::ctas, :1, 0]
    return result


def _gone_round(ctas: int, words: Array) -> Array:
    value = words.copy()
    for _ in range(10):
        value = value * np.uint32(3) + np.roll(_next(value, ctas), -1, axis=1)
    return value


def _met(words: Array) -> Array:
    value = words[0, :, 0].astype(np.uint64)
    odd = np.full(256, (value & 1).sum())
    tripled = value[:128] * 3
    third = np.concatenate([tripled[::-1], tripled])
    neighbour = value[np.arange(256) ^ 1] + 1
    low = np.full(256, int((value != 0xFFFFFFFF).all()))
    return np.stack([value[::-1], third, odd, low, 1 - low, odd, neighbour, odd], axis=1)[None]


def _addressed(words: Array) -> Array:
    lanes = np.arange(32)
    ones, second = np.ones(32, int), np.full(32, words[0, 1, 0])
    return np.stack([ones, 0 * ones, ones, ones, 7 * lanes, 7 * lanes, second, 512 * ones, ones, lanes + 1], axis=1)[None]
