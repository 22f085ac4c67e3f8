"""A policy that is adapted to the searches of a chip, as a file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calibration import calibrated
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.policies.schedule.learned.policy_file import read_card
from cudal2_agent.policies.training.groups import group_of, read_runs
from cudal2_agent.store.store import Store, open_store
from tests.doubles.learned_policies import random_weights
from tests.doubles.timed_runs import record_runs

TASK = GemmTask(m=64, n=64, k=128)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as opened:
        yield opened


def test_the_card_says_what_was_adapted_to(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record_runs(store, [TASK])
    groups = [group for run in read_runs(store) if (group := group_of(run)) is not None]
    monkeypatch.setattr(calibrated, "adapted", lambda _start, _groups: random_weights())
    calibrated.write_adapted(tmp_path / "own.safetensors", groups)
    card = read_card(tmp_path / "own.safetensors")
    assert (card.name, card.base, card.chips, card.runs) == ("own", "h200", ("H200",), 1)
    assert card.tasks == {"offline f32 nn": 1}
    assert card.schedules == len(groups[0].costs)


def test_held_out_shapes_and_other_layouts_are_not_adapted_to(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_runs(store, [TASK, GemmTask(m=64, n=64, k=64, layout=Layout.TN)])
    monkeypatch.setattr(calibrated, "held_out", lambda: frozenset({TASK.shape}))
    out = tmp_path / "own.safetensors"
    with pytest.raises(UsageError, match="no shape of this chip to adapt to"):
        _call(monkeypatch, tmp_path, "--searches", "--write", str(out))
    assert not out.exists()


def test_held_out_searches_judge_and_all_others_adapt(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record_runs(store, [TASK, GemmTask(m=64, n=64, k=64, layout=Layout.TN), GemmTask(m=128, n=64, k=64)])
    monkeypatch.setattr(calibrated, "held_out", lambda: frozenset({TASK.shape}))
    seen: list[tuple[list[str], list[str]]] = []

    def rows_of(_name: str, _base: Any, arms: Any, _counts: Any, _draw: int, judges: Any) -> list[Any]:
        seen.append((sorted(group.task.shape for group in arms[0].groups), [group.task.shape for group in judges]))
        return []

    monkeypatch.setattr(calibrated, "rows_of", rows_of)
    _call(monkeypatch, tmp_path, "--searches", "--held-out", "--counts", "1", "2", "--draws", "1")
    assert seen == [(["128x64x64", "64x64x64"], [TASK.shape])]
    with pytest.raises(UsageError, match="2 shapes are too few for --counts 3"):
        _call(monkeypatch, tmp_path, "--searches", "--held-out", "--counts", "3")


def test_without_a_held_out_search_nothing_is_judged(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record_runs(store, [TASK])
    with pytest.raises(UsageError, match="no search of a held-out shape"):
        _call(monkeypatch, tmp_path, "--searches", "--held-out", "--counts", "1")


def test_a_calibration_has_no_held_out_shape_to_judge_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _call(monkeypatch, tmp_path, "--held-out")
    assert "--held-out is for --searches" in capsys.readouterr().err


def _call(monkeypatch: pytest.MonkeyPatch, folder: Path, *given: str) -> None:
    monkeypatch.setattr("sys.argv", ["calibrated", "--store", str(folder / "store.sqlite"), *given])
    calibrated.main()
