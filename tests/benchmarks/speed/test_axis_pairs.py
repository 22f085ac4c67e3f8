"""An axis at two values: what is drawn, what a row has, and what is refused."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed import axis_pairs
from benchmarks.speed.axis_pairs import SHIPPED, drawn, row_of, summary
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import CompileFailed, Crashed, Evaluation
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families

FAMILY = next(family for family in families(Arch.SM_90A) if family.name == "wgmma_tma")


class Refuses:
    """A sandbox whose compiler fails."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def build(self, candidates: Sequence[AnyCandidate], task: GemmTask) -> Iterator[tuple[int, Evaluation]]:
        self.sources = [candidate.source for candidate in candidates]
        yield from ((place, CompileFailed(message=task.shape, log="")) for place in range(len(candidates)))

    def race(self, *_: Any) -> list[Evaluation]:
        return [Crashed(stage="time", message="no GPU")] * 2


def test_entries_are_drawn_in_one_order_and_written_with_either_value() -> None:
    first, again = (list(drawn(SHIPPED, "wgmma_tma", 45))[:6] for _ in range(2))
    assert first == again
    sandbox = Refuses()
    assert row_of(sandbox, FAMILY, first[0], "constant_shape") is None
    without, having = sandbox.sources
    assert "kSizeM" not in without
    assert f"kSizeK = {first[0]['task']['k']};" in having


def test_an_axis_that_the_schedule_excludes_gives_no_row() -> None:
    entry = next(one for one in drawn(SHIPPED, "wgmma_tma", 45) if not one["schedule"]["pingpong"])
    assert row_of(Refuses(), FAMILY, entry | {"schedule": entry["schedule"] | {"splits": 2}}, "pingpong") is None


def test_the_mean_is_of_rows_with_both_times() -> None:
    rows = [
        {"without": {"us": 2.0}, "with": {"us": 1.0}},
        {"without": {"us": 1.0}, "with": {"us": 2.0}},
        {"without": {"us": 9.0}, "with": {"status": "wrong"}},
    ]
    assert summary(rows).startswith("2 entries: time without over time with 1.0000, from 0.5000 to 2.0000; faster with it: 1")
    assert summary(rows[2:]) == "nothing was measured"


@pytest.mark.parametrize(("family", "axis"), [("wgmma_tma", "block_n"), ("wgmma_tma", "colour"), ("none", "push")])
def test_what_is_no_such_axis_is_refused_in_a_line(
    family: str, axis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["axis_pairs", family, axis, "--out", str(tmp_path / "rows.jsonl")])
    with pytest.raises(axis_pairs.UsageError, match=axis):
        axis_pairs.main()
