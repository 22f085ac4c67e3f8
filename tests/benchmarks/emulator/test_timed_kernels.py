"""The kernels by which the timing model is fitted and judged, and how they are measured and judged."""

import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.emulator.timing_model import judge, measure, predicting
from benchmarks.emulator.timing_model.draw import DRAWN, listed, rows_of, task_of
from benchmarks.emulator.timing_model.fresh import FITTED, JUDGED, apart, stratified
from benchmarks.emulator.timing_model.measure import part_of
from benchmarks.emulator.timing_model.sources import TimedKernel, scheduled
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.policies.schedule.families.registry import written

# ---- the lists of shapes and schedules by which the timing model is fitted and judged --------------------------------------
WITHOUT_FIRST = [*FITTED, *JUDGED[2:]]


def test_no_shape_is_both_fitted_to_and_judged_by() -> None:
    lists = [listed(path) for path in (*JUDGED, *FITTED)]
    assert [len(shapes) for shapes in lists] == [20, 29, 20, 20, 20, 40, 160, 400]
    every = [shape for shapes in lists for shape in shapes]
    assert len(set(every)) == len(every)
    assert not {shape for path in FITTED for shape in listed(path)} & apart()
    assert {shape for path in JUDGED for shape in listed(path)} <= apart()


@pytest.mark.parametrize(
    ("drawn", "each"),
    list(zip((DRAWN, *WITHOUT_FIRST), (30, 28, 30, 30, 30, 30, 30), strict=True)),
    ids=lambda x: str(x),
)
def test_as_many_schedules_are_drawn_of_every_shape(drawn: Path, each: int) -> None:
    assert Counter(row["shape"] for row in rows_of(drawn)) == dict.fromkeys(listed(drawn), each)


@pytest.mark.parametrize("drawn", WITHOUT_FIRST, ids=lambda path: path.name)
def test_drawn_schedules_are_still_written(drawn: Path) -> None:
    for row in random.Random(3).sample(rows_of(drawn), 40):
        candidate = written(row["schedule"], task_of(row["shape"]))
        # Axes that are newer than the draw have their values of before.
        assert row["schedule"].items() <= (candidate.origin.schedule or {}).items()


def test_a_draw_takes_one_shape_of_each_stratum_of_time() -> None:
    best_us = {f"{i}": float(2**i) for i in range(8)} | {"slow": 501.0}
    chosen = stratified(best_us, 4, random.Random(0))
    assert [int(shape) // 2 for shape in chosen] == [0, 1, 2, 3]
    assert set(stratified(best_us, 8, random.Random(0))) == set(best_us) - {"slow"}


# ---- shapes are shared among processes: each is measured once, whole, by one of them ---------------------------------------
def kernels() -> list[TimedKernel]:
    return list(scheduled())[::30][:5] + list(scheduled())[1::30][:5]


def test_parts_share_the_shapes() -> None:
    every = kernels()
    parts = [part_of(every, f"{place}/3") for place in (1, 2, 3)]
    assert sorted(each.name for part in parts for each in part) == sorted(each.name for each in every)
    shapes = [{each.task.shape for each in part} for part in parts]
    assert [len(each) for each in shapes] == [2, 2, 1]
    assert not shapes[0] & shapes[1]


@pytest.mark.parametrize("part", ["0/4", "5/4", "1", "a/b"])
def test_a_part_that_is_none_is_one_line(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["measure", "--out", str(tmp_path / "rows.jsonl"), "--part", part])
    monkeypatch.setattr(measure, "scheduled", lambda _: kernels())
    with pytest.raises(UsageError, match=f"--part '{part}': write 1/2 for the first of two processes"):
        measure.main()


# ---- cPU seconds of predictions: the fastest of several traces counts, and none is refused ---------------------------------
def test_the_fastest_of_several_traces_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, real, extra_s = next(iter(scheduled())), predicting._prepared, iter([200.0, 100.0, 300.0])

    def slower(*args: object) -> predicting.Prepared:
        made = real(*args)
        return predicting.Prepared(made.task, made.traced, made.inspection, (next(extra_s), 0.0))

    monkeypatch.setattr(predicting, "_prepared", slower)
    [(position, made)] = predicting.prepared([(kernel.candidate, kernel.task)], tmp_path, 1, repeats=3)
    assert (position, made.seconds) == (0, (100.0, 0.0))


def test_no_trace_at_all_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["judge", "rows.jsonl", "--repeats", "0"])
    with pytest.raises(SystemExit, match="2"):
        judge.main()
    assert capsys.readouterr().err.splitlines()[-1].endswith("--repeats: at least 1")
