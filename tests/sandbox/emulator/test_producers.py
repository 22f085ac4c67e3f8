"""Large tasks of several launches: a sample's clusters run with the clusters of earlier launches whose data they read."""

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.plan.plan import LaunchPlan, ResolvedLaunch
from cudal2_agent.contract.records.evaluation import TestResult, Wrong
from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.emulator.large.expectation import PERIODS, OperandLines
from cudal2_agent.sandbox.emulator.large.producers import FEW_CLUSTERS, Ranges, TooMany, Writers, pieces
from cudal2_agent.sandbox.verification.elements import decode, encode
from cudal2_agent.sandbox.workers.messages import Done, Reduced, Verified
from tests.sandbox.building.build_kernels import TENSORS
from tests.sandbox.emulator.proving import SCALARS, Build, plan, prove


# ---- which clusters write a place -------------------------------------------------------------------------------------------
def launched(grid: tuple[int, int, int]) -> ResolvedLaunch:
    return ResolvedLaunch(
        entry="k", grid=grid, block=(32, 1, 1), cluster=(1, 1, 1), dynamic_smem=0, programmatic=False, args=()
    )


class Tiles:
    """Tiles of 4 x 8 words in the rows of a matrix, one matrix per split; keeps the list of single-cluster runs."""

    def __init__(self, grid: tuple[int, int, int], *, shuffled: bool = False) -> None:
        self.grid, self.shuffled, self.probed = grid, shuffled, list[int]()

    def __call__(self, cluster: int) -> Ranges:
        self.probed.append(cluster)
        return {"workspace": [(start, start + 32) for start in self.starts(cluster)]}

    def starts(self, cluster: int) -> list[int]:
        width, height, depth = self.grid
        if self.shuffled:
            cluster = cluster * 7 % (width * height * depth)
        x, y, z = cluster % width, cluster // width % height, cluster // width // height
        return [(((z * height + y) * 4 + row) * width + x) * 32 for row in range(4)]


def test_writers_are_foretold_from_a_few_clusters() -> None:
    tiles = Tiles((10, 20, 4))
    writers = Writers(launched(tiles.grid), tiles)
    wanted = (3 + 10 * 7, 3 + 10 * 7 + 600, 799)
    spans = sorted((start + 4, start + 12) for cluster in wanted for start in tiles.starts(cluster))
    found, left = writers.of(pieces({"workspace": spans}))
    assert (found, left) == (set(wanted), {})
    assert set(tiles.probed) == {0, 1, 10, 200, 799}
    writers.of(pieces({"workspace": spans}))
    assert len(tiles.probed) == 5


def test_what_no_cluster_writes_is_left() -> None:
    tiles = Tiles((10, 20, 4))
    beyond = 10 * 20 * 4 * 128
    found, left = Writers(launched(tiles.grid), tiles).of(pieces({"workspace": [(0, 4), (beyond, beyond + 4)], "D": [(6, 8)]}))
    assert found == {0}
    assert {name: places.tolist() for name, places in left.items()} == {"workspace": [beyond, beyond + 2], "D": [6]}


def test_an_order_that_does_not_shift_is_no_guess() -> None:
    tiles = Tiles((10, 20, 4), shuffled=True)
    found, left = Writers(launched(tiles.grid), tiles).of(pieces({"workspace": [(64, 68)]}))
    assert found == set()
    assert left["workspace"].tolist() == [64, 66]


def test_few_clusters_are_all_tried_out() -> None:
    tiles = Tiles((FEW_CLUSTERS, 1, 1), shuffled=True)
    [start, *_] = tiles.starts(5)
    found, left = Writers(launched(tiles.grid), tiles).of(pieces({"workspace": [(start, start + 2)]}))
    assert (found, left) == ({5}, {})


def test_more_than_is_looked_at_is_refused() -> None:
    with pytest.raises(TooMany):
        pieces({"workspace": [(0, 2**24)]})
    tiles = Tiles((100, 100, 1))
    with pytest.raises(TooMany):
        Writers(launched(tiles.grid), tiles).of(pieces({"workspace": [(0, 2**18)]}))


# ---- inputs -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("element", list(ElementType))
def test_lines_are_multiples_of_a_small_operand_and_no_two_are_alike_in_step(element: ElementType) -> None:
    source = np.random.default_rng(3)
    period = PERIODS[0]
    values = np.concatenate([source.normal(size=(period, 31)), np.full((period, 1), 2.0**-24)], axis=1)
    small = encode(np, values, element)
    lines = OperandLines.drawn(source, 5 * period, period, 2)
    whole = decode(np, lines.spread(small, element), element).astype(float)
    exact = decode(np, small, element).astype(float)
    assert np.array_equal(whole, exact[lines.index] * lines.factors[:, None])
    assert set(lines.factors) == {-4.0, -2.0, -1.0, 1.0, 2.0, 4.0}
    for step in range(1, 5):
        assert (lines.factors[step * period :] != lines.factors[: -step * period]).mean() > 0.7


