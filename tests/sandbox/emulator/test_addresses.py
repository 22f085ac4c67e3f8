"""Addresses of a proof: drawn for each buffer and each run, so that none of their bits tells a kernel where it is."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.addressing import ALIGNMENT, BLOCK, GRANULE_BYTES, LINE_BYTES, LOWEST_ADDRESS
from cudal2_agent.sandbox.emulator.machine import Machine
from cudal2_agent.sandbox.verification.executor import SLOTS
from tests.sandbox.emulator.proving import TASK, Build, naive, plan, prove

SIZES = {"A": 300, "B": 5 << 20, "D": 64 << 10, "workspace": 256}
BITS = range(8, 21)
RUNS = 2000
PROOF = 20  # runs of a usual proof
BESIDE, ACROSS = 6, 7  # of the seeds 8n to 8n + 7: buffers side by side, and across multiples of 4 GiB
APART = [seed for seed in range(200) if seed % 8 < BESIDE]
DEVIATIONS = 5.0


@pytest.fixture(scope="module")
def placed() -> dict[str, np.ndarray]:
    """The addresses of each buffer under seeds far from one another."""
    machine = machine_of_sizes()
    rows = []
    for seed in (seed - seed % 8 + seed % BESIDE for seed in random.Random(1).sample(range(2**40), RUNS)):
        machine.place(seed)
        rows.append(dict(machine.addresses))
    return {name: np.array([row[name] for row in rows]) for name in SIZES}


def machine_of_sizes() -> Machine:
    machine = Machine(1)
    for name, size in SIZES.items():
        machine.add(name, np.zeros(size, np.uint8), writable=True)
    return machine


def placed_by(seed: int) -> dict[str, int]:
    machine = machine_of_sizes()
    machine.place(seed)
    return machine.addresses


def balanced(bits: np.ndarray) -> bool:
    """Whether as many are set as not, as far as chance goes."""
    return bool(abs(bits.mean() - 0.5) < DEVIATIONS * 0.5 / np.sqrt(len(bits)))


@pytest.mark.parametrize("bit", BITS)
def test_no_bit_of_an_address_is_constant_or_leans(placed: dict[str, np.ndarray], bit: int) -> None:
    for name, addresses in placed.items():
        assert balanced(addresses >> bit & 1), name


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(SIZES, 2)))
def test_two_buffers_are_independent(placed: dict[str, np.ndarray], one: str, other: str) -> None:
    """No bit of one agrees with a bit of the other, or of their distance, more often than by chance."""
    x, y = placed[one], placed[other]
    for left, right in itertools.product(BITS, BITS):
        assert balanced((x >> left ^ y >> right) & 1), (left, right)
    for bit in BITS:
        assert balanced(np.abs(x - y) >> bit & 1), bit


def test_runs_are_independent(placed: dict[str, np.ndarray]) -> None:
    for addresses in placed.values():
        for bit in BITS:
            assert balanced((addresses[1:] ^ addresses[:-1]) >> bit & 1)


@pytest.mark.parametrize("seed", APART[::2])
def test_an_index_that_is_combined_by_or_goes_astray_in_one_run_of_two(seed: int) -> None:
    machine, addresses = machine_of_sizes(), list[dict[str, int]]()
    for each in (seed, seed + 1):
        machine.place(each)
        addresses.append(dict(machine.addresses))
    for name, bit in itertools.product(SIZES, range(8, 39)):
        assert sum(at[name] | 1 << bit != at[name] + (1 << bit) for at in addresses) == 1, (name, bit)


@pytest.mark.parametrize("first", [0, 800, 2**40])
def test_each_buffer_lies_on_2_mib_in_one_run_of_eight(first: int) -> None:
    """And in one it ends the granule. The runs of the others are not known from it."""
    machine, low = machine_of_sizes(), {name: list[int]() for name in SIZES}
    for seed in range(first, first + BESIDE):
        machine.place(seed)
        for name, at in machine.addresses.items():
            low[name].append(at % GRANULE_BYTES)
    assert all(lows.count(0) == lows.count(GRANULE_BYTES - ALIGNMENT) == 1 for lows in low.values()), low


def test_which_run_that_is_differs_between_buffers() -> None:
    machine, together = machine_of_sizes(), 0
    for seed in (seed for seed in range(1600) if seed % 8 < BESIDE):
        machine.place(seed)
        lows = [at % GRANULE_BYTES for at in machine.addresses.values()]
        together += lows.count(0) > 1
    assert 110 < together < 210  # of 1200 runs; 158 by chance


@pytest.mark.parametrize("bit", range(20, 36))
def test_four_bits_in_a_row_above_a_granule_have_nearly_all_values_in_a_proof(bit: int) -> None:
    firsts = range(0, 20 * BLOCK, BLOCK)
    found = [len({placed_by(seed)["D"] >> bit & 15 for seed in range(first, first + PROOF)}) for first in firsts]
    assert np.mean(found) > 13, found  # 11.6 of independent draws


@pytest.mark.parametrize("first", [0, 13, 7777])
def test_in_some_run_of_a_proof_buffers_lie_as_in_one_allocation(first: int) -> None:
    pools = [at for at in map(placed_by, range(first, first + PROOF)) if at["B"] - at["A"] == -(-SIZES["A"] // 512) * 512]
    assert pools
    assert any(at["A"] < at["B"] < at["D"] and at["D"] - at["B"] == SIZES["B"] for at in pools)


@pytest.mark.parametrize("seed", range(ACROSS, 400, 8))
def test_each_buffer_crosses_4_gib_in_one_run_of_eight(seed: int) -> None:
    found = placed_by(seed)
    spans = sorted((at, at + SIZES[name]) for name, at in found.items())
    assert all(after[0] - before[1] >= GRANULE_BYTES for before, after in itertools.pairwise(spans))
    large = [name for name, size in SIZES.items() if size > ALIGNMENT]
    assert all(found[name] // LINE_BYTES < (found[name] + SIZES[name] - 2) // LINE_BYTES for name in large)


def test_how_far_apart_buffers_lie_differs_between_proofs() -> None:
    bits = Counter((placed_by(seed)["A"] ^ placed_by(seed)["B"]).bit_length() for seed in range(0, 1600, 16))
    assert min(bits) < 35
    assert max(bits) == 39


@pytest.mark.parametrize("seed", APART[:60])
def test_buffers_lie_apart_on_256_bytes_where_the_seed_says(seed: int) -> None:
    machine = machine_of_sizes()
    machine.place(seed)
    spans = sorted((at, at + SIZES[name]) for name, at in machine.addresses.items())
    assert all(at % ALIGNMENT == 0 and at >= LOWEST_ADDRESS for at, _ in spans)
    assert all(after[0] - before[1] >= GRANULE_BYTES - ALIGNMENT for before, after in itertools.pairwise(spans))
    again = machine_of_sizes()
    again.place(seed)
    assert again.addresses == machine.addresses


def test_buffers_come_in_every_order(placed: dict[str, np.ndarray]) -> None:
    orders = Counter(tuple(sorted(SIZES, key=lambda name: placed[name][run])) for run in range(RUNS))
    assert len(orders) == 24


# ---- kernels ----------------------------------------------------------------------------------------------------------------
def test_every_run_of_a_proof_has_addresses_of_its_own(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def addresses(seed: int) -> list[tuple[int, ...]]:
        seen, place = list[tuple[int, ...]](), Machine.place

        def noted(machine: Machine, seed: int) -> None:
            place(machine, seed)
            seen.append(tuple(machine.addresses[name] for name in ("A", "B", "D")))

        with monkeypatch.context() as patch:
            patch.setattr(Machine, "place", noted)
            assert not isinstance(prove(build(naive(), plan()), TASK, seed=seed), Exception)
        return seen

    first = addresses(5)
    assert len(first) > 5 * SLOTS
    assert len(set(first)) == len(first)
    assert first == addresses(5)
    assert not set(first) & set(addresses(6000))
