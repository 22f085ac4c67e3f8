"""The lists of shapes and schedules by which the timing model is fitted and judged."""

import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.timing_model.draw import DRAWN, SETS, SHAPES, listed, rows_of, task_of
from benchmarks.timing_model.fresh import FIT_SHAPES, FRESH_SHAPES, apart, stratified
from policies.schedule.families.registry import written

FIT, FRESH = SETS / "drawn_fit.json.gz", SETS / "drawn_fresh.json.gz"


def test_no_shape_is_both_fitted_to_and_judged_by() -> None:
    fitting, fresh = set(listed(FIT_SHAPES)), set(listed(FRESH_SHAPES))
    assert len(fitting) == 40
    assert len(fresh) == 20
    assert not fitting & apart()
    assert not fresh & (apart() | fitting)
    assert set(listed(SHAPES)) <= apart()


@pytest.mark.parametrize(
    ("drawn", "shapes", "each"), [(DRAWN, SHAPES, 30), (FIT, FIT_SHAPES, 28), (FRESH, FRESH_SHAPES, 30)], ids=lambda x: str(x)
)
def test_as_many_schedules_are_drawn_of_every_shape(drawn: Path, shapes: Path, each: int) -> None:
    assert Counter(row["shape"] for row in rows_of(drawn)) == dict.fromkeys(listed(shapes), each)


@pytest.mark.parametrize("drawn", [FIT, FRESH], ids=lambda path: path.name)
def test_drawn_schedules_are_still_written(drawn: Path) -> None:
    for row in random.Random(3).sample(rows_of(drawn), 40):
        candidate = written(row["schedule"], task_of(row["shape"]))
        assert {**(candidate.origin.schedule or {})} == row["schedule"]


def test_a_draw_takes_one_shape_of_each_stratum_of_time() -> None:
    best_us = {f"{i}": float(2**i) for i in range(8)} | {"slow": 501.0}
    chosen = stratified(best_us, 4, random.Random(0))
    assert [int(shape) // 2 for shape in chosen] == [0, 1, 2, 3]
    assert set(stratified(best_us, 8, random.Random(0))) == set(best_us) - {"slow"}
