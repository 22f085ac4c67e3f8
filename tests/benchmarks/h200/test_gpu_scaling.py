"""Campaigns on different numbers of GPUs beside each other."""

from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.h200.gpu_scaling import main, rates_of
from benchmarks.h200.summary import ROWS
from cudal2_agent.agent.campaign.result_files import write_results
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import HostCost
from tests.doubles.campaign_rows import START, shape_result


def row(shape: str, begin_s: float, seconds: float, **changes: object):
    end = START + timedelta(seconds=begin_s + seconds)
    return shape_result(shape, seconds=seconds, finished_at=end, candidates=30, **{"gpu_seconds": 6.0, **changes})


def test_rates_are_over_the_time_in_which_searches_were_in_progress() -> None:
    host = HostCost(cpu_s=40.0, peak_mib=500.0, campaign_mib=2048.0)
    rows = [row("64x64x64", 0, 10), row("64x64x128", 5, 10, host=host), row("64x64x256", 100, 5)]
    rates = rates_of(1, rows)
    assert rates.hours * 3600 == pytest.approx(20)
    assert rates.shapes_per_hour == pytest.approx(540)
    assert rates.candidates_per_s == pytest.approx(4.5)
    assert rates.busy == pytest.approx(0.9)
    assert rates.gpu_s == pytest.approx(6.0)
    assert (rates.host_cpu_s, rates.campaign_mib) == (40.0, 2048.0)


def test_a_wrong_number_of_gpus_is_noticed() -> None:
    with pytest.raises(UsageError, match="1 GPUs were not busy for 120% of the time"):
        rates_of(1, [row("64x64x64", 0, 5)])
    with pytest.raises(UsageError, match="no durations"):
        rates_of(1, [row("64x64x64", 0, 0)])


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path / "one.jsonl.gz", [row("64x64x64", 0, 10), row("64x64x128", 10, 10)])
    write_results(tmp_path / "two.jsonl.gz", [row("64x64x64", 0, 10), row("64x64x128", 2, 10)])
    words = [f"2={tmp_path / 'two.jsonl.gz'}", f"1={tmp_path / 'one.jsonl.gz'}"]
    monkeypatch.setattr("sys.argv", ["gpu_scaling", *words])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        "| 1 | 2 | 360 | 1.00 | 3.0 | 60% | 6.0 | — | — |",
        "| 2 | 2 | 600 | 0.83 | 5.0 | 50% | 6.0 | — | — |",
    ]


def test_the_committed_campaign_of_two_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_scaling", f"2={ROWS / 'offline-2026-11-23.jsonl.gz'}@e45dca4"])
    main()
    assert capsys.readouterr().out.splitlines()[2] == "| 2 | 110 | 1014 | 1.00 | 13.3 | 70% | 5.0 | — | — |"


def test_a_word_without_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_scaling", "rows.jsonl.gz"])
    with pytest.raises(UsageError, match="such as 2=rows"):
        main()
