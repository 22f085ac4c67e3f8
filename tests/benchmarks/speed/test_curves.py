"""Curves over GPU seconds and candidates: figures on invented searches, and the committed ones against the committed files."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import filled
from benchmarks.speed.curves import CURVES, MARKS, STEPS, curves, inputs_of, main, tables
from benchmarks.speed.searches import Search, TimedTrial, read_searches, search_of
from benchmarks.speed.summary import ROWS
from cudal2_agent.agent.campaign.result_files import read_results, write_results
from cudal2_agent.contract.errors import UsageError
from tests.doubles import run_record, step, unmeasured
from tests.doubles.campaign_rows import START, shape_result


def search(*screened: float | None, raced: dict[int, float], shape: str = "64x64x64") -> tuple[Any, Search]:
    """A row and its search: candidates of 0.5 s with their screened ratios, a race of 1 s per finalist."""
    tried = [TimedTrial(str(place), raced=False, ratio=ratio, gpu_s=0.5) for place, ratio in enumerate(screened)]
    tried += [TimedTrial(str(place), raced=True, ratio=ratio, gpu_s=1.0) for place, ratio in raced.items()]
    row = shape_result(shape, max(raced.values(), default=1.0), candidates=len(screened))
    return row, Search(row.run_id, row.task, tuple(tried))


def figures(*pairs: tuple[Any, Search]) -> Any:
    return curves([row for row, _ in pairs], [search for _, search in pairs])["offline"]


def test_a_raced_candidate_counts_with_its_race_and_a_screened_one_with_an_estimate() -> None:
    _, own = search(1.2, 2.0, 1.0, 1.9, raced={1: 1.5, 3: 1.9})
    # Finalists came out at 0.75 and 1.0 of their screened ratios: the others are estimated at 0.875 of theirs.
    assert own.best == [pytest.approx(1.2 * 0.875), 1.5, 1.5, 1.9]


def test_a_candidate_that_fails_in_the_race_counts_for_nothing() -> None:
    _, own = search(1.0, 2.0, raced={0: 1.0})
    refuted = TimedTrial("1", raced=True, ratio=None, gpu_s=1.0)
    assert Search("run", own.task, (*own.trials, refuted)).best == [1.0, 1.0]
    run, steps = run_record(), [step(0, 1), step(1, 1, evaluation=unmeasured(1.0))]
    assert [one.raced for one in search_of(run, steps).trials] == [False, True]


def test_no_estimate_exceeds_the_race() -> None:
    _, own = search(3.0, 1.2, raced={1: 1.2})
    assert own.best == [1.2, 1.2]


def test_the_seconds_until_a_search_is_near_the_best_known() -> None:
    near = figures(search(1.0, None, 1.19, 1.2, raced={3: 1.2, 2: 1.19}))["near_best_known"]["all"]
    assert near == {
        "shapes": 1, "near_share": 1.0, "median_gpu_s": 1.5, "mean_gpu_s": 1.5,
        "median_gpu_s_with_race": 3.5, "mean_gpu_s_with_race": 3.5, "median_candidates": 3,
    }  # fmt: skip


def test_a_search_behind_another_of_its_shape_is_not_near() -> None:
    row, own = search(1.0, 1.2, raced={1: 1.2})
    better = shape_result("64x64x64", 1.5, finished_at=START.replace(year=2025))
    near = curves([row, better], [own])["offline"]["near_best_known"]
    again = near["searched_again"]
    assert again == near["all"]
    assert [again[name] for name in ("shapes", "near_share", "median_gpu_s", "mean_gpu_s")] == [1, 0.0, None, None]
    assert figures((row, own))["near_best_known"]["searched_again"]["shapes"] == 0


def test_the_curves_are_means_over_all_searches() -> None:
    found = figures(search(None, 2.0, raced={1: 2.0}), search(*[1.0] * 8, raced={0: 0.5}, shape="64x64x128"))
    by_candidates = {point["at"]: point for point in found["over_candidates"]}
    by_seconds = {point["at"]: point for point in found["over_gpu_seconds"]}
    assert by_candidates[4] == {"at": 4, "geomean": 1.0, "near_share": 1.0, "with_kernel": 2}
    assert (by_seconds[0.5]["with_kernel"], by_seconds[0.5]["near_share"]) == (1, 0.5)
    assert by_seconds[0.5]["geomean"] == pytest.approx(0.5**0.5, abs=1e-4)  # one without a kernel counts as 1
    assert by_seconds[1.0]["geomean"] == 1.0


def test_searches_that_were_not_seen_whole_do_not_count() -> None:
    row, own = search(1.0, 1.2, raced={1: 1.2})
    assert figures((row.model_copy(update={"candidates": 3}), own))["shapes"] == 0
    unfinished = Search(own.run_id, own.task, own.trials[:2])
    assert figures((row, unfinished))["shapes"] == 0
    assert "over_gpu_seconds" in figures((row, unfinished))


def test_steps_of_a_campaign_give_the_searches_of_its_rows() -> None:
    rows = {row.run_id: row for row in read_results([ROWS / "server-2026-11-23.jsonl.gz"])}
    found = list(read_searches([STEPS / "server-1.sweep.zst"]))
    assert len(found) == len(rows) == 46
    for each in found:
        row = rows[each.run_id]
        assert each.is_whole(row)
        assert row.best is not None
        assert each.best[-1] == pytest.approx(row.best.speedup.ratio, rel=2e-3)  # steps travel to 1 ns
        assert each.spent_s[-1] + each.race_s == pytest.approx(row.gpu_seconds, abs=0.02)


def test_a_file_that_is_no_sweep_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.sweep.zst").write_text("{}\n")
    with pytest.raises(UsageError, match=r"a\.sweep\.zst, line 1 is not a line of a sweep"):
        list(read_searches([tmp_path]))


def test_the_committed_curves_are_of_the_committed_files() -> None:
    committed = json.loads(CURVES.read_text(encoding="utf-8"))
    assert committed.pop("inputs") == inputs_of(ROWS, STEPS), "run benchmarks.speed.curves again, with --page"
    page = (Path(__file__).parents[3] / "docs/results/speed.md").read_text(encoding="utf-8")
    assert filled(page, MARKS, "".join(f"{line}\n" for line in tables(committed))) == page


def test_the_command_writes_curves_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path / "rows.jsonl.gz", [shape_result("64x64x64")])
    page, out = tmp_path / "page.md", tmp_path / "curves.json"
    page.write_text(f"{MARKS.begin}{MARKS.end}\n")
    given = ["--rows", str(tmp_path), "--steps", str(tmp_path), "--out", str(out), "--page", str(page)]
    monkeypatch.setattr("sys.argv", ["curves", *given])
    main()
    assert json.loads(out.read_text())["offline"]["shapes"] == 0
    assert capsys.readouterr().out == ""
    assert MARKS.end in page.read_text()
