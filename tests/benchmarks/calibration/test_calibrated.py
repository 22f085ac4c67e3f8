"""A policy that is adapted to the searches of a chip, as a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.calibration import calibrated
from contract.errors import UsageError
from contract.task import GemmTask, Layout
from policies.schedule.learned.policy_file import read_card
from policies.training.groups import group_of, read_runs
from policies.trajectories.store import Store, open_store
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
    given = ["--store", str(tmp_path / "store.sqlite"), "--searches", "--write", str(out)]
    monkeypatch.setattr("sys.argv", ["calibrated", *given])
    with pytest.raises(UsageError, match="no shape of this chip to adapt to"):
        calibrated.main()
    assert not out.exists()
