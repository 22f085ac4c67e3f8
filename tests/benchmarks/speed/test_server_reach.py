"""What can be reached in server mode, computed from rows."""

import pytest

from benchmarks.speed.server_reach import fitted, reach, reach_shapes
from cudal2_agent.contract.records.task import TimingMode
from tests.doubles.campaign_rows import shape_result

SHAPES = {"64x64x64": 2.0, "512x512x512": 4.0, "128x2048x4096": 10.0, "1024x4096x2048": 25.0}


def rows(constant_us: float = 4.0, read_share: float = 0.5) -> list:
    """Offline rows 1.25 times faster, 1.1 without programmatic launch, and server rows that follow the formula exactly."""
    offline = [shape_result(shape, 1.25, us, plain=1.1) for shape, us in SHAPES.items()]
    served = []
    for shape, one in reach_shapes(offline).items():
        added = constant_us + read_share * one.read_us
        ratio = (one.autotuned_us + added) / (one.plain_us + added)
        served.append(shape_result(shape, ratio, one.autotuned_us + added, mode=TimingMode.SERVER))
    return [*offline, *served]


def test_the_fit_recovers_what_a_single_launch_adds() -> None:
    by_shape = reach_shapes(rows())
    pairs = [(by_shape[row.task.shape], row.baselines_us["cublaslt-autotuning"]) for row in rows()[len(SHAPES) :]]
    single = fitted(pairs)
    assert single.constant_us == pytest.approx(4.0, abs=1e-6)
    assert single.read_share == pytest.approx(0.5)
    with pytest.raises(ValueError, match="two shapes"):
        fitted(pairs[:1])


def test_a_constant_brings_speedups_nearer_to_one() -> None:
    figures = reach(rows())
    assert figures["offline"] == 1.25
    assert figures["plain"] == 1.1
    assert 1 < figures["predicted"] < 1.1
    assert figures["measured"] == figures["predicted_there"] == figures["predicted"]
    assert reach(rows(constant_us=0.0, read_share=0.0))["predicted"] == 1.1
