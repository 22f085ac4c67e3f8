"""Large tasks: the reduced size, and faults that only a sample at full size shows."""

import random
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import TestResult, Wrong
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.sandbox.emulator.large.coverage import (
    Tile,
    needs_rewriting,
    reduced_task,
    resolve_for_few_sms,
    resolve_for_sampling,
    runs_whole,
    tile_of,
    work_of,
)
from cudal2_agent.sandbox.emulator.large.points import Raster, corners_first, first_cta, places_of, rasters, widened
from cudal2_agent.sandbox.emulator.large.sample import Sample
from cudal2_agent.sandbox.workers.messages import Done, NotExecuted, Reduced, Verified
from tests.sandbox.building.build_kernels import ORIGIN
from tests.sandbox.emulator.proving import BEFORE, STORE, SUM, TIERS, naive, passed, plan, prove

LARGE = GemmTask(m=4096, n=1024, k=512)


def call_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of any size are sampled."""
    for name in ("WHOLE_WORK", "AFFORDABLE_WORK"):
        monkeypatch.setattr(f"cudal2_agent.sandbox.emulator.large.coverage.{name}", 1000)


def gridded(*grid: object, **fields: object):
    return plan(launch={"grid": grid}, **fields)


@pytest.mark.parametrize(
    ("grid", "rows", "columns"),
    [
        (("ceil(N/64)", "ceil(M/128)", 1), 128, 64),
        (("ceil(M/192)*ceil(N/96)*3", 1, 1), 192, 96),
        (("min(ceil(M/128)*ceil(N/256)*2, SMS//2*2)", 1, 1), 128, 256),
        (("N/64", "M/128", 1), 128, 64),
        (("(M/64)*(N/64)", 1, 1), 64, 64),
        (("(M/(2*64))*(N/32)", 1, 1), 128, 32),
        (("M*N/4096", 1, 1), 64, 64),
        (("N//64 + 1", "M//128 + 1", 1), 128, 64),
        (("(N+63)//64", "(M + 127 - (M+127)%128)/128", 1), 128, 64),
        ((16, 32, 1), 256, 256),
    ],
)
def test_a_plan_tells_its_tile(grid, rows, columns):
    requires = ("M%64==0", "N%64==0") if grid[0].__class__ is str and "/4096" in grid[0] else ()
    tile = tile_of(gridded(*grid, requires=requires), LARGE)
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


GRIDS = {
    "a tile for each CTA": lambda m, n: (f"ceil(N/{n})", f"ceil(M/{m})", 1),
    "exact": lambda m, n: (f"(M/{m})*(N/{n})", 1, 1),
    "exact in one": lambda m, n: (f"M*N/{m * n}", 1, 1),
    "persistent": lambda m, n: (f"min(ceil(M/{m})*ceil(N/{n}), SMS)", 1, 1),
    "splits": lambda m, n: (f"ceil(M/{m})*ceil(N/{n})*4", 1, 1),
}
WINDOW = (64, 128, 256, 384, 448, 512, 576, 600, 640, 704, 768, 896, 1000, 1024, 1536, 2048, 4096, 8192)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("tile", [(16, 16), (64, 64), (128, 64), (128, 256), (256, 256), (192, 96)], ids=str)
def test_at_every_size_all_tests_run_whole_or_on_a_smaller_task(grid, tile):
    """By planning alone: nothing is executed."""
    rows, columns = tile
    requires = (f"M%{rows}==0", f"N%{columns}==0") if grid.startswith("exact") else ()
    made = gridded(*GRIDS[grid](rows, columns), requires=requires)
    source = random.Random(f"{grid} {tile}")
    drawn = [tuple(int(2 ** source.uniform(6, 13)) for _ in "mnk") for _ in range(12)]
    for m, n, k in [(size, size, size) for size in WINDOW] + drawn:
        if requires:
            m, n = max(m // rows, 1) * rows, max(n // columns, 1) * columns
        task = GemmTask(m=m, n=n, k=k)
        if runs_whole(task, made):
            assert work_of(task) <= 300_000_000
            continue
        smaller = reduced_task(task, made)
        assert smaller is not None, task.shape
        assert work_of(smaller) <= work_of(task) / 2
        assert work_of(smaller) <= 600_000_000
        for size, full, edge in ((smaller.m, m, rows), (smaller.n, n, columns)):
            assert size % edge == full % edge
            assert size >= min(full, edge)


@pytest.mark.parametrize(
    ("shape", "tile", "whole"),
    [
        ((512, 512, 512), 256, True),
        ((600, 600, 600), 256, True),
        ((1024, 1024, 1024), 256, False),
        ((512, 512, 512), 64, False),
    ],
)
def test_a_task_is_run_whole_where_a_smaller_one_would_save_little(shape, tile, whole):
    task = GemmTask(m=shape[0], n=shape[1], k=shape[2])
    assert runs_whole(task, gridded(f"ceil(N/{tile})", f"ceil(M/{tile})", 1)) is whole


def test_what_a_plan_requires_a_reduced_task_meets():
    assert reduced_task(LARGE, gridded("ceil(N/64)", "ceil(M/64)", 1, requires=("M>=4096",))) is None
    met = reduced_task(LARGE, gridded("ceil(N/64)", "ceil(M/64)", 1, requires=("M%128==0", "M==4096")))
    assert met is not None
    assert met.m % 128 == 0


def test_small_tasks_are_run_whole():
    assert runs_whole(GemmTask(m=512, n=256, k=512), plan())
    assert not runs_whole(LARGE, plan())
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
    resolved = resolve(persistent, LARGE, LIMITS[LARGE.arch], 132)
    assert resolve_for_sampling(persistent, resolved, LARGE, 2**31).launches[0].grid == (132, 1, 1)
    assert resolve_for_sampling(persistent, resolved, LARGE, 2**24).launches[0].grid == (512, 1, 1)


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


def test_places_of_an_output_are_its_corners_edges_and_interior():
    compared = np.zeros((100, 90), dtype=bool)
    places = {place.name: place for place in places_of(GemmTask(m=100, n=90, k=8), Tile(32, 16))}
    corners = ["top left", "top right", "bottom left", "bottom right"]
    assert sorted(places) == sorted([*corners, "top", "bottom", "left", "right", "interior"])
    for row, column, name in ((0, 0, "top left"), (0, 89, "top right"), (99, 16, "bottom"), (67, 89, "right")):
        compared[...] = False
        compared[row, column] = True
        assert [each for each, place in places.items() if place.touched(compared)] == [name]
    compared[...] = False
    compared[:32] = compared[68:] = compared[:, :16] = compared[:, 74:] = True
    assert [each for each, place in places.items() if not place.touched(compared)] == ["interior"]
    narrow = places_of(GemmTask(m=100, n=32, k=8), Tile(32, 16))
    assert sorted(place.name for place in narrow) == sorted([*corners, "left", "right"])


@pytest.mark.parametrize("group", [1, 4, 8, 32])
@pytest.mark.parametrize("by_rows", [True, False])
def test_a_raster_is_known_by_what_its_clusters_wrote(group, by_rows):
    """Against a kernel's raster order (cudal2/raster.cuh), with persistent clusters."""
    task, tile = GemmTask(m=13 * 64, n=10 * 32, k=8), Tile(64, 32)
    wrote: dict[int, set[tuple[int, int]]] = {}
    lines, length = (13, 10) if by_rows else (10, 13)
    for index in range(130):
        first = index // (group * length) * group
        height, local = min(lines - first, group), index % (group * length)
        at = (first + local % height, local // height)
        wrote.setdefault(index % 7, set()).add(at if by_rows else at[::-1])
    kept = [raster for raster in rasters(task, tile, 7) if raster.agrees(wrote[3], {3})]
    assert Raster((13, 10), 7, group, by_rows, splits=1) in kept
    assert len(kept) < 4
    for cluster, tiles in wrote.items():
        assert {kept[0].cluster(row, column) for row, column in tiles} == {cluster}


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
    assert said["full-size"].startswith("16384x512x16: 14 of 32768 clusters run; 3584 outputs compared of the 8388608")
    assert said["full-size"].endswith("corners, edges and interior of D touched; seed 2")


@pytest.mark.parametrize(
    ("first", "fields", "name", "told"),
    [
        ("  if (k % 16384 == 1) return;\n", {}, "reduced", "with the same source as it is; code in it for 16384x512x16 alone"),
        (
            "  if (m != 16384) k = 0;\n",
            {},
            "not-covered",
            r"for every test to run the whole grid, and the source fails at \d+x512x16 \(zero-one\), as it may",
        ),
        ("", {"requires": ("M==16384",)}, "reduced", "with the same source as it is"),
        ("", {"requires": ("M>=16384",)}, "not-covered", "was not run at a smaller size, which its plan does not allow"),
        ("  while (m != 16384) __nanosleep(20);\n", {}, "not-covered", r"the source fails at \d+x512x16 \(endless\)"),
    ],
)
def test_a_source_that_may_have_its_size_compiled_in_is_tried_and_only_its_pass_counts(build, first, fields, name, told):
    said = messages(prove(build(naive(first=first), plan(**fields), SHORT), SHORT, timeout_s=300))
    assert re.search(told, said[name])
    assert {"reduced", "not-covered"} - {name} == {"reduced", "not-covered"} - said.keys()


def test_a_source_that_is_only_tried_has_a_part_of_the_time(build, monkeypatch):
    monkeypatch.setattr("cudal2_agent.sandbox.emulator.evaluator.ATTEMPT_SHARE", 1e-6)
    said = messages(prove(build(naive(), task=SHORT), SHORT))
    assert re.search(r"the source was not executed to its end at \d+x512x16", said["not-covered"])
    assert "reduced" not in said


PERSISTENT = """\
  for (int tile = blockIdx.x; tile < m / 16 * (n / 16); tile += gridDim.x) {
  const int per_group = 8 * (n / 16), local = tile % per_group;
  const int row = (tile / per_group * 8 + local % 8) * 16 + threadIdx.x / 16, column = local / 8 * 16 + threadIdx.x % 16;
"""


def persistent(build, task, before=""):
    source = naive(first=PERSISTENT, guard=before, store=STORE + "  }\n").replace(BEFORE, "", 1)
    return build(source, plan(launch={"grid": ("min(ceil(M/16)*ceil(N/16), SMS)", 1, 1)}), task)


def test_a_sample_of_a_persistent_kernel_reaches_every_place_of_the_output(build, monkeypatch):
    """The wrong corner is not a corner of the grid."""
    call_large(monkeypatch)
    monkeypatch.setattr("cudal2_agent.sandbox.emulator.large.sample.QUICK_WORK", 1000)
    monkeypatch.setattr("cudal2_agent.sandbox.emulator.large.sample.MAX_POINTS", 3)
    task = GemmTask(m=512, n=384, k=16)
    right = persistent(build, task)
    wrong = persistent(
        build, task, "  if (row < 16 && column == n - 1) { d[row * n + column] = __float2half(0.5f); continue; }\n"
    )
    assert messages(prove(right, task))["full-size"].endswith("corners, edges and interior of D touched; seed 2")
    answer = prove(wrong, task)
    assert isinstance(answer, Done), answer
    assert "first D[0,383] is 0.5" in answer.evaluation.test.message
    monkeypatch.setattr("cudal2_agent.sandbox.emulator.large.sample.MAX_SEARCHED", 0)
    assert re.search(r"of D not touched: .*top right", messages(prove(right, task))["full-size"])
    assert isinstance(prove(wrong, task), Verified)


def test_what_was_run_before_a_sample_had_to_end_is_told(build, monkeypatch):
    """Most columns of the grid have no outputs."""
    call_large(monkeypatch)
    for name in ("QUICK_WORK", "WHOLE_ONCE"):
        monkeypatch.setattr(f"cudal2_agent.sandbox.emulator.large.sample.{name}", 1000)
    task = GemmTask(m=512, n=640, k=16)
    idle = plan(launch={"grid": ("ceil(N/16)*8", "ceil(M/16)", 1)})
    built = build(naive(), idle, task)
    said = messages(prove(built, task, reduced=Reduced(built=built, task=GemmTask(m=32, n=32, k=16))))
    assert "clusters of a sample write nothing without the others" in said["not-covered"]
    assert re.search(r"of D not touched: .*bottom right", said["full-size"])


def test_a_grid_that_is_quick_is_run_whole_at_full_size(build, monkeypatch):
    call_large(monkeypatch)
    task = GemmTask(m=512, n=384, k=16)
    said = messages(prove(persistent(build, task), task))["full-size"]
    assert said.endswith("clusters run, then the whole grid without race detection; all 196608 outputs compared; seed 2")
    for before, name in (
        ("sum = row == 100 && column == 200;", "gaussian"),
        ("if (row == 100 && column == 200) return;", "unwritten"),
    ):
        source = naive(store=f"  if (row == 100 && column == 200) {before}\n{STORE}")
        answer = prove(build(source, task=task), task)
        assert isinstance(answer, Done), answer
        assert answer.evaluation.test.name == name
    monkeypatch.setattr("cudal2_agent.sandbox.emulator.large.sample.QUICK_OPERATIONS", 1000)
    assert "whole grid" not in messages(prove(persistent(build, task), task))["full-size"]


@pytest.mark.parametrize(
    ("requires", "told"), [((), "is not covered by them"), (("M>=4096",), "was not run at a smaller size")]
)
def test_a_large_task_of_which_nothing_is_run_at_full_size_is_verified_by_the_schedule_alone(
    build, monkeypatch, requires, told
):
    """A smaller run does not verify a source that may behave differently at full size."""
    monkeypatch.setattr("cudal2_agent.sandbox.emulator.large.coverage.REDUCED_WORK", 1000)
    monkeypatch.setattr("cudal2_agent.sandbox.emulator.large.sample.POINT_WORK", 1000)
    launch = plan().launches[0]
    built = build(naive(), plan(launches=(launch, launch), requires=requires), LARGE)
    answer = prove(built, LARGE)
    assert isinstance(answer, NotExecuted), answer
    assert told in answer.reason
    assert "; not covered at full size: one of the" in answer.reason
    smaller = GemmTask(m=32, n=32, k=16)
    written = build(naive(), plan(launches=(launch, launch)), smaller)
    assert "reduced" in messages(prove(built, LARGE, reduced=Reduced(built=written, task=smaller)))


def test_a_grid_of_one_cluster_is_sampled_on_every_case_of_inputs(build, monkeypatch):
    """Fractions are lost: the first input cases have only integers."""
    call_large(monkeypatch)
    task = GemmTask(m=16, n=16, k=64)
    answer = prove(build(naive(store=STORE.replace("sum", "truncf(sum)")), task=task), task)
    assert isinstance(answer, Done), answer
    assert isinstance(answer.evaluation, Wrong)
    assert answer.evaluation.tests[1].name == "zero-one-sampled"
    assert answer.evaluation.test.name in ("wide-sums", "gaussian")


def test_a_fault_that_only_a_large_index_shows_is_found_in_the_sample(build):
    """The row index wraps at 12 bits: right for up to 4096 rows."""
    built = build(naive(store=STORE.replace("row *", "(row & 4095) *")), task=SHORT)
    reduced = reduced_task(SHORT, plan())
    answer = prove(built, SHORT, reduced=Reduced(built=built, task=reduced))
    assert isinstance(answer, Done)
    assert isinstance(answer.evaluation, Wrong)
    assert answer.evaluation.test.name == "zero-one"
    assert "outputs written at full size are wrong" in answer.evaluation.test.message
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


def test_a_sample_of_splits_is_widened_until_it_writes(build, monkeypatch):
    """The last arrival of four CTAs sums a tile."""
    monkeypatch.setattr("cudal2_agent.sandbox.emulator.large.coverage.REDUCED_WORK", 1000)
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
    assert "72 of 32768 clusters run, 4 at a time; 4608 outputs compared" in said["full-size"]


SKIPS_ZEROS = SUM.replace("sum +=", "if (__half2float(a[row * k + i]) != 0.0f) sum +=")
CLAMPS = SUM.replace("sum += __half2float(a[row * k + i])", "sum += fminf(fmaxf(__half2float(a[row * k + i]), -3e4f), 3e4f)")
PINNED, FLAT = plan(requires=("M>=512",)), GemmTask(m=512, n=384, k=64)


@pytest.fixture
def _sampled_alone(monkeypatch):
    call_large(monkeypatch)
    monkeypatch.setattr("cudal2_agent.sandbox.emulator.large.sample.QUICK_WORK", 1000)


@pytest.mark.usefixtures("_sampled_alone")
def test_where_no_smaller_task_stands_for_it_all_tiers_run_on_the_sample(build):
    answer = prove(build(naive(), PINNED, FLAT), FLAT)
    assert "all tests run on a sample" in messages(answer)["not-covered"]
    assert passed(answer)[0] == TIERS
    names = {test.name for test in answer.tests}
    assert {"nonfinite-sampled", "zero-times-sampled", "extremes-sampled", "uniform-sampled", "bitwise-sampled"} <= names


@pytest.mark.usefixtures("_sampled_alone")
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"total": SKIPS_ZEROS}, "zero-times|nonfinite"),
        (
            {"total": CLAMPS.replace("fminf(fmaxf(", "__saturatef(").replace(", -3e4f), 3e4f)", ")")},
            "zero-one|gaussian|wide-sums",
        ),
        ({"total": CLAMPS}, "extremes|nonfinite|zero-times"),
        ({"store": STORE.replace("  d[", "  if (sum == sum) d[")}, "unwritten|nonfinite|zero-times"),
        ({"store": STORE.replace("(sum)", "(fabsf(sum) > 65504.0f ? 65504.0f : sum)")}, "large|nonfinite"),
    ],
)
def test_a_fault_that_special_values_show_is_found_on_the_sample(build, changes, name):
    answer = prove(build(naive(**changes), PINNED, FLAT), FLAT)
    assert isinstance(answer, Done), answer
    assert re.fullmatch(name, answer.evaluation.test.name)
    assert "at full size" in answer.evaluation.test.message


