"""Files of rows: what a kill tears costs one row, damaged lines are counted, and the file goes on."""

import gzip
from pathlib import Path

import pytest

from cudal2_agent.agent.bench.proposals.proposal_rows import BenchSize, append_row, read_rows
from cudal2_agent.contract.errors import UsageError
from tests.agent.bench.proposals.rows import judged, proposal_row
from tests.doubles import TASK

ROW = proposal_row([judged("a", 1.2, 1.1)], {"one": ["a"]})


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "rows.jsonl"
    append_row(path, ROW)
    append_row(path, ROW.model_copy(update={"seed": 1}))
    assert read_rows([path]) == ([ROW, ROW.model_copy(update={"seed": 1})], [])


def test_packed_rows_are_read(tmp_path: Path) -> None:
    append_row(tmp_path / "rows.jsonl", ROW)
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "rows.jsonl").read_bytes()))
    assert read_rows([packed]) == ([ROW], [])
    packed.write_bytes(packed.read_bytes()[:50])
    with pytest.raises(UsageError, match="cannot be read"):
        read_rows([packed])


def test_a_row_that_a_kill_tore_is_left_out_and_the_next_one_has_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, ROW)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:100])
    append_row(path, ROW)
    rows, notices = read_rows([path])
    assert rows == [ROW, ROW]
    assert notices == [f"1 damaged line of {path} left out"]


def test_bytes_that_are_no_text_are_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, ROW)
    path.write_bytes(b"\xff\xfe\n{}\n\n" + path.read_bytes())
    rows, notices = read_rows([path])
    assert rows == [ROW]
    assert "2 damaged lines" in notices[0]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_text("hello\n")
    with pytest.raises(UsageError, match="holds no row"):
        read_rows([path])
    with pytest.raises(UsageError, match="cannot be read"):
        read_rows([tmp_path / "missing.jsonl"])


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another file with --out"):
        append_row(tmp_path / "file" / "rows.jsonl", ROW)


@pytest.mark.parametrize(
    ("arms", "size", "seed", "basis", "covered"),
    [
        ([("one", "")], BenchSize(), 0, "measured", True),
        ([], BenchSize(), 0, "measured", True),
        ([("one", ""), ("two", "")], BenchSize(), 0, "measured", False),
        ([("one", "other weights")], BenchSize(), 0, "measured", False),
        ([("one", "")], BenchSize(budget=48), 0, "measured", False),
        ([("one", "")], BenchSize(), 1, "measured", False),
        ([("one", "")], BenchSize(), 0, "predicted", False),
    ],
)
def test_what_a_row_answers_for(arms, size, seed, basis, covered) -> None:
    assert ROW.covers(TASK, arms, size, seed, basis) is covered


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({}, False),
        ({"race_status": "wrong"}, True),
        ({"race_status": "measured"}, False),
        ({"status": "compile_failed"}, True),
        ({"status": "unmeasured"}, False),
    ],
)
def test_a_candidate_that_fails_in_the_race_has_failed(changes: dict[str, str], failed: bool) -> None:
    assert judged("a", 1.0, **changes).failed is failed
