"""The correction as it is fitted."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.emulator.timing_model import fit_correction
from benchmarks.emulator.timing_model.fit_correction import (
    TRUST,
    Boosting,
    TimedExamples,
    correction,
    left_out_shapes,
    read_examples,
    write_examples,
)

QUICK = Boosting(max_iter=60, learning_rate=0.1, max_leaf_nodes=8, max_features=1.0)


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
    whole = correction(known, QUICK)
    inside = dict(zip(known.names, (0.5, 0.9, 0.5, 0.5), strict=True))
    assert whole.factor(inside) == pytest.approx(np.exp(0.3 * TRUST), rel=0.03)


def test_the_trees_say_what_scikit_learn_says() -> None:
    known = made("shape")
    forest = HistGradientBoostingRegressor(**QUICK._asdict(), random_state=0, early_stopping=False)
    forest.fit(known.table, known.errors, sample_weight=known.weights)
    others = np.random.default_rng(6).random((300, 4))
    assert correction(known, QUICK).logarithms(others) == pytest.approx(TRUST * forest.predict(others), abs=1e-5)


def test_shapes_that_are_left_out_gain_what_holds_for_all_and_nothing_else() -> None:
    known, by_shape = made("feature"), made("shape")
    assert mean_error(known, left_out_shapes(known, QUICK)) < 0.45 * mean_error(known, known.predicted_us)
    before = mean_error(by_shape, by_shape.predicted_us)
    assert mean_error(by_shape, left_out_shapes(by_shape, QUICK)) > 0.9 * before, "a shape's own error is not known outside"


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
