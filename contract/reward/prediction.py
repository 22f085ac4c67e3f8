"""When two predicted times may be told apart.

A prediction says less about the order of two kernels than about their times: kernels within `TIE` are tied, and nothing may
be concluded from their order.
"""

TIE = 0.03  # of the smaller of two predicted times


def tied(a_us: float, b_us: float) -> bool:
    """Whether two predicted times are too close to be ordered. Unit: microseconds."""
    return abs(a_us - b_us) <= TIE * min(a_us, b_us)
