"""A seeded sample of a large grid at full size: some clusters are run, and what they write is compared.

Covered: clusters of the grid's corners, edges and interior, with all splits of their tiles, on exact and Gaussian inputs,
each under another interleaving with all detectors on. Then the whole grid once without race detection, where that is
quick; else more clusters, until the corners, edges and interior of D were written too. Where no smaller task could be run, the
other tiers run on a few of these clusters too.
Not covered: clusters outside the sample, and what needs them: a sample that waits for them, or reads what they should have
written, is widened, at last to the whole grid where that is affordable. Of a plan of several launches the clusters sampled are
those of the last one that writes D; with them run what earlier launches write for them, as far as `producers` finds it.
The summary names the untouched places of D.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.evaluation import FULL_SIZE, NOT_COVERED, TestResult
from cudal2_agent.contract.records.symptoms import Symptoms
from cudal2_agent.sandbox.emulator.detector import Detector
from cudal2_agent.sandbox.emulator.executor import POISON_BYTE, Interleavings, allocate, load
from cudal2_agent.sandbox.emulator.judgement import run_and_judge
from cudal2_agent.sandbox.emulator.kernel import WORKSPACE, BoundKernel, EmulatedKernel
from cudal2_agent.sandbox.emulator.large.coverage import Tile, work_of
from cudal2_agent.sandbox.emulator.large.expectation import PERIODS, Expected, OperandLines
from cudal2_agent.sandbox.emulator.large.points import (
    Tally,
    clusters_along,
    corners_first,
    first_cta,
    last_to_write,
    places_of,
    rasters,
    widened,
    with_splits,
)
from cudal2_agent.sandbox.emulator.large.producers import TooMany, Writers, pieces
from cudal2_agent.sandbox.emulator.machine import Conditions
from cudal2_agent.sandbox.verification.cases import GAUSSIAN, SPARSE, WIDE, Case, cases_for, not_promised
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.elements import POISON
from cudal2_agent.sandbox.verification.executor import Violation
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.reference import Reference

MAX_POINTS = 12
MIN_POINTS = 3
SAMPLE_WORK = 2**28  # multiply-adds that the sample takes in all, unless the fewest points take more
POINT_WORK = 2**31  # multiply-adds of the clusters of one point, at the most
WHOLE_ONCE = 2**30  # multiply-adds of a grid that is run whole where no sample will do
QUICK_WORK = 2**32  # work (`work_of`) of a grid that is run whole once more, without race detection
QUICK_OPERATIONS = 2**24  # of warps, after which that run is given up: a product without tensor cores takes many more
SEARCH_WORK = 2**32  # multiply-adds after which no more clusters are run for untouched places of D
MAX_SEARCHED = 24
MAX_ROUNDS = 4  # of the search for clusters of earlier launches
# The largest powers of two that rows of A and columns of B are multiplied by, as exponents: the wide sums leave no room.
_POWERS = {SPARSE.name: (2, 1), GAUSSIAN.name: (2, 1)}
_SAMPLED = (SPARSE, WIDE, GAUSSIAN)
_SHORT_PERIOD = 17  # of rows and columns that hold special values: every tile has some
# What a sample may report only because the clusters outside it are missing.
_INCONCLUSIVE = frozenset({Detector.DEADLOCK, Detector.ENDLESS, Detector.UNINITIALISED_READ})


class NotCovered(Exception):
    """Nothing can be run at full size, in words for the record."""


class Sample:
    """Points of one kernel's grid, run one after another. Raises: as `run_and_judge`."""

    def __init__(self, kernel: EmulatedKernel, tile: Tile, interleavings: Interleavings, seed: int) -> None:
        self._kernel, self._task, self._tile, self._interleavings = kernel, kernel.product, tile, interleavings
        self._seed = seed
        self._random = random.Random(f"{seed}/{kernel.name}")
        self._target = last_to_write(kernel.plan.launches)
        self._launch = kernel.plan.launches[self._target]
        self._writers = [Writers(launch, self._prober(i)) for i, launch in enumerate(kernel.plan.launches[: self._target])]
        self._clusters = math.prod(self._launch.grid) // math.prod(self._launch.cluster)
        self._work = self._task.m * self._task.n * self._task.k * self._task.products
        self._places = places_of(self._task, tile)
        self._rasters = list(rasters(self._task, tile, self._clusters))
        self._element_bytes = kernel.buffers["D"].element.bytes
        self._workspace = np.zeros(kernel.plan.workspace_bytes, dtype=np.uint8)
        self._bound: BoundKernel | None = None
        self._last_written: np.ndarray | None = None
        self._first_written: dict[tuple[int, ...], int] = {}  # bytes of D by point
        self._in_part = self._disturbed = False  # the last run; whether clusters were run alone since
        self.tally = Tally(np.zeros((self._task.m, self._task.n), dtype=bool))

    def tests(self) -> Iterator[TestResult]:
        """A test for each case of inputs, then what was covered; the first that fails is the last."""
        try:
            points = self._points()
            for index, case in enumerate(each for each in cases_for(self._task) if each in _SAMPLED):
                expected = self._load(case)
                yield self._case(expected, "sampled", self._affordable(points[index % len(points) :: 3]))
            if not self.tally.compared.all():
                yield self._quickly(expected) or self._case(expected, "places", self._search())
        except NotCovered as exc:
            yield TestResult(tier="emulator", name=NOT_COVERED, passed=True, message=f"not covered at full size: {exc}")
        if self.tally.clusters:
            yield TestResult(tier="emulator", name=FULL_SIZE, passed=True, message=self._summary())

    def other_tiers(self) -> Iterator[TestResult]:
        """The tiers that `tests` leaves out, each on the fewest points."""
        try:
            points = self._points()
            cases = [each for each in cases_for(self._task) if each not in _SAMPLED]
            for index, case in enumerate(cases):
                if reason := not_promised(self._task, case, atomics=self._kernel.atomics):
                    yield TestResult(tier=case.tier, name=case.name, passed=True, message=reason)
                    continue
                chosen = [points[(index + each) % len(points)] for each in range(MIN_POINTS)]
                yield self._case(self._load(case, period=_SHORT_PERIOD), "sampled", iter(dict.fromkeys(chosen)))
            yield self._case(self._load(SPARSE, name="fresh"), "sampled", iter(points[:1])).model_copy(
                update={"tier": "freshness", "name": "fresh-data-sampled"}
            )
            yield self._repeated(points[0])
            yield TestResult(tier="guards", name="all-runs", passed=True, message="all clusters kept to their buffers")
            if self._kernel.programmatic:
                message = "other kernels preceded every run of the sample"
                yield TestResult(tier="programmatic", name="late-producer-sampled", passed=True, message=message)
        except NotCovered as exc:
            yield TestResult(tier="emulator", name=NOT_COVERED, passed=True, message=f"not covered at full size: {exc}")

    def _repeated(self, point: tuple[int, ...]) -> TestResult:
        """The same point on the same data under another interleaving: bitwise equal, unless the plan declares atomics."""
        if self._kernel.atomics:
            message = "not applicable: the plan declares atomics"
            return TestResult(tier="repeatability", name="bitwise-sampled", passed=True, message=message)
        expected, outputs = self._load(GAUSSIAN), []
        for _ in range(2):
            if not (judged := self._case(expected, "sampled", iter([point]))).passed:
                return judged
            outputs.append(self._loaded().arrays["D"].copy())
        differing = int((outputs[0] != outputs[1]).sum())
        message = f"{differing} outputs differ between two runs on equal inputs at full size" if differing else ""
        return TestResult(tier="repeatability", name="bitwise-sampled", passed=not differing, message=message)

    def _points(self) -> list[tuple[int, ...]]:
        """Clusters to run, each with its splits; empty for the whole grid. Raises: NotCovered."""
        if len(self._kernel.plan.launches) > 1 and self._work <= WHOLE_ONCE:
            return [()] * 3
        each = self._work // self._clusters
        if each > POINT_WORK:
            raise NotCovered(f"one of the {self._clusters} clusters takes {each:.1e} multiply-adds")
        count = max(MIN_POINTS, min(MAX_POINTS, SAMPLE_WORK // max(each, 1)))
        return corners_first(self._launch, count, self._random)

    def _affordable(self, points: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        """The first in any case, the others while there is work left for them."""
        for index, point in enumerate(points):
            if not index or (self.tally.work <= SAMPLE_WORK and not self.tally.clusters.issuperset(point)):
                yield point

    def _search(self) -> Iterator[tuple[int, ...]]:
        """Clusters that may write an untouched place of D; any cluster if no guess is left."""
        width, height, _ = clusters_along(self._launch)
        others = self._random.sample(range(width * height), min(width * height, 2 * MAX_SEARCHED))
        for _ in range(MAX_SEARCHED):
            untouched = [place for place in self._places if not place.touched(self.tally.compared)]
            if not untouched or self.tally.work > SEARCH_WORK:
                return
            row = self._random.choice(untouched[0].rows) // self._tile.rows
            column = self._random.choice(untouched[0].columns) // self._tile.columns
            guesses = [raster.cluster(row, column) % (width * height) for raster in self._rasters]
            new = [cluster for cluster in (*guesses, *others) if cluster not in self.tally.clusters]
            if not new:
                return
            yield with_splits(self._launch, new[0])

    def _load(self, case: Case, period: int | None = None, name: str = "") -> Expected:
        """`period`: of rows and columns; drawn if None. `name`: of the data, where a case has others besides its own."""
        bound = self._loaded()
        task, seed = self._task, int(digest([self._task.id, self._kernel.name, str(self._seed), name or case.name], 15), 16)
        source = np.random.default_rng(seed)
        period = period or int(source.choice(PERIODS))
        small = task.model_copy(update={"m": min(task.m, period), "n": min(task.n, period)})
        inputs = case.make(Draws(np, seed), small)
        powers = _POWERS.get(case.name, (0, 0))
        rows, columns = (
            OperandLines.drawn(source, size, period, most) for size, most in zip((task.m, task.n), powers, strict=True)
        )
        if task.bias:  # which no factor of a row may multiply
            rows = rows.plain()
        b, bias, up = (
            None if each is None else columns.spread(np.ascontiguousarray(each.T), task.element).T
            for each in (inputs.b, inputs.bias, inputs.up)
        )
        load(bound.arrays, Inputs(rows.spread(inputs.a, task.element), b, bias, up), task)
        return Expected(case, task, Reference(np, small, inputs, keep=False).whole(), rows, columns)

    def _case(self, expected: Expected, part: str, points: Iterator[tuple[int, ...]]) -> TestResult:
        case, worst = expected.case, 0.0
        for point in points:
            fault = self._run_point(point) if point else self._run_whole()
            judged = self._judged(expected, fault)
            if judged.passed:
                judged = self._as_much(point) or judged
            if not judged.passed:
                return judged
            worst = max(worst, judged.worst)
        return TestResult(tier=case.tier, name=f"{case.name}-{part}", passed=True, worst=worst)

    def _quickly(self, expected: Expected) -> TestResult | None:
        """The whole grid without race detection; None where that would take long."""
        if work_of(self._task) > QUICK_WORK:
            return None
        fault = self._run_whole(quickly=True)
        if fault is not None and fault.kind == Detector.ENDLESS:
            return None
        judged = self._judged(expected, fault)
        return judged.model_copy(update={"name": f"{expected.case.name}-whole"}) if judged.passed else judged

    def _judged(self, expected: Expected, fault: Violation | None) -> TestResult:
        """What the last run did to memory, then what it computed."""
        case = expected.case
        if fault is not None:
            message, symptoms = f"{fault.message} (at full size)", Symptoms(waits=fault.waits) if fault.waits else None
            return TestResult(tier=fault.tier, name=fault.kind, passed=False, message=message, symptoms=symptoms)
        self.tally.compared.reshape(-1)[self._written()] = True
        comparison = expected.compare(self._loaded().arrays["D"], self._written())
        if comparison.first is None:
            return TestResult(tier=case.tier, name=case.name, passed=True, worst=comparison.worst)
        index, _, got, want = comparison.first
        row, column = divmod(int(self._written()[index]), self._task.n)
        message = (
            f"{comparison.mismatches} of {comparison.elements} outputs written at full size are wrong; "
            f"first D[{row},{column}] is {got:.9g}, should be {want:.9g}"
        )
        return TestResult(tier=case.tier, name=case.name, passed=False, worst=comparison.worst, message=message)

    def _as_much(self, point: tuple[int, ...]) -> TestResult | None:
        """A failure if the point wrote less than on its first inputs: outputs are stored whatever they are."""
        written = sum(end - start for start, end in self._loaded().machine.memory.ranges("D", self._target + 1))
        left = (self._first_written.setdefault(point, written) - written) // self._element_bytes
        if left <= 0:
            return None
        message = f"{left} outputs were not written that were written on other inputs (at full size)"
        return TestResult(tier="guards", name="unwritten", passed=False, message=message)

    def _run_point(self, point: tuple[int, ...]) -> Violation | None:
        """Run a point's clusters, or more of them until they have written something. Raises: NotCovered."""
        for clusters in widened(point, self._clusters, self.tally.width):
            if len(clusters) * (self._work // self._clusters) > POINT_WORK:
                break
            fault = self._run_with_producers(clusters, self._interleavings.next())
            if fault is not None and fault.kind not in _INCONCLUSIVE:
                return fault
            if fault is None and len(self._written()):
                self.tally.clusters |= set(clusters)
                self.tally.width = max(self.tally.width, len(clusters))
                self._learn(clusters)
                return None
        self._require_affordable("the clusters of a sample write nothing without the others")
        return self._run_whole()

    def _run_whole(self, *, quickly: bool = False) -> Violation | None:
        """All clusters; `quickly`: without race detection, and given up as endless after `QUICK_OPERATIONS`."""
        conditions = self._interleavings.next()
        if quickly:
            conditions = replace(conditions, races=False, most_instructions=QUICK_OPERATIONS)
        fault = self._run((), conditions)
        if fault is not None:
            return fault
        if quickly:
            self.tally.quickly = True
        else:
            self.tally.clusters |= set(range(self._clusters))
        if left := self._task.m * self._task.n - len(self._written()):
            return Violation("unwritten", f"{left} outputs were never written, or hold what D held", tier="guards")
        return None

    def _run_with_producers(self, clusters: Sequence[int], conditions: Conditions) -> Violation | None:
        """Clusters with those of earlier launches that write what they read. Raises: NotCovered."""
        earlier: list[set[int]] = [set() for _ in self._writers]
        for _ in range(MAX_ROUNDS):
            fault = self._run(clusters, conditions, earlier)
            more = self._producers() if fault is None or fault.kind in _INCONCLUSIVE else []
            new = [known | found for known, found in zip(earlier, more, strict=bool(more))]
            if not more or new == earlier:
                break
            earlier = new
        if self._disturbed:
            fault = self._run(clusters, conditions, earlier)
        if fault is None:
            for index, known in enumerate(earlier):
                self.tally.earlier.setdefault(index, set()).update(known)
        elif self._writers and fault.kind in _INCONCLUSIVE:
            raise NotCovered(f"which clusters of earlier launches a sample needs was not found ({fault.kind})")
        return fault

    def _producers(self) -> list[set[int]]:
        """Clusters of each earlier launch that write what the last run found unwritten. Raises: NotCovered."""
        memory, found = self._loaded().machine.memory, []
        try:
            missing = pieces({name: memory.ranges(name, 0) for name in ("D", WORKSPACE)}) if self._writers else {}
            for writers in reversed(self._writers):
                more, missing = writers.of(missing)
                found.append(more)
        except TooMany as exc:
            raise NotCovered("a sample needs too many clusters of earlier launches") from exc
        return found[::-1]

    def _prober(self, index: int) -> Callable[[int], dict[str, list[tuple[int, int]]]]:
        """Runs one cluster of a launch alone, on unwritten memory. Returns what it wrote."""

        def probe(cluster: int) -> dict[str, list[tuple[int, int]]]:
            bound, launch = self._loaded(), self._kernel.plan.launches[index]
            self._disturbed = True
            self._poison()
            bound.renew()
            self.tally.work += self._work * math.prod(launch.cluster) // math.prod(launch.grid)
            outcome = bound.run_part(index, self._interleavings.aside(), [first_cta(launch, cluster)])
            if outcome.stopped:
                raise NotCovered(f"a cluster of {launch.entry} does not end by itself")
            return {name: bound.machine.memory.ranges(name, index + 1) for name in ("D", WORKSPACE)}

        return probe

    def _run(self, clusters: Sequence[int], conditions: Conditions, earlier: Sequence[set[int]] = ()) -> Violation | None:
        """Clusters of the target with those of earlier launches; the whole plan where there are none."""
        bound, launches = self._loaded(), self._kernel.plan.launches
        chosen: list[Sequence[int]] = [*map(sorted, earlier), clusters]
        work = [
            len(part) * self._work * math.prod(launch.cluster) // math.prod(launch.grid)
            for part, launch in zip(chosen, launches, strict=False)
        ]
        if sum(work) > POINT_WORK and earlier:
            raise NotCovered(f"a sample with its clusters of earlier launches takes {sum(work):.1e} multiply-adds")
        if conditions.races:
            self.tally.work += sum(work) if clusters else self._work
        ctas = [[first_cta(launch, each) for each in part] for part, launch in zip(chosen, launches, strict=False)]
        ctas += [[] for _ in launches[len(ctas) :]]
        self._last_written, self._disturbed, self._in_part = None, False, bool(clusters)
        return run_and_judge(bound, conditions, self._poison, ctas=ctas if clusters else ()).fault

    def _learn(self, clusters: Sequence[int]) -> None:
        """Drop the guesses that contradict what these clusters wrote."""
        rows, columns = np.divmod(self._written(), self._task.n)
        across = math.ceil(self._task.n / self._tile.columns)
        numbers = np.unique(rows // self._tile.rows * across + columns // self._tile.columns)
        tiles = [divmod(int(number), across) for number in numbers]
        self._rasters = [raster for raster in self._rasters if raster.agrees(tiles, clusters)]

    def _poison(self) -> None:
        self._loaded().arrays["D"].fill(POISON)
        self._workspace.fill(POISON_BYTE)
        if self._kernel.zero == "restored":
            self._workspace[: self._kernel.plan.zero_bytes] = 0

    def _loaded(self) -> BoundKernel:
        if self._bound is None:
            self._bound = self._kernel.bind(allocate(self._task, self._workspace), self._seed)
        return self._bound

    def _written(self) -> np.ndarray:
        """The outputs that the last run wrote, counted along the rows of D."""
        if self._last_written is None:
            self._last_written = np.flatnonzero(self._loaded().arrays["D"].reshape(-1) != POISON)
            if self._writers and self._in_part:  # what the target did not write may be half of a sum
                spans = {"D": self._loaded().machine.memory.ranges("D", self._target + 1)}
                own = pieces(spans).get("D", np.zeros(0, dtype=np.int64)) // self._element_bytes
                self._last_written = np.intersect1d(self._last_written, own)
        return self._last_written

    def _require_affordable(self, why: str) -> None:
        if self._work > WHOLE_ONCE:
            raise NotCovered(f"{why}, and the whole grid takes {self._work:.1e} multiply-adds")

    def _summary(self) -> str:
        launches, of = self._kernel.plan.launches, f" of {self._launch.entry}" if self._writers else ""
        ran = f"{self._task.shape}: {len(self.tally.clusters)} of {self._clusters} clusters{of} run"
        return f"{self.tally.summary(ran, [launch.entry for launch in launches], self._places)}; seed {self._seed}"
