import pytest

from cudal2_agent.agent.campaign.report.figures import CLASSES, figures_of
from tests.doubles.campaign_rows import shape_result

LOST = shape_result("64x64x64", best=None, best_without=None, gpu_seconds=1.0)


def test_geometric_means_and_shares() -> None:
    figures = figures_of([shape_result("64x64x64", 2.0, plain=1.0), shape_result("64x64x128", 0.5, plain=0.25), LOST])
    assert (figures.shapes, figures.without_result, figures.plain_shapes) == (2, 1, 2)
    assert (figures.geomean, figures.geomean_without_programmatic, figures.faster_share) == (1.0, 0.5, 0.5)
    assert figures.gpu_seconds == pytest.approx(11 / 3, abs=1e-4)


def test_a_shape_counts_as_wholly_faster_only_with_its_interval() -> None:
    rows = [shape_result("64x64x64", ratio) for ratio in (1.2, 1.0001, 0.9999, 0.8)]
    figures = figures_of(rows)
    assert (figures.faster_share, figures.wholly_faster_share, figures.wholly_slower_share) == (0.5, 0.25, 0.25)


@pytest.mark.parametrize(
    ("time_us", "name"),
    [
        (3.99, "under_4us"),
        (4.0, "4_to_15us"),
        (15.0, "15_to_60us"),
        (59.9, "15_to_60us"),
        (60.0, "over_60us"),
        (2000.0, "over_60us"),
    ],
)
def test_a_class_includes_its_lower_bound(time_us: float, name: str) -> None:
    figures = figures_of([shape_result("64x64x64", 1.5, time_us)])
    assert figures.classes == {each: 1.5 if each == name else None for each in CLASSES}
    assert figures.class_shapes[name] == 1


def test_a_shape_without_a_plain_kernel_is_counted_apart() -> None:
    figures = figures_of([shape_result("64x64x64", 2.0, plain=None), shape_result("64x64x128", 2.0, plain=1.5)])
    assert (figures.shapes, figures.plain_shapes, figures.geomean_without_programmatic) == (2, 1, 1.5)


def test_figures_of_nothing_are_absent() -> None:
    figures = figures_of([LOST])
    assert figures.shapes == 0
    assert (figures.geomean, figures.geomean_without_programmatic, figures.faster_share) == (None, None, None)
    assert set(figures.classes.values()) == {None}


def test_only_what_the_emulator_ran_is_proved() -> None:
    said = ("agreed", "in-part", "unavailable: no core", "")
    assert figures_of([shape_result("64x64x64", witness=each) for each in said]).proved == 2
