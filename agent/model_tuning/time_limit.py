"""How the time of a call of `tune` is divided: searches, measuring the model, M between the passes. Unit: seconds."""

import math
import time
from collections.abc import Sequence

from cudal2_agent.agent.model_tuning.tune_records import Way

# What measuring takes, about: for each pass of the model, and for each way in which it is run.
_PASS_S, _WAY_S = 15.0, {"eager": 5.0, "graph": 5.0, "compile": 45.0, "max-autotune": 80.0}
_PRODUCT_S = 1.0  # for each product beside PyTorch's own
_RANGE_S = 5.0  # for the M below each product
_LEAST_SEARCHED = 0.5  # of the whole, where little is left


class TimeLimit:
    """It begins when it is made. `minutes`: None for no limit. `passes`: numbers of tokens that are measured."""

    def __init__(self, minutes: float | None, ways: Sequence[Way], passes: int, *, ranges: bool) -> None:
        self._began_s = time.monotonic()
        self._whole_s = math.inf if minutes is None else 60 * minutes
        self._measuring_s = (_PASS_S + sum(_WAY_S[way] for way in ways)) * passes
        self._product_s = _PRODUCT_S + (_RANGE_S if ranges else 0.0)

    def search_s(self, products: int) -> float:
        """What is left for searches of a model with so many products; infinite without a limit."""
        kept_s = self._product_s * products + self._measuring_s
        return max(self._whole_s - kept_s, self._whole_s * _LEAST_SEARCHED) - (time.monotonic() - self._began_s)

    @property
    def ranges_end_s(self) -> float | None:
        """When the last kernel for M between the passes is begun, on the monotonic clock; None without a limit."""
        return None if math.isinf(self._whole_s) else self._began_s + self._whole_s
