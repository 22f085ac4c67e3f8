"""The slowest results as tables of a page."""

from pathlib import Path

import pytest

from benchmarks.h200.marked_page import filled
from benchmarks.h200.summary import ROWS
from benchmarks.h200.worst import MARKS, main, tables
from cudal2_agent.agent.campaign.report.newest_rows import counting
from cudal2_agent.agent.campaign.result_files import read_results, write_results
from cudal2_agent.contract.records.task import Layout, TimingMode
from tests.doubles.campaign_rows import shape_result


def test_each_mode_and_layout_has_its_slowest() -> None:
    rows = [shape_result(f"64x64x{k}", ratio) for k, ratio in ((64, 1.1), (128, 0.9))]
    lines = list(tables([*rows, shape_result("64x64x256", 0.8, layout=Layout.NT)]))
    assert lines[0] == "Offline, nn, f16, accumulate f32:\n"
    assert [line.split(" |")[0] for line in lines if line.startswith("| 64")] == ["| 64x64x128", "| 64x64x64", "| 64x64x256"]
    assert "Offline, nt, f16, accumulate f32:\n" in lines


def test_the_page_has_the_tables_of_the_committed_rows() -> None:
    page = (Path(__file__).parents[3] / "docs/results.md").read_text(encoding="utf-8")
    assert filled(page, MARKS, "".join(f"{line}\n" for line in tables(counting(read_results([ROWS]))))) == page


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path / "rows.jsonl.gz", [shape_result("64x64x64", 0.9)])
    page = tmp_path / "page.md"
    page.write_text(f"{MARKS.begin}{MARKS.end}\n")
    monkeypatch.setattr("sys.argv", ["worst", "--rows", str(tmp_path), "--page", str(page)])
    main()
    assert capsys.readouterr().out.strip() in page.read_text()
    assert "| 64x64x64 | 0.900 | " in page.read_text()


def test_the_shapes_that_lose_are_a_campaigns_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [shape_result(f"64x64x{k}", ratio) for k, ratio in ((64, 0.95), (128, 1.1), (256, 0.9))]
    rows.append(shape_result("64x64x512", 0.9).model_copy(update={"best": None}))
    rows += [shape_result("64x64x1024", 0.8, layout=Layout.NT), shape_result("64x64x2048", 0.7, mode=TimingMode.SERVER)]
    write_results(tmp_path / "rows.jsonl.gz", rows)
    monkeypatch.setattr("sys.argv", ["worst", "--rows", str(tmp_path), "--shapes"])
    main()
    assert capsys.readouterr().out.split() == ["64x64x256", "64x64x64"]