# ---- kernels ----------------------------------------------------------------------------------------------------------------
TASK = GemmTask(m=8192, n=512, k=32)
SPLITS = 4
PARTS = """\
#include <cuda_fp16.h>
extern "C" __global__ void parts(const half* a, const half* b, int m, int n, int k, float* work) {{
  const int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16, split = blockIdx.z;
  if (row >= m || column >= n) return;
  float total = 0;
  for (int i = split * (k / 4); i < (split + 1) * (k / 4); ++i)
    total += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);
  {store}
}}
"""
SUM = """\
extern "C" __global__ void reduce(half* d, int m, int n, const float* work) {{
  const int at = blockIdx.x * 256 + threadIdx.x;
  if (at >= m * n) return;
  float total = 0;
  for (int split = 0; split < 4; ++split) total += work[split * m * n + at];
  {store}
}}
"""
PART = "work[(split * m + row) * n + column] = total;"
RESULT = "d[at] = __float2half(total);"


def two_launches(**fields: Any) -> LaunchPlan:
    a, b, d = TENSORS
    m, n, k = SCALARS
    parts = {"entry": "parts", "grid": ("ceil(N/16)", "ceil(M/16)", SPLITS), "block": (256, 1, 1)}
    reduce = {"entry": "reduce", "grid": ("ceil(M*N/256)", 1, 1), "block": (256, 1, 1), "programmatic": False}
    launches = ({**parts, "args": (a, b, m, n, k, {"workspace": 0})}, {**reduce, "args": (d, m, n, {"workspace": 0})})
    return plan(launches=launches, workspace={"bytes": "16*M*N"}, **fields)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("WHOLE_ONCE", 1000), ("QUICK_WORK", 1000), ("MAX_SEARCHED", 4)):
        monkeypatch.setattr(f"cudal2_agent.sandbox.emulator.large.sample.{name}", limit)
    for name in ("WHOLE_WORK", "AFFORDABLE_WORK"):
        monkeypatch.setattr(f"cudal2_agent.sandbox.emulator.large.coverage.{name}", 100_000)


def proof(build: Build, part: str = PART, result: str = RESULT) -> Any:
    built = build(PARTS.format(store=part) + SUM.format(store=result), two_launches(), TASK)
    smaller = GemmTask(m=32, n=32, k=32)
    return prove(built, TASK, reduced=Reduced(built=built, task=smaller), timeout_s=200)


def failure(answer: object) -> TestResult:
    assert isinstance(answer, Done), answer
    assert isinstance(answer.evaluation, Wrong), answer.evaluation
    assert [test.passed for test in answer.evaluation.tests if test.name == "reduced"] == [True]
    return answer.evaluation.test


@pytest.mark.usefixtures("large")
def test_a_sum_of_splits_is_sampled_with_the_splits_that_it_needs(build: Build) -> None:
    answer = proof(build)
    assert isinstance(answer, Verified), answer
    said = {test.name: test.message for test in answer.tests if test.message}["full-size"]
    found = re.search(r"(\d+) of 16384 clusters of reduce run, with (\d+) of parts before it; (\d+) outputs compared", said)
    assert found, said
    clusters, before, outputs = map(int, found.groups())
    assert 3 <= clusters <= 32
    assert 4 * clusters <= before <= 64 * clusters  # 256 outputs of one row are in 16 tiles
    assert outputs == 256 * clusters


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("part", "result", "found"),
    [
        (PART.replace("row)", "(row & 4095))"), RESULT, False),
        (PART.replace("total;", "row < 4096 ? total : 0;"), RESULT, True),
        (PART, RESULT.replace("total", "at < (1 << 21) ? total : 0"), True),
        (PART, "const bool late = at >= (1 << 21); " + RESULT.replace("total", "late ? work[at] : total"), True),
    ],
    ids=["wraps", "half-of-the-parts", "half-of-the-sums", "one-split"],
)
@pytest.mark.slow
def test_a_fault_of_two_launches_that_only_a_large_size_shows_is_found(
    build: Build, part: str, result: str, found: bool
) -> None:
    answer = proof(build, part, result)
    if found:
        assert failure(answer).name in ("zero-one", "wide-sums", "gaussian")
        return
    # No launch writes the data: the missing writer is reported, and is not a fault.
    assert isinstance(answer, Verified)
    assert "of earlier launches" in {test.name: test.message for test in answer.tests}["not-covered"]


@pytest.mark.usefixtures("large")
def test_a_launch_behind_the_last_that_writes_the_output_is_left_out(build: Build) -> None:
    """Such a launch would read data that the sample did not write."""
    source = PARTS.format(store=PART) + SUM.format(store=RESULT)
    source += 'extern "C" __global__ void clears(float* work) { work[blockIdx.x * 256 + threadIdx.x] = 0; }\n'
    made = two_launches()
    last = {"entry": "clears", "grid": ("ceil(M*N/64)", 1, 1), "block": (256, 1, 1), "args": ({"workspace": 0},)}
    built = build(source, plan(launches=(*made.launches, last), workspace={"bytes": "16*M*N"}), TASK)
    answer = prove(built, TASK, reduced=Reduced(built=built, task=GemmTask(m=32, n=32, k=32)), timeout_s=200)
    assert isinstance(answer, Verified), answer
    assert "clusters of reduce run" in answer.tests[-1].message
