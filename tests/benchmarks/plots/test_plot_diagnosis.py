"""The picture of the diagnosis benchmark is the committed result, drawn."""

from pathlib import Path
from statistics import median

import pytest

from benchmarks.diagnosis.diagnosis_table import DiagnosisResult, DiagnosisRow, Trial, ratios
from benchmarks.pictures.diagnosis import LATER, PLOT, SECOND, draw
from benchmarks.pictures.svg import BAD, GOOD, OTHERS, OURS, LogAxis
from tests.benchmarks.pictures import dots, outside, words

ROOT = Path(__file__).parents[3]
STORED = (ROOT / "benchmarks/results/h200_diagnosis_2026-11-21.json").read_text(encoding="utf-8")
RESULT = DiagnosisResult.model_validate_json(STORED)


def _with(*rows: DiagnosisRow) -> DiagnosisResult:
    return RESULT.model_copy(update={"rows": rows})


def _trials(**found: list[float]) -> tuple[Trial, ...]:
    return tuple(
        Trial(kind=kind.replace("_", " "), bottleneck=None, changes={}, status="measured", ratio=ratio)
        for kind, every in found.items()
        for ratio in every
    )


def test_the_committed_picture_shows_the_committed_result() -> None:
    assert (ROOT / "docs/pictures/h200_diagnosis.svg").read_text(encoding="utf-8") == draw(RESULT)


def test_every_kernel_has_its_mark_and_the_legend_counts_them() -> None:
    picture, ranks = draw(RESULT), [row.rank for row in RESULT.rows]
    counts = {
        GOOD: ranks.count(1),
        SECOND: ranks.count(2),
        LATER: sum(rank is not None and rank > 2 for rank in ranks),
        BAD: ranks.count(None),
    }
    assert {colour: len(dots(picture, colour)) for colour in counts} == {colour: n + 1 for colour, n in counts.items()}
    legend = {
        f"first, {counts[GOOD]}",
        f"second, {counts[SECOND]}",
        f"third or later, {counts[LATER]}",
        f"not found, {counts[BAD]}",
    }
    assert legend <= set(words(picture))


def test_every_measured_candidate_of_the_remedy_and_of_the_control_is_a_dot() -> None:
    picture = draw(RESULT)
    assert len(dots(picture, OURS)) == sum(
        len(ratios(row.trials, kind)) for row in RESULT.rows for kind in ("heaviest", "by hand")
    )
    assert len(dots(picture, OTHERS)) == sum(len(ratios(row.trials, "control")) for row in RESULT.rows)


def test_each_group_is_sorted_by_the_remedys_median() -> None:
    shown = words(draw(RESULT))
    for by_hand, kind in ((False, "heaviest"), (True, "by hand")):
        rows = [row for row in RESULT.rows if row.by_hand is by_hand]
        rows.sort(key=lambda row: shown.index(row.name))
        medians = [median(ratios(row.trials, kind)) for row in rows]
        assert medians == sorted(medians, reverse=True)


def test_slower_candidates_lie_below_one() -> None:
    row = RESULT.rows[0].model_copy(update={"trials": _trials(heaviest=[0.5, 1.0, 2.0], control=[0.25])})
    picture = draw(_with(row))
    slow, same, fast = (x for x, _ in dots(picture, OURS))
    [(slowest, _)] = dots(picture, OTHERS)
    assert slowest < slow < same < fast
    assert fast - same == pytest.approx(same - slow, abs=0.2)  # a logarithmic scale
    assert PLOT[0] <= slowest
    assert fast <= PLOT[1]


def test_a_kernel_without_a_measured_remedy_says_so_and_stands_last() -> None:
    failed = Trial(kind="heaviest", bottleneck=None, changes={}, status="crashed", ratio=None)
    lost = RESULT.rows[0].model_copy(update={"name": "lost", "trials": (failed,)})
    shown = words(draw(_with(lost, *RESULT.rows[1:])))
    schedules = [row.name for row in RESULT.rows[1:] if not row.by_hand]
    assert all(shown.index(name) < shown.index("lost") for name in schedules)
    assert shown.count("not measured") == 2  # the remedy and the control


def test_a_run_cut_short_before_the_remedies_is_drawn() -> None:
    cut = _with(*(row.model_copy(update={"trials": (), "repeat": None}) for row in RESULT.rows))
    picture = draw(cut)
    assert dots(picture, OURS) == dots(picture, OTHERS) == []
    assert outside(picture) == []
    assert not any("measured again" in word or "1.00×" in word for word in words(picture))


def test_a_kernel_that_was_not_measured_is_left_out() -> None:
    rejected = RESULT.rows[0].model_copy(update={"status": "rejected", "trials": ()})
    assert draw(_with(*RESULT.rows, rejected)) == draw(RESULT)


def test_no_text_leaves_the_picture() -> None:
    assert outside(draw(RESULT)) == []


def test_ticks_lie_on_the_axis() -> None:
    axis = LogAxis(0.19, 5.0, 0.0, 100.0)
    assert list(axis.ticks()) == [0.2, 0.5, 1.0, 2.0, 5.0]
    assert axis.x(0.19) == 0.0
    assert axis.x(5.0) == pytest.approx(100.0)
