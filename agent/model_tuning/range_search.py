"""How far below its own M an entry's kernel is faster than PyTorch's product: a few M are measured. Pure.

Between two M that were measured it is taken to be faster where PyTorch's product at the smaller one takes no less than the
kernel at the larger one: neither becomes slower with fewer rows.
"""

import math
from collections.abc import Callable

from cudal2_agent.contract.records.library import RangePoint

MOST_POINTS = 16
_FINEST = 16  # parts of an M that are told apart


def faster_down_to(largest: int, floor: int, measure: Callable[[int], RangePoint]) -> tuple[RangePoint, ...]:
    """Points from `largest` down to the smallest M at which the kernel is faster, without a gap; none where it never is.

    `measure`: is asked at most MOST_POINTS times.
    """
    upper = measure(largest)
    if not upper.faster:
        return ()
    found, measured, aim = [upper], {largest: upper}, floor
    while upper.m > floor and (aim in measured or len(measured) < MOST_POINTS):
        if aim not in measured:
            measured[aim] = measure(aim)
        joined = [one for one in measured.values() if one.m < upper.m and one.faster and one.torch_us >= upper.time_us]
        if joined:
            upper = min(joined, key=lambda one: one.m)
            found.append(upper)
            # Where both times are proportional to M, PyTorch's product takes the kernel's time here.
            aim = max(floor, math.ceil(upper.m * upper.time_us / upper.torch_us))
        elif upper.m - aim <= max(1, upper.m // _FINEST):
            break
        else:
            aim = max(aim + 1, (aim + upper.m) // 2, math.ceil(upper.m * upper.time_us / upper.torch_us))
            aim = min(aim, upper.m - 1)
    return tuple(found)