def test_a_task_that_is_affordable_whole_falls_back_to_its_sample(build, monkeypatch):
    monkeypatch.setattr("cudal2_agent.sandbox.emulator.large.coverage.WHOLE_WORK", 1000)
    task = GemmTask(m=40, n=40, k=64)
    skips = build(naive(total=SKIPS_ZEROS), task=task)
    assert runs_whole(task, plan())
    assert prove(build(naive(), task=task), task).tests[-1].name == "schedules"
    for share in (0.75, 1e-9):
        monkeypatch.setattr("cudal2_agent.sandbox.emulator.evaluator.WHOLE_SHARE", share)
        answer = prove(skips, task)
        assert isinstance(answer, Done), answer
        assert answer.evaluation.test.name in ("zero-times", "nonfinite")
    assert passed(prove(build(naive(), task=task), task))[0] == TIERS


@pytest.mark.usefixtures("_sampled_alone")
def test_a_grid_that_divides_exactly_has_a_smaller_task(build):
    place = "blockIdx.x {} (n / 16) * 16 + threadIdx.x {} 16"
    first = f"  const int row = {place.format('/', '/')}, column = {place.format('%', '%')};\n"
    made = gridded("(M/16)*(N/16)", 1, 1)
    smaller = reduced_task(FLAT, made)
    assert smaller is not None
    for total, passes in ((SUM, True), (SKIPS_ZEROS, False)):
        built = build(naive(first=first, total=total).replace(BEFORE, "", 1), made, FLAT)
        answer = prove(built, FLAT, reduced=Reduced(built=built, task=smaller))
        assert isinstance(answer, Verified if passes else Done), answer


