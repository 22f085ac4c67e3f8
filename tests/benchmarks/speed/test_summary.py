"""The committed summary is made from the committed rows; the figures are checked on invented rows."""

import json
import re
from math import exp, log
from pathlib import Path

import pytest

from benchmarks.harness import filled
from benchmarks.speed.grid import OFF_GRID
from benchmarks.speed.summary import (
    GRID,
    HELD_OUT,
    MARKS,
    NOTHING_YET,
    PARTS,
    ROWS,
    SUMMARY,
    main,
    summarise,
    tables,
    text_of,
    written,
)
from cudal2_agent.agent.campaign.report.figures import CLASSES
from cudal2_agent.agent.campaign.result_files import read_results, write_results
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import AccumulatorType, Layout, TimingMode
from tests.doubles.campaign_rows import ENVIRONMENT, campaign_rows, shape_result

INVENTED = campaign_rows()
_SPLIT = re.compile(r"algorithm 66, tile \w+, stages stages_(\d+)\w*, split-K (\d+),")
ASKED = ("shapes", "geomean", "geomean_without_programmatic", "faster_share", "classes")


def meets_bug_6580689(k: int, autotuned: str) -> bool:
    """Whether cuBLASLt's algorithm leaves out a part of K on Hopper: NVIDIA's bug 6580689, cuBLAS 12.6.3 to 13.4.0."""
    found = _SPLIT.search(autotuned)
    stage, splits = (int(found[1]), int(found[2])) if found else (1, 1)
    return splits > 1 and k % splits > 0 and k // splits % stage == 0


def test_no_committed_row_is_compared_with_a_wrong_product() -> None:
    words = "layout nn, algorithm 66, tile tile_128x80, stages stages_64xauto, split-K 10, reduction none, cluster shape_4x1x1"
    assert meets_bug_6580689(19848, words)
    assert not meets_bug_6580689(19840, words)
    rows = read_results([ROWS])
    assert len(rows) > 1000
    assert not [row.task.shape for row in rows if meets_bug_6580689(row.task.k, row.autotuned or "")]


def test_the_committed_summary_is_what_the_committed_rows_give() -> None:
    committed = SUMMARY.read_text(encoding="utf-8")
    assert committed == written(summarise(read_results([ROWS]), json.loads(committed)["environment"]))


def test_the_committed_rows_are_small() -> None:
    assert sum(file.stat().st_size for file in ROWS.iterdir()) < 5_000_000


def test_a_mode_without_rows_has_no_figures() -> None:
    server = summarise([shape_result("64x64x64")])["server"]
    assert [server[name] for name in ASKED] == [0, None, None, None, dict.fromkeys(CLASSES)]
    assert summarise([]) | {"offline": 0, "server": 0} == {
        "offline": 0, "server": 0, "commit": None, "date": None, "environment": None,
    }  # fmt: skip


def test_the_figures_of_the_grid() -> None:
    summary = summarise(INVENTED)
    offline = [row for row in INVENTED if row.task.mode is TimingMode.OFFLINE and row.task.shape not in OFF_GRID]
    ratios = [row.best.speedup.ratio for row in offline if row.best]
    slow = [row.best.speedup.ratio for row in offline if row.best and row.baselines_us[AUTOTUNED] >= 60]
    assert summary["offline"]["shapes"] == 1000
    assert summary["offline"]["geomean"] == pytest.approx(exp(sum(map(log, ratios)) / 1000), abs=1e-4)
    assert summary["offline"]["faster_share"] == pytest.approx(sum(ratio > 1 for ratio in ratios) / 1000, abs=1e-4)
    assert summary["offline"]["classes"]["over_60us"] == pytest.approx(exp(sum(map(log, slow)) / len(slow)), abs=1e-4)
    assert sum(summary["offline"]["class_shapes"].values()) == 1000
    assert (summary["commit"], summary["date"], summary["environment"]) == ("abc1234", "2026-11-23", ENVIRONMENT)


def test_held_out_shapes_are_apart() -> None:
    offline = summarise(INVENTED)["offline"]
    assert [offline[part]["shapes"] for part in ("tuned", "held_out", "off_grid")] == [900, 100, 50]
    assert "tn" not in offline


