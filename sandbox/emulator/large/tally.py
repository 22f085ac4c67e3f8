"""What a sample has run and compared, and its summary for the record."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cudal2_agent.sandbox.emulator.large.places import Place


@dataclass
class Tally:
    """What was run and compared. `width`: clusters that make a tile together, as far as they were needed.

    `clusters`, `work`: run with all detectors, the work in multiply-adds. `earlier`: clusters of launches before that one.
    `quickly`: whether the whole grid was run besides, without race detection. Shape: compared (M, N).
    """

    compared: np.ndarray
    clusters: set[int] = field(default_factory=set)
    earlier: dict[int, set[int]] = field(default_factory=dict)
    width: int = 1
    work: int = 0
    quickly: bool = False

    def summary(self, ran: str, entries: Sequence[str], places: Sequence[Place]) -> str:
        """In words. `ran`: which clusters; `entries`: of the plan's launches, in order."""
        ran += f", {self.width} at a time" if self.width > 1 else ""
        for index, clusters in self.earlier.items():
            ran += f", with {len(clusters)} of {entries[index]} before it"
        if self.compared.all():
            once = ", then the whole grid without race detection" if self.quickly else ""
            return f"{ran}{once}; all {self.compared.size} outputs compared"
        untouched = [place.name for place in places if not place.touched(self.compared)]
        reached = f"of D not touched: {', '.join(untouched)}" if untouched else "corners, edges and interior of D touched"
        compared = f"{np.count_nonzero(self.compared)} outputs compared of the {self.compared.size} there are"
        return f"{ran}; {compared}; {reached}"