@pytest.mark.usefixtures("_sampled_alone")
def test_a_kernel_of_which_a_tier_did_not_run_is_not_executed(build, monkeypatch):
    other = TestResult(tier="accuracy", name="uniform-sampled", passed=True)
    monkeypatch.setattr(Sample, "other_tiers", lambda _: iter((other,)))
    answer = prove(build(naive(), PINNED, FLAT), FLAT)
    assert isinstance(answer, NotExecuted), answer
    assert answer.reason.startswith("not run in any form: special, guards, freshness, repeatability (512x384x64 is too large")
    assert answer.prediction is not None


@pytest.mark.parametrize("period", [223, 251])
@pytest.mark.parametrize("seed", [3, 4])
def test_inputs_at_full_size_have_no_period(build, period, seed):
    """A kernel that uses an earlier row or column instead of a later one is wrong at any distance."""
    task = GemmTask(m=8192, n=2048, k=16)
    for index, wrong in (("a[row * k", f"a[(row < 4096 ? row : row % {period}) * k"), ("+ column]", f"+ column % {period}]")):
        built = build(naive(total=SUM.replace(index, wrong)), task=task)
        assert wrong in built.candidate.source
        right = build(naive(), task=GemmTask(m=64, n=64, k=16))
        answer = prove(built, task, reduced=Reduced(built=right, task=GemmTask(m=64, n=64, k=16)), seed=seed)
        assert isinstance(answer, Done), answer
        assert answer.evaluation.test.name == "zero-one"
        assert "outputs written at full size are wrong" in answer.evaluation.test.message


