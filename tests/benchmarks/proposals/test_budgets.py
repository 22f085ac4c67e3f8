"""Searches by different priors and budgets side by side: figures of invented searches, and the committed ones in their page."""

from math import inf
from pathlib import Path

import pytest

from benchmarks.h200.marked_page import filled
from benchmarks.h200.searches import Search, TimedTrial
from benchmarks.h200.summary import ROWS
from benchmarks.proposals.budgets import MARKS, Arms, BudgetedSearch, best_known, main, read_arms, tables
from cudal2_agent.agent.campaign.result_files import read_results
from cudal2_agent.contract.errors import UsageError
from tests.doubles.campaign_rows import shape_result

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks/results/h200_budgets_2026-11-24"


def searched(shape: str, *ratios: float, set_up_s: float = 1.0) -> BudgetedSearch:
    """Candidates of 0.1 GPU s each, of which the last one races for 2 s."""
    tried = [TimedTrial(str(place), raced=False, ratio=ratio, gpu_s=0.1) for place, ratio in enumerate(ratios)]
    tried[0] = TimedTrial("0", raced=False, ratio=ratios[0], gpu_s=0.1 + set_up_s)
    tried.append(TimedTrial(str(len(ratios) - 1), raced=True, ratio=ratios[-1], gpu_s=2.0))
    row = shape_result(shape, ratios[-1], candidates=len(ratios))
    return BudgetedSearch(row, Search(row.run_id, row.task, tuple(tried)))


def arms_of(**arms: list[BudgetedSearch]) -> Arms:
    return {name: {one.row.task.id: one for one in found} for name, found in arms.items()}


def test_what_a_search_pays_once_is_told_apart() -> None:
    one = searched("64x64x64", 1.0, 1.1, 1.2)
    assert one.set_up_s == pytest.approx(1.0)
    assert one.near_at(1.2) == 3
    assert one.near_s(1.2) == pytest.approx(1.3)
    assert searched("64x64x64", 1.0).set_up_s == 0


def test_the_best_known_is_that_of_all_arms_and_rows_of_the_same_environment() -> None:
    arms = arms_of(few=[searched("64x64x64", 1.1)], many=[searched("64x64x64", 1.0, 1.2)])
    task = next(iter(arms["few"]))
    assert best_known(arms, []) == {task: 1.2}
    assert best_known(arms, [shape_result("64x64x64", 1.5), shape_result("64x64x128", 1.9)]) == {task: 1.5}
    elsewhere = shape_result("64x64x64", 1.7).model_copy(update={"environment": "another"})
    assert best_known(arms, [elsewhere]) == {task: 1.2}


def test_a_search_that_never_comes_near_counts_as_the_longest() -> None:
    shapes = [f"64x64x{k}" for k in (64, 128, 256)]
    arms = arms_of(few=[searched(shape, 1.0) for shape in shapes], many=[searched(shape, 1.0, 1.5) for shape in shapes])
    assert [one.near_at(1.5) for one in arms["few"].values()] == [inf] * 3
    text = "\n".join(tables(arms, []))
    assert "| 0 of 3 | — | — | — |" in text
    assert "| 3 of 3 | 2 | 0.20 | 1.20 |" in text
    assert "| `many` | `few` | 1.500 | 1.500–1.500 | 3 of 3 | 1.500 | 1.500 |" in text


def test_the_page_has_the_tables_of_the_committed_searches() -> None:
    page = (ROOT / "docs/training/schedule_policy.md").read_text(encoding="utf-8")
    lines = tables(read_arms(FOLDER), read_results([ROWS]))
    assert filled(page, MARKS, "".join(f"{line}\n" for line in lines)) == page


def test_a_folder_without_searches_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="holds no shape that all arms finished"):
        read_arms(tmp_path)
    (tmp_path / "few.jsonl.gz").write_bytes((FOLDER / "learned-8.jsonl.gz").read_bytes())
    monkeypatch.setattr("sys.argv", ["budgets", str(tmp_path)])
    with pytest.raises(UsageError, match=r"few\.sweep\.zst is missing"):
        main()
