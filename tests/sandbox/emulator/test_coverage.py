"""Large tasks: what is run instead, and what a sample at full size sees that nothing smaller shows."""

import random

import pytest

pytest.importorskip("sandbox.emulator._core", reason="the emulator's core is not built here")

from contract.candidate import Candidate
from contract.chip import LIMITS
from contract.evaluation import Wrong
from contract.plan import resolve
from contract.task import Arch, GemmTask
from sandbox.emulator.coverage import (
    needs_rewriting,
    reduced_task,
    resolve_for_few_sms,
    resolve_for_sampling,
    runs_whole,
    tile_of,
)
from sandbox.emulator.sampling import corners_first, first_cta, widened
from sandbox.messages import Done, NotExecuted, Reduced, Verified
from tests.sandbox.build_kernels import ORIGIN
from tests.sandbox.emulator.proving import STORE, Build, builder, naive, plan, prove

LARGE = GemmTask(m=4096, n=1024, k=512)


@pytest.fixture(scope="module")
def build(request: pytest.FixtureRequest) -> Build:
    assert request.config.cache is not None
    return builder(request.config.cache.mkdir("emulator-kernels"))


def gridded(*grid: object, **fields: object):
    return plan(launch={"grid": grid}, **fields)


@pytest.mark.parametrize(
    ("grid", "rows", "columns"),
    [
        (("ceil(N/64)", "ceil(M/128)", 1), 128, 64),
        (("ceil(M/192)*ceil(N/96)*3", 1, 1), 192, 96),
        (("min(ceil(M/128)*ceil(N/256)*2, SMS//2*2)", 1, 1), 128, 256),
        (("N/64", "M/128", 1), 256, 256),
        ((16, 32, 1), 256, 256),
    ],
)
def test_a_plan_tells_its_tile(grid, rows, columns):
    tile = tile_of(gridded(*grid), LARGE)
    assert (tile.rows, tile.columns) == (rows, columns)


@pytest.mark.parametrize("shape", [(4096, 1024, 512), (4100, 1032, 1000), (8192, 72, 16384), (16384, 16384, 16384)])
@pytest.mark.parametrize("tile", [(16, 16), (128, 64), (192, 96), (256, 256)])
def test_a_reduced_task_keeps_residues_and_has_several_tiles(shape, tile):
    task = GemmTask(m=shape[0], n=shape[1], k=shape[2])
    reduced = reduced_task(task, gridded(f"ceil(N/{tile[1]})*ceil(M/{tile[0]})", 1, 1))
    assert reduced is not None
    assert reduced.m * reduced.n * reduced.k * 2 <= task.m * task.n * task.k
    for size, full, edge in ((reduced.m, task.m, tile[0]), (reduced.n, task.n, tile[1])):
        assert size % edge == full % edge
        assert size % 16 == full % 16
        assert size >= min(full, 2 * edge)
    assert reduced.k % 256 == task.k % 256
    assert reduced.k >= min(task.k, 512)


def test_splits_have_something_to_split():
    task = GemmTask(m=64, n=64, k=65536)
    reduced = reduced_task(task, gridded("ceil(M/64)*ceil(N/64)*8", 1, 1))
    assert reduced is not None
    assert reduced.k >= 8 * 512


def test_what_a_plan_requires_a_reduced_task_meets():
    assert reduced_task(LARGE, gridded("ceil(N/64)", "ceil(M/64)", 1, requires=("M>=4096",))) is None
    met = reduced_task(LARGE, gridded("ceil(N/64)", "ceil(M/64)", 1, requires=("M%128==0", "M==4096")))
    assert met is not None
    assert met.m % 128 == 0


def test_small_tasks_are_run_whole():
    assert runs_whole(GemmTask(m=512, n=256, k=512))
    assert not runs_whole(LARGE)
    assert reduced_task(GemmTask(m=512, n=256, k=512), plan()) is None


