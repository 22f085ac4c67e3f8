"""Where buffers lie: in verification and in timing alike, bit by bit of the address."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")

from cudal2_agent.sandbox.cuda.guard.buffers import ALIGNMENT_BYTES, Guarded
from cudal2_agent.sandbox.cuda.guard.placement import (
    EDGE,
    PAGE_BYTES,
    draw_offset,
    place,
    room_bytes,
    scatter,
    slot_bytes,
)

SIZES = (2, 8192, 37 * 71 * 2, 512 * 1024, PAGE_BYTES, 5 * PAGE_BYTES // 2 + 2)
BITS = range(8, 21)  # of an address, below the page; the pages themselves are drawn for every mapping


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("count", "least"), [(1, 0), (7, 0), (300, 0), (300, 512 * 1024**2)])
def test_slots_do_not_overlap_and_their_room_holds_them(size, count, least):
    starts, room = scatter(count, size, random.Random(count), least)
    assert len(starts) == count
    assert room % PAGE_BYTES == 0
    assert room >= least
    ordered = sorted(starts)
    assert all(after - before >= size for before, after in itertools.pairwise(ordered))
    assert ordered[0] >= 0
    assert ordered[-1] + size <= room
    assert all(start % ALIGNMENT_BYTES == 0 for start in starts)
    assert count == 1 or starts != ordered, "the order of launches tells nothing of their addresses"


@pytest.mark.parametrize("size", SIZES)
def test_no_bit_of_an_address_tells_verification_from_timing(size):
    draw, room, runs = random.Random(3), room_bytes(size), 4000
    verified = [place(size, room, draw) for _ in range(runs)]
    timed = [start for _ in range(20) for start in scatter(runs // 20, size, draw, 64 * 1024**2)[0]]
    for bit in BITS:
        shares = [sum(start >> bit & 1 for start in starts) / runs for starts in (verified, timed)]
        assert abs(shares[0] - shares[1]) < 5 * (0.5 / runs) ** 0.5, bit
    edges = [sum(start % PAGE_BYTES == 0 for start in starts) / runs for starts in (verified, timed)]
    assert all(abs(share - 1 / EDGE * (1 + (slot_bytes(size) % PAGE_BYTES == 0))) < 0.02 for share in edges)


@pytest.mark.parametrize("size", SIZES)
def test_slots_keep_the_offsets_that_were_drawn(size):
    """By construction: every slot's place within its page is its own draw, whatever lies beside it."""
    drawn = random.Random(9)
    offsets = sorted(draw_offset(size, drawn) for _ in range(500))
    starts, _ = scatter(500, size, random.Random(9), 256 * 1024**2)
    assert sorted(start % PAGE_BYTES for start in starts) == offsets


def test_a_tiny_pool_is_wider_than_a_launch_can_fetch_and_tells_nothing_of_the_next_matrix():
    starts, room = scatter(2000, 8192, random.Random(4), 500 * 1024**2)
    assert room >= 500 * 1024**2
    steps = np.diff(starts)
    assert len(set(steps.tolist())) > 1900
    apart = np.diff(sorted(starts))
    assert np.unique(apart).size > 1000, "no step leads from a matrix to the next one"
    assert np.median(apart) > 64 * 1024


@pytest.mark.parametrize("size", SIZES)
def test_some_places_touch_either_end_of_a_mapping(size):
    draw, room = random.Random(5), room_bytes(size)
    places = [place(size, room, draw) for _ in range(1000)]
    assert all(start >= 0 and start + size <= room for start in places)
    assert sum(start == 0 for start in places) > 10
    assert sum(start + slot_bytes(size) == room for start in places) > 10


def test_a_guarded_buffer_moves_and_its_bands_fill_the_rest():
    memory = np.zeros(room_bytes(1000), np.uint8)
    guarded = Guarded(1000, np, mapping=SimpleNamespace(bytes=lambda: memory, writer=lambda: memory))
    draw, places = random.Random(6), set()
    for _ in range(40):
        guarded.place(draw)
        start = guarded.payload.ctypes.data - memory.ctypes.data
        places.add(start)
        guarded.fill(7)
        assert guarded.violation() is None
        for outside in {0 if start else 1000, memory.size - 1 if start + 1000 < memory.size else 0, start + 1000}:
            if not start <= outside < min(start + 1000, memory.size) and outside < memory.size:
                memory[outside] ^= 1
                assert guarded.violation() is not None
                guarded.repair()
    assert len(places) > 30


def test_the_bands_are_drawn():
    assert (Guarded(64, np)._pattern != Guarded(64, np)._pattern).any()


def test_a_process_draws_the_bytes_of_patterns_once(monkeypatch):
    Guarded(64, np)
    monkeypatch.setattr(np.random, "default_rng", lambda _seed: pytest.fail("milliseconds on the host for each workspace"))
    large = np.zeros(room_bytes(256), np.uint8)
    assert Guarded(256, np, mapping=SimpleNamespace(bytes=lambda: large, writer=lambda: large)).violation() is None
