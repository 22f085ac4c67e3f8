"""How often a search met the shorter launches."""

from pathlib import Path

import pytest

from benchmarks.h200 import short_launches
from cudal2_agent.contract.records.evaluation import Effort, Measured
from tests.doubles import measured, run_record, step


def timed(baseline_us: float, effort: Effort = "screen") -> Measured:
    return measured(1.5, baseline_us, effort=effort)


def lines(monkeypatch: pytest.MonkeyPatch, evaluations: list[Measured]) -> list[str]:
    steps = [step(index, index, evaluation=one) for index, one in enumerate(evaluations)]
    monkeypatch.setattr(short_launches, "runs_in", lambda _file: iter([(run_record(), steps)]))
    return list(short_launches.table([Path("any.sweep.zst")]))[2:]


def test_screens_and_races_with_a_short_baseline_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluations = [*[timed(2.84)] * 6, *[timed(2.5)] * 2, timed(2.84, "race"), timed(2.5, "race")]
    assert lines(monkeypatch, evaluations) == ["| 0–4 µs | 1 | 25% | 12% | 50% |"]


def test_a_steady_baseline_has_no_drop_and_a_long_one_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(monkeypatch, [timed(5.0)] * 8) == ["| 4–8 µs | 1 | 0% | - | 0% |"]
    assert lines(monkeypatch, [timed(50.0)] * 8) == []
    assert lines(monkeypatch, [timed(5.0)]) == [], "too few screens"