@pytest.mark.parametrize(
    ("source", "changes", "rewriting"),
    [
        (naive(), {}, False),
        (naive(first="  // 4096 rows\n"), {}, False),
        (naive(first="  if (m != 4096) return;\n"), {}, True),
        (naive(first="  if (m != 40960) return;\n"), {}, False),
        (naive(), {"requires": ("M==4096",)}, True),
        (naive(), {"launch": {"grid": (64, "ceil(M/16)", 1)}}, True),
        (naive(), {"launch": {"args": ({"tensor": "A"}, {"tensor": "D", "access": "write"}, {"scalar": "K"})}}, True),
    ],
)
def test_a_source_with_its_shape_compiled_in_is_not_run_as_it_is(source, changes, rewriting):
    candidate = Candidate(source=source, plan=plan(**changes), origin=ORIGIN)
    smaller = LARGE.model_copy(update={"m": 256, "n": 128})
    assert needs_rewriting(candidate, LARGE, smaller) is rewriting


def test_persistent_clusters_walk_several_tiles_at_a_reduced_size_and_one_where_all_would_be_too_many():
    persistent = plan(launch={"grid": ("min(ceil(M/128)*ceil(N/128)*2, SMS//2*2)", 1, 1), "cluster": (2, 1, 1)})
    assert resolve_for_few_sms(persistent, LARGE).launches[0].grid == (2, 1, 1)
    assert resolve_for_sampling(persistent, LARGE, 132, 2**31).launches[0].grid == (132, 1, 1)
    assert resolve_for_sampling(persistent, LARGE, 132, 2**24).launches[0].grid == (512, 1, 1)


def test_a_sample_begins_with_the_corners_and_has_every_split():
    launch = resolve(
        plan(launch={"grid": (8, 6, 3), "cluster": (2, 1, 1)}), GemmTask(m=64, n=64, k=64), LIMITS[Arch.SM_90A], 132
    ).launches[0]
    points = corners_first(launch, 9, random.Random(1))
    assert points[0] == (0, 24, 48)
    assert points[1] == (23, 47, 71)
    assert {point[0] for point in points[:4]} == {0, 3, 20, 23}
    assert len(set(points)) == 9
    assert [first_cta(launch, cluster) for cluster in points[1]] == [46, 94, 142]
    assert corners_first(launch, 9, random.Random(1)) == points != corners_first(launch, 9, random.Random(2))


def test_a_sample_is_widened_to_neighbours_and_to_far_splits():
    wider = list(widened((5,), 12, 1))
    assert wider[:5] == [(5,), (4, 5), (5, 11), (3, 4, 5), (1, 5, 9)]
    assert all(len(clusters) >= 4 for clusters in widened((5,), 12, 4))
    assert all(max(clusters) < 12 for clusters in wider)
    assert list(widened((1, 2), 12, 1)) == [(1, 2)]


SHORT = GemmTask(m=16384, n=512, k=16)


def messages(answer):
    assert isinstance(answer, Verified), answer
    return {test.name: test.message for test in answer.tests if test.message}


def test_a_large_task_is_proved_in_parts_and_the_record_says_which(build):
    reduced = reduced_task(SHORT, plan())
    assert reduced is not None
    built = build(naive(), task=SHORT)
    said = messages(prove(built, SHORT, reduced=Reduced(built=built, task=reduced)))
    assert f"whole grids of {reduced.shape}" in said["reduced"]
    assert said["full-size"].startswith("16384x512x16: 12 of 32768 clusters run; 3072 outputs compared of the 8388608")
    assert said["full-size"].endswith("touching top, bottom, left, right")
    assert "was not run at a smaller size" in messages(prove(built, SHORT))["not-covered"]


def test_a_large_task_of_which_nothing_can_be_run_is_not_verified(build):
    launch = plan().launches[0]
    built = build(naive(), plan(launches=(launch, launch)), LARGE)
    answer = prove(built, LARGE)
    assert isinstance(answer, NotExecuted), answer
    assert "was not run at a smaller size; not covered at full size: a plan of several launches" in answer.reason


