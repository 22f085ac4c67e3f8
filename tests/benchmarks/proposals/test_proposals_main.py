"""The commands of the proposals bench, as a person calls them."""

import sys
from pathlib import Path

import pytest

from benchmarks.proposals.__main__ import main
from cudal2_agent.contract.errors import UsageError

ROWS = Path(__file__).parents[3] / "benchmarks" / "results" / "h200_proposals_2026-11-27_fifth.jsonl.gz"
HELD_OUT = "benchmarks/campaigns/held_out.json"


def figures(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["proposals", "figures", str(ROWS), *words])
    main()


@pytest.mark.parametrize(("shapes", "count"), [("off_grid", 50), ("grid", 100)])
def test_figures_of_some_shapes_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shapes: str, count: int
) -> None:
    figures(monkeypatch, "--shapes", f"{HELD_OUT}:{shapes}")
    assert capsys.readouterr().out.startswith(f"{count} shapes, f16 accumulate f32, nn, offline, measured, H200")


def test_figures_of_shapes_without_a_row_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no row is of a shape that --shapes names"):
        figures(monkeypatch, "--shapes", "64x64x65")
