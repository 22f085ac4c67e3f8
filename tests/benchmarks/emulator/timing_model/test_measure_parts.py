"""Shapes are shared among processes: each is measured once, whole, by one of them."""

from pathlib import Path

import pytest

from benchmarks.emulator.timing_model import measure
from benchmarks.emulator.timing_model.measure import part_of
from benchmarks.emulator.timing_model.sources import TimedKernel, scheduled
from cudal2_agent.contract.errors import UsageError


def kernels() -> list[TimedKernel]:
    return list(scheduled())[::30][:5] + list(scheduled())[1::30][:5]


def test_parts_share_the_shapes() -> None:
    every = kernels()
    parts = [part_of(every, f"{place}/3") for place in (1, 2, 3)]
    assert sorted(each.name for part in parts for each in part) == sorted(each.name for each in every)
    shapes = [{each.task.shape for each in part} for part in parts]
    assert [len(each) for each in shapes] == [2, 2, 1]
    assert not shapes[0] & shapes[1]


@pytest.mark.parametrize("part", ["0/4", "5/4", "1", "a/b"])
def test_a_part_that_is_none_is_one_line(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["measure", "--out", str(tmp_path / "rows.jsonl"), "--part", part])
    monkeypatch.setattr(measure, "scheduled", lambda _: kernels())
    with pytest.raises(UsageError, match=f"--part '{part}': write 1/2 for the first of two processes"):
        measure.main()