def test_a_seed_is_drawn_where_none_is_given_and_told(build):
    built = build(naive(), task=SHORT)
    smaller = Reduced(built=built, task=GemmTask(m=64, n=64, k=16))
    told = [messages(prove(built, SHORT, reduced=smaller, seed=None))["full-size"] for _ in range(2)]
    assert len({re.search(r"; seed (\d+)$", message)[1] for message in told}) == 2
    wrong = build(naive(store=STORE.replace("sum)", "sum + 1)")))
    assert prove(wrong, seed=None).evaluation.test.seed is not None


@pytest.mark.usefixtures("_sampled_alone")
@pytest.mark.parametrize("seed", [0, 1, 2**48])
def test_a_seed_that_is_given_is_taken_zero_too(build, seed):
    built = build(naive(), task=FLAT)
    smaller = Reduced(built=built, task=GemmTask(m=64, n=64, k=16))
    one, other = (prove(built, FLAT, reduced=smaller, seed=seed).tests for _ in range(2))
    assert {test.seed for test in one if test.seed is not None} == {seed}
    assert one == other
    assert one[-1].message.endswith(f"; seed {seed}")
    wrong = build(naive(store=STORE.replace("sum)", "sum + 1)")), task=FLAT)
    assert prove(wrong, FLAT, seed=seed).evaluation.test.seed == seed


@pytest.mark.slow
@pytest.mark.parametrize("size", [256, 512, 600, 1024])
@pytest.mark.parametrize("skips", [False, True])
def test_a_large_tile_has_the_same_verdict_at_every_size(build, size, skips):
    """A tile of 256x256 leaves little to save at 512 and 600: the whole grid is run there."""
    source = (Path(__file__).parent / "kernels" / "wide_cta.cu").read_text()
    source = source.replace("sum[j] += x * y;", "if (x != 0.f) sum[j] += x * y;") if skips else source
    task = GemmTask(m=size, n=size, k=size)
    launch = parse_plan(source)
    built = build(source, launch, task)
    smaller = reduced_task(task, launch)
    answer = prove(built, task, reduced=Reduced(built=built, task=smaller) if smaller else None, timeout_s=300)
    assert isinstance(answer, Done if skips else Verified), answer
    assert not skips or answer.evaluation.test.name in ("zero-times", "nonfinite")
