"""The lists of shapes and schedules by which the timing model is fitted and judged."""

import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.emulator.timing_model.draw import DRAWN, SETS, SHAPES, listed, rows_of, task_of
from benchmarks.emulator.timing_model.fresh import FITTED, JUDGED, apart, stratified
from cudal2_agent.policies.schedule.families.registry import written

WITHOUT_FIRST = [
    SETS / f"{name}.json.gz"
    for name in ("fit/drawn", "fit/drawn_2", "fit/drawn_3", "drawn_fresh", "drawn_fresh_2", "drawn_fresh_3")
]


def test_no_shape_is_both_fitted_to_and_judged_by() -> None:
    lists = [listed(path) for path in (*JUDGED, *FITTED)]
    assert [len(shapes) for shapes in lists] == [20, 29, 20, 20, 20, 40, 160, 400]
    every = [shape for shapes in lists for shape in shapes]
    assert len(set(every)) == len(every)
    assert not {shape for path in FITTED for shape in listed(path)} & apart()
    assert {shape for path in JUDGED for shape in listed(path)} <= apart()


@pytest.mark.parametrize(
    ("drawn", "shapes", "each"),
    [
        (DRAWN, SHAPES, 30),
        *(
            (drawn, shapes, each)
            for drawn, shapes, each in zip(WITHOUT_FIRST, (*FITTED, *JUDGED[2:]), (28, 30, 30, 30, 30, 30), strict=True)
        ),
    ],
    ids=lambda x: str(x),
)
def test_as_many_schedules_are_drawn_of_every_shape(drawn: Path, shapes: Path, each: int) -> None:
    assert Counter(row["shape"] for row in rows_of(drawn)) == dict.fromkeys(listed(shapes), each)


@pytest.mark.parametrize("drawn", WITHOUT_FIRST, ids=lambda path: path.name)
def test_drawn_schedules_are_still_written(drawn: Path) -> None:
    for row in random.Random(3).sample(rows_of(drawn), 40):
        candidate = written(row["schedule"], task_of(row["shape"]))
        assert {**(candidate.origin.schedule or {})} == row["schedule"]


def test_a_draw_takes_one_shape_of_each_stratum_of_time() -> None:
    best_us = {f"{i}": float(2**i) for i in range(8)} | {"slow": 501.0}
    chosen = stratified(best_us, 4, random.Random(0))
    assert [int(shape) // 2 for shape in chosen] == [0, 1, 2, 3]
    assert set(stratified(best_us, 8, random.Random(0))) == set(best_us) - {"slow"}