def test_a_grid_of_one_cluster_is_sampled_on_every_case_of_inputs(build, monkeypatch):
    """What is negative is lost: the first case of inputs has nothing negative."""
    monkeypatch.setattr("sandbox.emulator.coverage.WHOLE_WORK", 1000)
    task = GemmTask(m=16, n=16, k=64)
    answer = prove(build(naive(store=STORE.replace("sum", "fmaxf(sum, 0)")), task=task), task)
    assert isinstance(answer, Done), answer
    assert isinstance(answer.evaluation, Wrong)
    assert answer.evaluation.tests[1].name == "zero-one-sampled"
    assert answer.evaluation.test.name in ("wide-sums", "gaussian")


def test_a_fault_that_only_a_large_index_shows_is_found_in_the_sample(build):
    """The row wraps as a 12-bit number: right for every task of up to 4096 rows."""
    built = build(naive(store=STORE.replace("row *", "(row & 4095) *")), task=SHORT)
    reduced = reduced_task(SHORT, plan())
    answer = prove(built, SHORT, reduced=Reduced(built=built, task=reduced))
    assert isinstance(answer, Done)
    assert isinstance(answer.evaluation, Wrong)
    assert answer.evaluation.test.name == "zero-one"
    assert "outputs of a sample are wrong" in answer.evaluation.test.message
    assert [test.passed for test in answer.evaluation.tests if test.name == "reduced"] == [True]


def test_a_fault_at_the_reduced_size_names_the_size(build):
    built = build(naive(guard="  if (column >= n) return;\n"), task=GemmTask(m=16383, n=512, k=16))
    task = GemmTask(m=16383, n=512, k=16)
    reduced = reduced_task(task, plan())
    answer = prove(built, task, reduced=Reduced(built=built, task=reduced))
    assert isinstance(answer, Done)
    assert isinstance(answer.evaluation, Wrong)
    assert answer.evaluation.test.name == "global-out-of-bounds"
    assert answer.evaluation.test.message.endswith(f"(at the reduced size {reduced.shape})")


def test_a_sample_of_splits_is_widened_until_it_writes(build):
    """Each tile is summed by whichever of four neighbours arrives last."""
    first = """\
  const int split = blockIdx.x % 4, tile = blockIdx.x / 4;
  const int row = tile / (n / 16) * 16 + threadIdx.x / 16, column = tile % (n / 16) * 16 + threadIdx.x % 16;
"""
    total = """\
  float part = 0, sum = 0;
  for (int i = split * (k / 4); i < (split + 1) * (k / 4); ++i)
    part += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);
  __shared__ bool last;
  parts[(tile * 4 + split) * 256 + threadIdx.x] = part;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(counters + tile, 3) == 3;
  __syncthreads();
  __threadfence();
  if (!last) return;
  for (int i = 0; i < 4; ++i) sum += __ldcg(parts + (tile * 4 + i) * 256 + threadIdx.x);
"""
    source = naive(first=first, guard="", total=total, parameters=", unsigned* counters, float* parts")
    source = source.replace(naive().split("{\n")[1].split("  if (row")[0], "", 1) if "blockIdx.y" in source else source
    tiles = "ceil(M/16)*ceil(N/16)"
    split = plan(
        args=({"workspace": 0}, {"workspace": f"4*{tiles}"}),
        launch={"grid": (f"{tiles}*4", 1, 1)},
        workspace={"bytes": f"4*{tiles} + 4096*{tiles}", "zero": "restored", "zero_bytes": f"4*{tiles}"},
    )
    task = GemmTask(m=4096, n=512, k=64)
    said = messages(prove(build(source, split, task), task))
    assert "48 of 32768 clusters run, 4 at a time; 3072 outputs compared" in said["full-size"]
