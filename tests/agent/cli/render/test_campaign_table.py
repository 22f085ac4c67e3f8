"""The live table of a campaign, and its lines where there is no terminal."""

import io
import time

import pytest
from rich.console import Console

from cudal2_agent.agent.campaign.watching import Overview, WorkerView, class_figures
from cudal2_agent.agent.cli.render import campaign_table
from cudal2_agent.agent.cli.render.campaign_table import CampaignTable, result_line, totals
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from tests.doubles import TASK
from tests.store.campaigns.rows import result


def overview(**changes: object) -> Overview:
    rows: list[ShapeResult] = [result(TASK, 1.25, baselines_us={AUTOTUNED: 5.0})]
    fields: dict[str, object] = {
        "name": "grid",
        "done": 1,
        "total": 1000,
        "failed": 0,
        "unproved": 0,
        "spent_s": 65.0,
        "left_s": 7265.0,
        "candidates_per_s": 4.25,
        "busy": 0.5,
        "classes": class_figures(rows),
        "workers": [WorkerView("cuda:0", "64x64x64 timing", time.monotonic() - 3, 12, True)],
    }
    return Overview(**{**fields, **changes})  # type: ignore[arg-type]


def shown(*, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(campaign_table, "TOTALS_S", 0.0)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, highlight=False, soft_wrap=True)
    with CampaignTable(console) as table:
        table.note("a worker\nended")
        table.finished(result(TASK, 1.25))
        table.show(overview())
    return stream.getvalue()


def test_a_terminal_shows_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = shown(terminal=True, monkeypatch=monkeypatch)
    for part in (
        "1 of 1000 shapes",
        "2:01:05 left",
        "4.25 candidates/s",
        "GPUs busy 50%",
        "4 to 15 us",
        "1.250x",
        "cuda:0",
        "timing",
    ):
        assert part in drawn


def test_a_log_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(terminal=False, monkeypatch=monkeypatch).splitlines()
    assert lines == [
        "note: a worker ended",
        "256x256x256 nn: 5.00 us, 1.250x, 1.150x without programmatic launch; 8 candidates, 4.0 s",
        "campaign grid: 1 of 1000 shapes; 2:01:05 left; 4.25 candidates/s, GPUs busy 50%, 1:05 so far",
    ]


def test_what_is_unknown_or_missing_is_said() -> None:
    assert totals(overview(left_s=None, busy=None, failed=2, unproved=3))[0] == (
        "campaign grid: 1 of 1000 shapes, 2 failed, 3 to prove; time left unknown"
    )
    assert totals(overview(of_modules=True, left_s=None))[0].startswith("campaign grid: 1 of 1000 tasks; ")
    assert "nothing passed" in result_line(result(TASK, None, reason="nothing passed"))
