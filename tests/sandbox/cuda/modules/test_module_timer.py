"""Rounds of a module beside PyTorch's baselines, on doubles of a GPU: what is measured, and what timed launches may not do."""

import pytest

pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

from cudal2_agent.contract.records.evaluation import EAGER, MODULE_BASELINES
from tests.sandbox.cuda.modules.bench import OPTIONS, right, timed


@pytest.fixture
def measure(monkeypatch):
    return timed(monkeypatch)


def test_a_right_kernel_is_measured_beside_every_baseline(measure):
    measurement = measure(right)
    assert [timing.name for timing in measurement.baselines] == list(MODULE_BASELINES)
    assert all(len(timing.samples_us) == OPTIONS.rounds for timing in (measurement.timing, *measurement.baselines))
    assert measurement.notes == ()
    assert measurement.ruler.launches == measurement.ruler.sets, "each set is used once in a sample"
    assert measurement.ruler.projected > 0
    (eager,) = (timing for timing in measurement.baselines if timing.name == EAGER)
    assert eager.samples_us[0] == pytest.approx(20), "between two events"
