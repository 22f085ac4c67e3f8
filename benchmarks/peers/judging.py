"""Whether a peer's outputs are right: all of a sample's by a projection, and one of them element by element.

Covered: outputs that are not the products of their operands; elements beyond the bound of FP32 accumulation; a mean error that
only a narrower accumulator explains.
Not covered: what verification does besides, such as guarded buffers, special values and repeated runs.
"""

import random

from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.cuda.timing.sampling import Lane
from cudal2_agent.sandbox.cuda.timing.track import Track
from cudal2_agent.sandbox.verification.bounds import rounding_floor
from cudal2_agent.sandbox.verification.comparison import Comparison


class Judging:
    """Judges the outputs of the sample that a lane took last."""

    def __init__(self, track: Track, draw: random.Random) -> None:
        self._track, self._draw = track, draw
        self._baseline_rms = 0.0

    def calibrate(self, baseline: Lane) -> None:
        """Note the baseline's error, which other errors are compared with."""
        found = self._compare(baseline)
        self._baseline_rms = 0.0 if found.mismatches else found.error_rms

    def fault(self, lane: Lane) -> str | None:
        """The first fault that the projection finds, if any."""
        return self._track.judge.project(lane.launches, self._draw).fault

    def fault_in_detail(self, lane: Lane) -> str | None:
        """As `fault`, and then by one output, element by element."""
        return self.fault(lane) or fault_of(self._track.task, self._compare(lane), self._baseline_rms)

    def _compare(self, lane: Lane) -> Comparison:
        return self._track.judge.compare(self._draw.choice(lane.launches))


def fault_of(task: GemmTask, found: Comparison, baseline_rms: float) -> str | None:
    """Elements beyond the bound, or an RMS error beyond that of verification's second tier; None where it is right."""
    if found.mismatches:
        return found.describe()
    floor = rounding_floor(task, found.reference_rms, found.finite)
    limit = max(VerifyOptions().error_ratio * baseline_rms, floor)
    if found.error_rms <= limit:
        return None
    return f"RMS error {found.error_rms:.3g} exceeds {limit:.3g}, so sums are narrower than {task.accumulate}"
