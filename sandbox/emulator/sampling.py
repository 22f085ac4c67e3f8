"""A seeded sample of a large grid at full size: some clusters are run, and what they write is compared.

Covered: clusters of the grid's corners, edges and interior, with all splits of their tiles, on exact and Gaussian inputs,
under one schedule after another with all detectors on.
Not covered: clusters outside the sample, and what needs them: a sample that waits for them, or reads what they should have
written, is widened, at last to the whole grid where that is affordable. Plans of several launches run whole or not at all.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from contract.base import digest
from contract.evaluation import FULL_SIZE, NOT_COVERED, TestResult
from contract.plan import ResolvedLaunch
from contract.task import GemmTask
from sandbox.emulator.detector import Detector
from sandbox.emulator.executor import POISON_BYTE, Schedules, allocate, load
from sandbox.emulator.judgement import run_and_judge
from sandbox.emulator.kernel import BoundKernel, EmulatedKernel
from sandbox.verification.cases import GAUSSIAN, SPARSE, WIDE, Case, cases_for
from sandbox.verification.comparison import Comparison, compare_bounded, compare_exact
from sandbox.verification.elements import POISON
from sandbox.verification.executor import Violation
from sandbox.verification.inputs import Inputs
from sandbox.verification.reference import Block, Reference
from sandbox.verification.source import Source

PERIOD = 251  # rows of A and columns of B repeat after a prime number of them, so that a reference costs little
MOST_POINTS = 12
LEAST_POINTS = 3
SAMPLE_WORK = 2**28  # multiply-adds that the sample takes in all, unless the fewest points take more
POINT_WORK = 2**31  # multiply-adds of the clusters of one point, at the most
WHOLE_ONCE = 2**30  # multiply-adds of a grid that is run whole where no sample will do
WIDEST = 16  # splits of a tile
# What a sample may show for lack of the clusters outside it.
_INCONCLUSIVE = frozenset({Detector.DEADLOCK, Detector.ENDLESS, Detector.UNINITIALISED_READ})


class NotCovered(Exception):
    """Nothing can be run at full size, in words for the record."""


@dataclass
class Tally:
    """What was run and compared. `width`: clusters that make a tile together, as far as they were needed.

    `work`: multiply-adds of what was run. Shape: compared (M, N).
    """

    compared: np.ndarray
    clusters: set[int] = field(default_factory=set)
    width: int = 1
    work: int = 0


class Sample:
    """Points of one kernel's grid, run one after another. Raises: as `run_and_judge`."""

    def __init__(self, kernel: EmulatedKernel, schedules: Schedules, seed: int) -> None:
        self._kernel, self._task, self._schedules = kernel, kernel.task, schedules
        self._random = random.Random(f"{seed}/{kernel.name}")
        self._launch = kernel.plan.launches[-1]
        self._clusters = math.prod(self._launch.grid) // math.prod(self._launch.cluster)
        self._work = kernel.task.m * kernel.task.n * kernel.task.k
        self._workspace = np.zeros(kernel.plan.workspace_bytes, dtype=np.uint8)
        self._bound: BoundKernel | None = None
        self.tally = Tally(np.zeros((self._task.m, self._task.n), dtype=bool))

    def tests(self) -> Iterator[TestResult]:
        """A test for each case of inputs, then what was covered; the first that fails is the last."""
        try:
            points = self._points()
            for index, case in enumerate(each for each in cases_for(self._task) if each in (SPARSE, WIDE, GAUSSIAN)):
                yield self._case(case, points[index % len(points) :: 3])
        except NotCovered as exc:
            yield TestResult(tier="emulator", name=NOT_COVERED, passed=True, message=f"not covered at full size: {exc}")
            return
        yield TestResult(tier="emulator", name=FULL_SIZE, passed=True, message=self._summary())

    def _points(self) -> list[tuple[int, ...]]:
        """Clusters to run, each with its splits; empty for the whole grid. Raises: NotCovered."""
        if len(self._kernel.plan.launches) > 1:
            self._require_affordable("a plan of several launches is not sampled")
            return [()] * 3
        each = self._work // self._clusters
        if each > POINT_WORK:
            raise NotCovered(f"one of the {self._clusters} clusters takes {each:.1e} multiply-adds")
        count = max(LEAST_POINTS, min(MOST_POINTS, SAMPLE_WORK // max(each, 1)))
        return corners_first(self._launch, count, self._random)

    def _case(self, case: Case, points: Sequence[tuple[int, ...]]) -> TestResult:
        bound = self._loaded()
        small = self._task.model_copy(update={"m": min(self._task.m, PERIOD), "n": min(self._task.n, PERIOD)})
        inputs = case.make(Source(np, int(digest([self._task.id, "sample", case.name], 15), 16)), small)
        rows, columns = np.arange(self._task.m) % small.m, np.arange(self._task.n) % small.n
        load(bound.operands, Inputs(inputs.a[rows], inputs.b[:, columns]), self._task)
        [block] = Reference(np, small, inputs, keep=False).blocks()
        worst = 0.0
        for index, point in enumerate(points):
            if index and (self.tally.work > SAMPLE_WORK or self.tally.clusters.issuperset(point)):
                continue
            fault = self._run_point(point)
            if fault is not None:
                return TestResult(tier=fault.tier, name=fault.kind, passed=False, message=f"{fault.message} (at full size)")
            comparison = self._compare(case, block, small)
            worst = max(worst, comparison.worst)
            if comparison.mismatches:
                return TestResult(tier=case.tier, name=case.name, passed=False, worst=worst, message=self._told(comparison))
        return TestResult(tier=case.tier, name=f"{case.name}-sampled", passed=True, worst=worst)

    def _run_point(self, point: tuple[int, ...]) -> Violation | None:
        """Run a point's clusters, or more of them until they have written something. Raises: NotCovered."""
        for clusters in widened(point, self._clusters, self.tally.width) if point else [()]:
            if len(clusters) * (self._work // self._clusters) > POINT_WORK:
                break
            fault = self._run(clusters)
            if fault is not None and (not clusters or fault.kind not in _INCONCLUSIVE):
                return fault
            if fault is None and self._written().any():
                self.tally.clusters |= set(clusters) if clusters else set(range(self._clusters))
                self.tally.width = max(self.tally.width, len(clusters))
                return None
        self._require_affordable("the clusters of a sample write nothing without the others")
        fault = self._run(())
        self.tally.clusters |= set(range(self._clusters))
        if fault is None and not self._written().all():
            left = int((~self._written()).sum())
            return Violation("unwritten", f"{left} outputs were never written, or hold what D held", tier="guards")
        return fault

    def _run(self, clusters: Sequence[int]) -> Violation | None:
        bound = self._loaded()
        self.tally.work += self._work // self._clusters * (len(clusters) or self._clusters)
        ctas = [first_cta(self._launch, cluster) for cluster in clusters]
        return run_and_judge(bound, self._schedules.next(), self._poison, after_others=True, ctas=ctas).fault

    def _poison(self) -> None:
        self._loaded().operands.d.fill(POISON)
        self._workspace.fill(POISON_BYTE)
        if self._kernel.zero == "restored":
            self._workspace[: self._kernel.plan.zero_bytes] = 0

    def _loaded(self) -> BoundKernel:
        if self._bound is None:
            self._bound = self._kernel.bind(allocate(self._task, self._workspace))
        return self._bound

    def _written(self) -> np.ndarray:
        written: np.ndarray = self._loaded().operands.d != POISON
        return written

    def _compare(self, case: Case, block: Block, small: GemmTask) -> Comparison:
        """The outputs that were written with the reference of their rows and columns, as one long row."""
        rows, columns = np.nonzero(self._written())
        self.tally.compared[rows, columns] = True
        self._places = rows, columns
        at, along = rows % small.m, columns % small.n
        gathered = Block(
            start=0,
            product=block.product[at, along][None],
            row_norms=block.row_norms[at, 0][None],
            column_norms=block.column_norms[0, along][None],
        )
        output = self._loaded().operands.d[rows, columns][None]
        if case.growth is None:
            return compare_exact(np, self._task, output, Gathered(gathered))
        return compare_bounded(np, self._task, output, Gathered(gathered), case.growth)

    def _told(self, comparison: Comparison) -> str:
        assert comparison.first is not None
        _, index, got, want = comparison.first
        row, column = (int(places[index]) for places in self._places)
        return (
            f"{comparison.mismatches} of {comparison.elements} outputs of a sample are wrong; "
            f"first D[{row},{column}] is {got:.9g}, should be {want:.9g}"
        )

    def _require_affordable(self, why: str) -> None:
        if self._work > WHOLE_ONCE:
            raise NotCovered(f"{why}, and the whole grid takes {self._work:.1e} multiply-adds")

    def _summary(self) -> str:
        tally, compared = self.tally, self.tally.compared
        ends = {"top": compared[0], "bottom": compared[-1], "left": compared[:, 0], "right": compared[:, -1]}
        edges = ", ".join(name for name, end in ends.items() if end.any()) or "no edge"
        splits = f", {tally.width} at a time" if tally.width > 1 else ""
        return (
            f"{self._task.shape}: {len(tally.clusters)} of {self._clusters} clusters run{splits}; "
            f"{np.count_nonzero(compared)} outputs compared of the {compared.size} there are; touching {edges}"
        )


class Gathered(Reference):
    """Reference of outputs that were gathered from anywhere."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def blocks(self) -> Iterator[Block]:
        yield self._block


def first_cta(launch: ResolvedLaunch, cluster: int) -> int:
    """Linear index in the grid of the first CTA of a cluster, whose index is linear among clusters."""
    width, height, _ = (size // part for size, part in zip(launch.grid, launch.cluster, strict=True))
    x, y, z = cluster % width, cluster // width % height, cluster // width // height
    x, y, z = (place * part for place, part in zip((x, y, z), launch.cluster, strict=True))
    return (z * launch.grid[1] + y) * launch.grid[0] + x


def corners_first(launch: ResolvedLaunch, count: int, source: random.Random) -> list[tuple[int, ...]]:
    """Points of a grid, each with all clusters along z: its corners, its edges, then its interior, drawn from a seed."""
    width, height, depth = (size // part for size, part in zip(launch.grid, launch.cluster, strict=True))
    right, bottom = width - 1, height - 1
    places = [(0, 0), (right, bottom), (right, 0), (0, bottom)]
    places += [(source.randint(0, right), 0), (right, source.randint(0, bottom))]
    places += [(source.randint(0, right), source.randint(0, bottom)) for _ in range(4 * count)]
    chosen = list(dict.fromkeys(places))[:count]
    return [tuple((z * height + y) * width + x for z in range(depth)) for x, y in chosen]


def widened(point: tuple[int, ...], clusters: int, width: int) -> Iterator[tuple[int, ...]]:
    """A point as it is, where no wider one was needed before; then the splits of its tile: neighbours, or far apart."""
    if width <= len(point):
        yield point
    if len(point) > 1:
        return
    [cluster] = point
    for splits in range(max(width, 2), min(WIDEST, clusters) + 1):
        start = min(cluster // splits * splits, clusters - splits)
        yield tuple(range(start, start + splits))
        if clusters % splits == 0 and clusters > splits:
            stride = clusters // splits
            yield tuple(cluster % stride + stride * split for split in range(splits))
