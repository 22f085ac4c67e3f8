"""A policy that is adapted to the searches of a chip, as a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.proposals import adapted_policy
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.policies.schedule.learned.policy_file import read_card
from cudal2_agent.policies.training.groups import ScheduleGroup, group_of, read_runs
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
    monkeypatch.setattr(adapted_policy, "adapted", lambda _start, _groups: random_weights())
    adapted_policy.write_adapted(tmp_path / "own.safetensors", groups)
    card = read_card(tmp_path / "own.safetensors")
    assert (card.name, card.base, card.chips, card.runs) == ("own", "h200", ("H200",), 1)
    assert card.tasks == {"offline f32 nn": 1}
    assert card.schedules == len(groups[0].costs)


def test_held_out_shapes_are_not_adapted_to_and_all_layouts_are(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_runs(store, [TASK, GemmTask(m=64, n=64, k=64, layout=Layout.TN), GemmTask(m=128, n=64, k=64)])
    monkeypatch.setattr(adapted_policy, "held_out", lambda: frozenset({TASK.shape}))
    seen: list[list[str]] = []

    def written(_path: Path, groups: list[ScheduleGroup]) -> None:
        seen.append(sorted(group.task.shape for group in groups))

    monkeypatch.setattr(adapted_policy, "write_adapted", written)
    _call(monkeypatch, tmp_path, "H200")
    assert seen == [["128x64x64", "64x64x64"]]


@pytest.mark.parametrize("chip", ["H200", "H100"])
def test_without_a_shape_to_adapt_to_nothing_is_written(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, chip: str
) -> None:
    record_runs(store, [TASK])
    monkeypatch.setattr(adapted_policy, "held_out", lambda: frozenset({TASK.shape}))
    with pytest.raises(UsageError, match="no shape of this chip to adapt to"):
        _call(monkeypatch, tmp_path, chip)
    assert not (tmp_path / "own.safetensors").exists()


def _call(monkeypatch: pytest.MonkeyPatch, folder: Path, chip: str) -> None:
    given = ["--store", str(folder / "store.sqlite"), "--chip", chip, "--out", str(folder / "own.safetensors")]
    monkeypatch.setattr("sys.argv", ["adapted_policy", *given])
    adapted_policy.main()
