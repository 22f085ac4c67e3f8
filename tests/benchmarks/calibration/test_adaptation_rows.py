"""Rows of adaptation curves: all arms are judged on the same shapes, which none of them has seen."""

from typing import Any

import pytest

from benchmarks.calibration import adaptation_rows
from benchmarks.calibration.adaptation_rows import FIGURES, AdaptationArm, rows_of, table


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What was trained with and judged on; groups are numbers here."""
    seen: dict[str, list[Any]] = {"trained": [], "judged": []}

    def adapted(start: Any, groups: list[int], _seed: int) -> str:
        seen["trained"].append((start, tuple(groups)))
        return "weights"

    def judged(groups: list[int], _scores_of: Any) -> dict[str, float]:
        seen["judged"].append(tuple(groups))
        return dict.fromkeys(FIGURES, 0.5)

    monkeypatch.setattr(adaptation_rows, "adapted", adapted)
    monkeypatch.setattr(adaptation_rows, "judged", judged)
    return seen


def test_no_arm_is_judged_on_what_it_learned_from(told: dict[str, list[Any]]) -> None:
    base: Any = {"weights": 1}
    arms = (AdaptationArm("adapted", base, [0, 1, 2, 3, 4]), AdaptationArm("alone", None, [10, 11, 12, 13, 14]))  # type: ignore[list-item]
    rows = list(rows_of("shipped", base, arms, (1, 3), seed=4))
    assert [(row["arm"], row["shapes"]) for row in rows] == [
        ("analytic prior", 0), ("shipped", 0), ("adapted", 1), ("alone", 1), ("adapted", 3), ("alone", 3),
    ]  # fmt: skip
    [judging] = set(told["judged"])
    learned = {group % 10 for _, groups in told["trained"] for group in groups}
    assert len(judging) == 2
    assert learned.isdisjoint(judging)
    assert [start for start, _ in told["trained"]] == [base, None, base, None]
    (_, one), (_, also), (_, three), _ = told["trained"]
    assert three[0] == one[0] == also[0] - 10


def test_another_seed_draws_other_shapes(told: dict[str, list[Any]]) -> None:
    arms = (AdaptationArm("adapted", None, list(range(20))),)  # type: ignore[arg-type]
    for seed in (0, 0, 1):
        list(rows_of("shipped", {}, arms, (2,), seed))
    assert told["trained"][0] == told["trained"][1] != told["trained"][2]


def test_shapes_that_judge_may_be_others(told: dict[str, list[Any]]) -> None:
    arms = (AdaptationArm("adapted", None, [0, 1, 2]),)  # type: ignore[list-item]
    list(rows_of("shipped", {}, arms, (1, 3), 0, judges=[7, 8]))  # type: ignore[list-item]
    assert set(told["judged"]) == {(7, 8)}
    assert sorted(told["trained"][-1][1]) == [0, 1, 2]


def test_a_cell_is_the_mean_over_the_draws() -> None:
    figures = [dict.fromkeys(FIGURES, at) for at in (0.5, 1.0)]
    rows: list[dict[str, object]] = [{"arm": "adapted", "shapes": 2, "seed": seed, **one} for seed, one in enumerate(figures)]
    assert table(rows).splitlines()[-1] == "| adapted | 2 | 75% | 75% | 0.750 | 0.750 | 0.750 |"
