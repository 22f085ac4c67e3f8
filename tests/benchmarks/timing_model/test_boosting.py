"""Boosted trees, and the correction that is fitted with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.timing_model import fit_correction
from benchmarks.timing_model.boosting import Boosting, boosted
from benchmarks.timing_model.fit_correction import (
    TRUST,
    TimedExamples,
    correction,
    left_out_shapes,
    read_examples,
    write_examples,
    written,
)
from sandbox.timing_model.correction import fitted

QUICK = Boosting(trees=60)


def made(error_of: str, shapes: int = 12, each: int = 20) -> TimedExamples:
    """Kernels whose error is that of a feature, or that of their shape alone."""
    source = np.random.default_rng(5)
    table = source.random((shapes * each, 4))
    names = np.repeat([f"s{i}" for i in range(shapes)], each)
    of_shape = np.repeat(source.normal(0, 0.3, shapes), each)
    errors = np.where(table[:, 1] > 0.5, 0.3, -0.2) if error_of == "feature" else of_shape
    predicted = source.random(shapes * each) * 10 + 5
    return TimedExamples(("a", "b", "c", "d"), table, predicted, predicted * np.exp(errors), names, np.ones(len(names)))


def mean_error(known: TimedExamples, predicted_us: np.ndarray) -> float:
    return float(np.abs(np.log(predicted_us / known.time_us)).mean())


def test_trees_find_the_feature_that_explains_the_error() -> None:
    known = made("feature")
    one_group, every_column = np.zeros(len(known.errors), dtype=int), replace(QUICK, columns=1.0)
    trees = list(boosted(known.table, known.errors, one_group, every_column, 0))
    reached = sum(tree.values(known.table) for tree in trees)
    assert np.abs(reached - known.errors).mean() < 0.03
    assert trees[0].asked[0] == 1
    assert trees[0].above[0] == pytest.approx(0.5, abs=0.05)


def test_shapes_that_are_left_out_gain_what_holds_for_all_and_nothing_else() -> None:
    known, by_shape = made("feature"), made("shape")
    assert mean_error(known, left_out_shapes(known, QUICK, 1)) < 0.45 * mean_error(known, known.predicted_us)
    before = mean_error(by_shape, by_shape.predicted_us)
    assert mean_error(by_shape, left_out_shapes(by_shape, QUICK, 1)) > 0.9 * before, "a shape's own error is not known outside"


def test_errors_that_a_shape_has_in_common_count_less() -> None:
    known = made("shape")
    groups = np.unique(known.shapes, return_inverse=True)[1]
    table = np.column_stack([known.table, groups])  # by which shapes can be told apart
    common, within = (
        sum(np.abs(tree.leaves).sum() for tree in boosted(table, known.errors, groups, replace(QUICK, within=w), 0))
        for w in (0.0, 20.0)
    )
    assert within < 0.5 * common


def test_a_written_correction_reads_as_it_was(tmp_path: Path) -> None:
    known = made("feature")
    whole = correction(known, QUICK, 2)
    (tmp_path / "written.json").write_text(written(whole))
    read = fitted(tmp_path / "written.json")
    inside = dict(zip(known.names, (0.5, 0.9, 0.5, 0.5), strict=True))
    assert read.factor(inside) == pytest.approx(whole.factor(inside), rel=1e-3)
    assert whole.factor(inside) == pytest.approx(np.exp(0.3 * TRUST), rel=0.1)


def test_examples_are_kept_in_an_order_that_does_not_depend_on_how_they_were_made(tmp_path: Path) -> None:
    known = made("feature", shapes=3, each=4)
    turned = known.some(np.arange(len(known.time_us))[::-1])
    write_examples(tmp_path / "examples.npz", turned.in_order())
    read, ordered = read_examples(tmp_path / "examples.npz"), known.in_order()
    assert read.names == known.names
    for name in ("table", "predicted_us", "time_us", "shapes", "weights"):
        assert np.array_equal(getattr(read, name), getattr(ordered, name))


def test_each_file_of_rows_needs_its_drawn_schedules(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fit_correction", "one.jsonl.gz", "two.jsonl.gz"])
    with pytest.raises(SystemExit, match="2"):
        fit_correction.main()
    assert "2 files of rows and 1 of drawn schedules" in capsys.readouterr().err
