"""Where buffers lie in a run: addresses drawn by the run's seed, so that what they tell a kernel differs within a proof.

Of the runs with the seeds 8n to 8n + 7, six have every buffer apart from the others (`_apart`), one has them side by side
(`_side_by_side`), and in one each buffer crosses a multiple of 4 GiB (`_across`).
"""

import itertools
import random
from collections.abc import Mapping
from functools import lru_cache

# Multiples of 256 bytes, as parts of a driver's allocations, somewhere below the windows of the other spaces.
LOWEST_ADDRESS, ADDRESS_BITS = 0x7B00_0000_0000, 39
ADDRESS_SPAN = 1 << ADDRESS_BITS
ALIGNMENT = 256
GRANULE_BYTES = 2 << 20  # also the minimum between buffers that lie apart, so that an access past one is out of bounds
LINE_BYTES = 1 << 32  # what the lower word of an address counts
PITCHES = (ALIGNMENT, 512, GRANULE_BYTES)  # of buffers side by side

BLOCK = 64  # seeds; from a multiple of it on, 16 runs have addresses that were drawn together

_KINDS = 4  # pairs of runs: three apart, one of the others
_ALL = ADDRESS_SPAN - ALIGNMENT  # the bits of an address that are drawn
_GRANULE = GRANULE_BYTES - 1
_EACH_NIBBLE = 0x1_1111_1111_1111  # times 0 to 15: that number in each four bits
_APART_BITS = 9  # runs and pairs of buffers of a block, and some room, as a power of two

Sizes = tuple[tuple[str, int], ...]  # buffers in the order in which they were added, with their bytes


def addresses(sizes: Mapping[str, int], seed: int) -> dict[str, int]:
    """The address of each buffer in a run."""
    ordered, (eight, place) = tuple(sizes.items()), divmod(seed, 2 * _KINDS)
    pair, odd = divmod(place, 2)
    if pair < _KINDS - 1:
        block, index = divmod(eight * (_KINDS - 1) + pair, 8)
        drawn = _apart(ordered, block)[index]
        return {name: LOWEST_ADDRESS + (at ^ _ALL if odd else at) for name, at in drawn.items()}
    drawn = _across(ordered, seed) if odd else _side_by_side(ordered, seed, as_added=eight % 2 == 0)
    return {name: LOWEST_ADDRESS + at for name, at in drawn.items()}


@lru_cache(maxsize=8)
def _apart(sizes: Sizes, block: int) -> tuple[dict[str, int], ...]:
    """Offsets in eight runs. In the run that follows each of them, all drawn bits are inverted.

    So an index that is combined with an address by OR goes astray in one of the two. Any four bits in a row above those of
    2 MiB have each of their 16 values in one of the 16 runs. In one of each six a buffer lies on 2 MiB, as large allocations
    do, and in one at the end of 2 MiB. Buffers share the bits of their addresses above a drawn one.
    """
    source = random.Random(f"{block}/addresses")
    largest = max((size for _, size in sizes), default=0)
    shared = source.randint(min((largest + 2 * GRANULE_BYTES).bit_length() + _APART_BITS, ADDRESS_BITS), ADDRESS_BITS)
    while True:
        below = (1 << shared) - 1
        upper, *bases = (source.randrange(0, ADDRESS_SPAN, ALIGNMENT) for _ in range(len(sizes) + 1))
        common, *own = (_nibbles(source) for _ in range(len(sizes) + 1))
        runs = []
        for index in range(8):
            run = {}
            six, pair = divmod(8 * block + index, _KINDS - 1)
            for number, (name, _) in enumerate(sizes):
                at = (upper ^ common[index] * _EACH_NIBBLE) & ~below | (
                    bases[number] ^ own[number][index] * _EACH_NIBBLE
                ) & below
                turn = random.Random(f"{six}/{name}").randrange(6)
                if turn // 2 == pair:
                    at = at & ~_GRANULE if turn % 2 else at | _GRANULE
                run[name] = at & _ALL
            runs.append(run)
        if all(_are_apart(sizes, run) and _are_apart(sizes, {k: v ^ _ALL for k, v in run.items()}) for run in runs):
            return tuple(runs)
        shared = min(shared + 1, ADDRESS_BITS)


def _nibbles(source: random.Random) -> list[int]:
    """One of each of the eight pairs of x and 15 - x, in drawn order."""
    return [each if source.random() < 1 / 2 else 15 - each for each in source.sample(range(8), 8)]


def _are_apart(sizes: Sizes, run: Mapping[str, int]) -> bool:
    spans = sorted((run[name], size) for name, size in sizes)
    return all(at + size + GRANULE_BYTES <= after for (at, size), (after, _) in itertools.pairwise(spans))


def _side_by_side(sizes: Sizes, seed: int, *, as_added: bool) -> dict[str, int]:
    """Offsets in one allocation: A, B, D and the workspace on 512 bytes; else in drawn order with a drawn pitch."""
    source = random.Random(f"{seed}/side by side")
    pitch = PITCHES[1] if as_added else source.choice(PITCHES)
    end, found = source.randrange(0, ADDRESS_SPAN // 2, pitch), {}
    for name, size in sizes if as_added else source.sample(sizes, len(sizes)):
        found[name] = end
        end += -(-max(size, 1) // pitch) * pitch
    return found


def _across(sizes: Sizes, seed: int) -> dict[str, int]:
    """Offsets at which every buffer of more than 256 bytes crosses a multiple of 4 GiB, at a place that is drawn.

    In half of the runs the first bytes of all buffers are evenly spaced.
    """
    source = random.Random(f"{seed}/across")
    before = [(size - 1) // ALIGNMENT if size else 0 for _, size in sizes]
    most, even = min((each for each in before if each), default=0), source.random() < 1 / 2
    same, found = source.randint(1, max(most, 1)), {}
    line = source.randint(1, ADDRESS_SPAN // LINE_BYTES // 4)
    for (name, size), units in source.sample(list(zip(sizes, before, strict=True)), len(sizes)):
        back = (same if even else source.randint(1, max(units, 1))) if units else 0
        found[name] = line * LINE_BYTES - back * ALIGNMENT
        line += 2 + size // LINE_BYTES + (0 if even else source.randrange(8))
    return found