def test_other_layouts_and_types_stay_out_of_the_grid() -> None:
    tn = shape_result("64x64x64", 3.0, layout=Layout.TN)
    f16 = shape_result("64x64x128", 5.0)
    f16 = f16.model_copy(update={"task": f16.task.model_copy(update={"accumulate": AccumulatorType.F16})})
    offline = summarise([shape_result("64x64x64", 1.5), tn, f16, shape_result("3x5x8", 9.0)])["offline"]
    assert (offline["shapes"], offline["geomean"], offline["tn"]["geomean"]) == (1, 1.5, 3.0)


def test_each_layout_has_its_own_sets() -> None:
    held = sorted(HELD_OUT & GRID)[0]
    kinds = [(Layout.NT, "64x64x64", 2.0), (Layout.NT, held, 8.0), (Layout.NT, OFF_GRID[0], 3.0), (Layout.TN, "3x5x8", 5.0)]
    rows = [shape_result(shape, ratio, layout=layout) for layout, shape, ratio in kinds]
    summary = summarise([*rows, shape_result("3x5x8", 7.0)])
    offline = summary["offline"]
    means = {part: offline[part]["geomean"] for part in PARTS if part in offline}
    assert offline["shapes"] == 0
    assert means == {"other": 7.0, "tn_other": 5.0, "nt": 4.0, "nt_held_out": 8.0, "nt_off_grid": 3.0}


def test_the_tables_tell_layouts_apart() -> None:
    rows = [shape_result("64x64x64"), shape_result(sorted(HELD_OUT & GRID)[0], layout=Layout.NT)]
    text = "\n".join(tables(summarise(rows)))
    assert "| the grid | 1 |" in text
    assert "| grid, layout `nt` | 1 |" in text
    assert "| grid, held out of every tuning, layout `nt` | 1 |" in text


def test_rows_of_two_environments_are_not_mixed() -> None:
    rows = [shape_result("64x64x64", 1.5), shape_result("64x64x128", 3.0, environment="H100 driver-580")]
    with pytest.raises(UsageError, match="2 environments; name one"):
        summarise(rows)
    assert summarise(rows, ENVIRONMENT)["offline"]["geomean"] == 1.5


def test_the_tables_name_every_set_that_has_rows() -> None:
    text = "\n".join(tables(summarise([shape_result("64x64x64", 1.5, 3.0, plain=None)])))
    assert "| the grid | 1 | 1.500 | — | 100.0% | 100.0% | 0.0% | 1 | 5.0 |" in text
    assert "| under 4 µs | 1 | 1.500 | — | 5.0 |" in text
    assert "| grid, not held out | 1 |" in text
    assert "held out of every tuning" not in text
    assert "server" not in text


def test_the_command_writes_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path / "rows.jsonl.gz", INVENTED)
    out = tmp_path / "summary.json"
    monkeypatch.setattr("sys.argv", ["summary", str(tmp_path), "--out", str(out), "--table"])
    main()
    assert json.loads(out.read_text()) == summarise(INVENTED)
    assert "| grid, held out of every tuning | 100 |" in capsys.readouterr().out


def test_the_page_has_the_tables_of_the_committed_summary() -> None:
    page = (Path(__file__).parents[3] / "docs/results/speed.md").read_text(encoding="utf-8")
    assert filled(page, MARKS, text_of(json.loads(SUMMARY.read_text(encoding="utf-8")))) == page


def test_tables_take_the_place_of_older_ones() -> None:
    page = f"before\n\n{MARKS.begin}\nold\n\n{MARKS.end}\n\nafter\n"
    once = filled(page, MARKS, text_of(summarise([shape_result("64x64x64", 1.5, 3.0)])))
    assert "| the grid | 1 | 1.500 |" in once
    assert "Commit abc1234, 2026-11-23, NVIDIA H200" in once
    assert "old" not in once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert filled(once, MARKS, text_of(summarise([]))) == page.replace("old\n", NOTHING_YET)
