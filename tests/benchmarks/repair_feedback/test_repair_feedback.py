"""The feedback bench on a few faults: their feedbacks name what the rules ask for, and the table counts them."""

from pathlib import Path

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from benchmarks.repair_feedback.__main__ import FeedbackResult, FeedbackRow, render, rows
from benchmarks.repair_feedback.rules import COUNT, POOL, RULES, Naming, drawn, rest
from tests.doubles.building import compile_in_this_process, leave_machine_code_unread
from tests.sandbox.emulator.corpus import FAULTS

QUICK = (
    "mma_sync-a-not-transposed",
    "mma_sync-split-adds-to-its-own-sum",
    "resident-last-tile-never-sent",
    "wgmma_tma-one-arrival-too-many-expected",
)


def test_the_faults_are_drawn_from_the_corpus_and_each_has_a_rule() -> None:
    assert {*drawn(), *rest()} == set(POOL) == set(RULES) <= {fault.id for fault in FAULTS}
    assert len(drawn()) == len(set(drawn())) == COUNT


def test_a_rule_asks_for_all_of_its_patterns_and_none_of_the_absent() -> None:
    rule = Naming("A at k 8", (r"^- A", r"k 8"), (r"^- B",))
    assert rule.holds("it\n- A: k 8")
    assert not rule.holds("it\n- A: k 9")
    assert not rule.holds("- A: k 8\n- B: k 1")


def test_feedbacks_name_what_is_at_fault(tmp_path: Path, kept_builds: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch, kept_builds)
        leave_machine_code_unread(patch)
        judged = list(rows(QUICK, tmp_path))
    assert [row.fault for row in judged if row.named] == list(QUICK), judged
    assert all(fault.why not in row.feedback for row in judged for fault in FAULTS if fault.id == row.fault)


def test_the_table_counts_drawn_faults_apart() -> None:
    row = FeedbackRow(
        fault="f",
        drawn=True,
        why="w",
        outcome="exact/zero-one",
        wanted="k",
        named=False,
        characters=1,
        seconds=0.1,
        feedback="x",
    )
    result = FeedbackResult(
        command="c", commit="0", date="d", pool=2, seed=1, rows=(row, row.model_copy(update={"drawn": False, "named": True}))
    )
    page = render(result)
    assert "## The faults drawn: 0 of 1 named" in page
    assert "## The rest of the pool: 1 of 1 named" in page
    assert "| f | w | exact/zero-one | k | **no** |" in page
