"""What all benchmarks share: arguments, stamp, result file, tables and their place in a page."""

import json
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import ResultFile, execute, fill, marks_of, module_of, script, shown, stamp, table
from cudal2_agent.contract.errors import UsageError

HERE = harness.ROOT / "benchmarks"


def test_a_module_is_named_as_python_runs_it() -> None:
    assert module_of(str(HERE / "ruler" / "__main__.py")) == "benchmarks.ruler"
    assert module_of(str(HERE / "speed" / "grid.py")) == "benchmarks.speed.grid"


def test_a_script_that_measures_needs_a_place_for_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    parser = script(str(HERE / "speed" / "grid.py"), "What it does.", measures=True)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args([])
    assert "python -m benchmarks.speed.grid: error: the following arguments are required: --out" in capsys.readouterr().err
    given = parser.parse_args(["--out", "x.json", "--commit", "abc"])
    assert (given.out, given.commit) == (Path("x.json"), "abc")


def test_an_error_of_ours_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def refuses() -> int:
        raise UsageError("do this instead")

    with pytest.raises(SystemExit) as ended:
        execute(refuses)
    assert (ended.value.code, capsys.readouterr().err) == (2, "error: do this instead\n")
    with pytest.raises(SystemExit) as ended:
        execute(lambda: 1)
    assert ended.value.code == 1


def test_a_result_names_what_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["grid", "--out", "a file"])
    made = stamp(str(HERE / "speed" / "grid.py"), "abc")
    assert (made["command"], made["commit"]) == ("python -m benchmarks.speed.grid --out 'a file'", "abc")


def test_a_checkout_that_is_not_ours_names_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    assert harness.checkout_commit() == ""


def test_a_result_is_on_disk_after_every_row_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    first = ResultFile(path, {"commit": "a"})
    first.add({"name": "one"})
    assert json.loads(path.read_text()) == {"commit": "a", "rows": [{"name": "one"}]}
    again = ResultFile(path, {"commit": "b"}, resume=True)
    again.add({"name": "two"})
    again.write(summary=2)
    assert json.loads(path.read_text()) == {"commit": "b", "rows": [{"name": "one"}, {"name": "two"}], "summary": 2}
    assert ResultFile(path, {}).rows == []


@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"rows": 3}', "{}"])
def test_another_file_is_not_written_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a result of this benchmark"):
        ResultFile(path, {}, resume=True)


def test_a_table_is_markdown() -> None:
    lines = list(table(("a", "b"), [(1, shown(0.12345)), (2, shown(None, ".0%"))]))
    assert lines == ["| a | b |", "|---|---|", "| 1 | 0.123 |", "| 2 | — |"]


def test_tables_are_filled_into_a_page_between_their_marks(tmp_path: Path) -> None:
    marks, page = marks_of(str(HERE / "speed" / "summary.py")), tmp_path / "page.md"
    page.write_text(f"before\n\n{marks.begin}\nold\n\n{marks.end}\n\nafter\n")
    fill(page, marks, "new\n")
    assert page.read_text() == f"before\n\n{marks.begin}\nnew\n\n{marks.end}\n\nafter\n"
    page.write_text("a page")
    with pytest.raises(UsageError, match="no place for tables"):
        fill(page, marks, "new\n")
