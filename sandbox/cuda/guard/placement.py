"""Where a buffer lies within its pages: one distribution for verification and for timing, so that no address tells them apart.

A buffer starts at a multiple of 256 bytes drawn from a page of 2 MiB. One in EDGE draws starts at the page's beginning and one
in EDGE ends at its end. Only these touch unmapped memory in verification; the other draws leave bytes on both sides.
"""

import random
from bisect import bisect_left

ALIGNMENT_BYTES = 256
PLACES_BITS = 13
PAGE_BYTES = ALIGNMENT_BYTES << PLACES_BITS
EDGE_BITS = 5
EDGE = 1 << EDGE_BITS


def slot_bytes(size_bytes: int) -> int:
    """A size, rounded up so that what follows starts aligned."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def draw_offset(size_bytes: int, draw: random.Random) -> int:
    """The start of a buffer of `size_bytes` in its first page."""
    match draw.getrandbits(EDGE_BITS):
        case 0:
            return 0
        case 1:
            return -slot_bytes(size_bytes) % PAGE_BYTES
        case _:
            return draw.getrandbits(PLACES_BITS) * ALIGNMENT_BYTES


def room_bytes(size_bytes: int) -> int:
    """Whole pages that hold a buffer at every offset."""
    return -(-(slot_bytes(size_bytes) + PAGE_BYTES - ALIGNMENT_BYTES) // PAGE_BYTES) * PAGE_BYTES


def place(size_bytes: int, room: int, draw: random.Random) -> int:
    """The start of a buffer in a mapping of `room` bytes, whole pages.

    What begins with a page begins the mapping; everything else lies as near to the mapping's end as its offset allows.
    """
    offset, taken = draw_offset(size_bytes, draw), slot_bytes(size_bytes)
    if not offset and (taken % PAGE_BYTES or draw.random() < 0.5):
        return 0
    return offset + (room - offset - taken) // PAGE_BYTES * PAGE_BYTES


def scatter(count: int, size_bytes: int, draw: random.Random, least_bytes: int = 0) -> tuple[list[int], int]:
    """Starts of `count` buffers of one size that do not overlap, in random order, and the whole pages that hold them all.

    Each has an offset of its own draw. `least_bytes`: pages over which they are spread, with gaps of drawn widths.
    """
    taken = slot_bytes(size_bytes)
    widest = max(0, 2 * (least_bytes // count - taken))  # of a gap, half of it on average
    left = sorted(draw_offset(size_bytes, draw) for _ in range(count))
    starts, end = [], 0
    while left:  # the next offset upwards, then from the page's beginning again: as an elevator travels
        offset = left.pop(bisect_left(left, end % PAGE_BYTES) % len(left))
        starts.append(end + (offset - end) % PAGE_BYTES)
        end = starts[-1] + taken + (draw.randrange(widest) if widest else 0)
    draw.shuffle(starts)
    last = max(starts) + taken
    return starts, -(-max(last, least_bytes) // PAGE_BYTES) * PAGE_BYTES
