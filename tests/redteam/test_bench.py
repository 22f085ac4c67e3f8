"""The benchmark's parts: a failure of the sandbox becomes the candidate's row, and the table shows undetected attacks."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.redteam.__main__ import _chosen, _resumed
from benchmarks.redteam.redteam_bench import ENDED, RedteamBench, RedteamLimits
from benchmarks.redteam.redteam_table import RedteamResult, RedteamRow, bad, render, short
from cudal2_agent.contract.errors import WorkerError
from tests.redteam.base import PLAIN
from tests.redteam.case import Case, task

LIMITS = RedteamLimits(candidate_s=5, cache="", secret="")
SOURCE = PLAIN.write()


def case(name: str = "x", **fields: Any) -> Case:
    small = task("16x16x16")
    shown = {
        "name": name,
        "group": "g",
        "source": SOURCE,
        "task": small,
        "small": small,
        "why": "a | b",
        "emulator": ("wrong:*",),
    }
    return Case(**shown | fields)  # type: ignore[arg-type]


def row(**fields: Any) -> RedteamRow:
    made = RedteamBench("emulator", LIMITS)
    made._sandbox = Broken(WorkerError("gone"))  # type: ignore[assignment]
    return made.row(case()).model_copy(update=fields)


class Broken:
    """A sandbox whose builder raises."""

    environment = None

    def __init__(self, error: Exception) -> None:
        self._error = error

    def build(self, *_: object) -> Any:
        raise self._error

    def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [WorkerError("gone"), MemoryError(), ValueError("out of bounds")])
def test_an_error_of_ours_is_the_candidates_row(error: Exception) -> None:
    bench = RedteamBench("emulator", LIMITS)
    bench._sandbox = Broken(error)  # type: ignore[assignment]
    found = bench.row(case())
    assert (found.verdict, found.layer) == (ENDED, f"error {type(error).__name__}")
    assert bad(found)


def test_a_plan_that_cannot_be_read_is_a_refusal() -> None:
    found = RedteamBench("emulator", LIMITS).row(case(source="// no plan", emulator=("rejected:plan-*",)))
    assert (found.verdict, found.layer) == ("refused", "rejected:plan-missing")


def test_the_table_shows_every_row_and_counts_the_holes() -> None:
    rows = (
        row(verdict="refused", layer="wrong:exact/zero-one", message="one\ntwo | three"),
        row(name="g/y", verdict="PASSED", layer="measured", time_us=5.0, honest_us=10.0, ratio=0.5),
        row(name="honest/z", group="honest", honest=True, verdict="FALSE ALARM"),
    )
    text = render(RedteamResult(device="cuda:0", gpu="GPU", commit="c", date="d", cores=2, rows=rows))
    assert "2 attacks: 1 refused, 1 PASSED. 1 of 1 right kernels refused." in text
    assert "| 5.0 / 10.0 | 0.50 | PASSED |" in text
    assert "one two \\| three" in text
    assert [bad(each) for each in rows] == [False, True, True]
    assert "5.0 us of 10.0, 0.50" in short(rows[1])


def test_a_resumed_run_keeps_the_rows_of_cases_that_are_the_same(tmp_path: Path) -> None:
    same, changed = case(), case("y", source=SOURCE + "\n")
    rows = (row(digest=same.digest), row(name="g/y", digest="old"))
    file = tmp_path / "r.json"
    file.write_text(RedteamResult(device="emulator", commit="c", date="d", cores=1, rows=rows).model_dump_json())
    found = _resumed(file, [same, changed])
    assert found is not None
    assert [each.name for each in found.rows] == ["g/x"]
    assert _resumed(tmp_path / "none.json", [same]) is None


def test_cases_that_hang_come_last_and_one_task_together() -> None:
    large = task("512x512x512")
    cases = [case("a", hangs=True), case("b", task=large), case("c"), case("d", task=large)]
    assert [each.name for each in _chosen(cases, "")] in (["b", "d", "c", "a"], ["c", "b", "d", "a"])
    assert [each.name for each in _chosen(cases, "g/b,g/c")] in (["b", "c"], ["c", "b"])
