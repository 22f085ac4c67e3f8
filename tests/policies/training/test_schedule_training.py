"""Training on runs whose times are known: what it learns, and what interrupts it."""

import errno
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from cudal2_agent.contract.errors import TrainingFailed, UsageError
from cudal2_agent.policies.schedule.learned.network import Network
from cudal2_agent.policies.training import checkpoints, schedule_training
from cudal2_agent.policies.training.checkpoints import Checkpoints
from cudal2_agent.policies.training.groups import ScheduleGroup
from cudal2_agent.policies.training.judging import judged
from cudal2_agent.policies.training.schedule_network import ScheduleNetwork
from cudal2_agent.policies.training.schedule_training import EpochReport, ScheduleTraining
from cudal2_agent.policies.training.training_plan import STAGES, NetworkSize, Stage, StagePlan, TrainingPlan
from tests.doubles.timed_runs import made_groups

SMALL = NetworkSize(members=2, width=32, depth=2, dimensions=4, dropout=0.0)


@pytest.fixture(scope="module")
def groups() -> list[ScheduleGroup]:
    return list(made_groups())


def plan_of(epochs: int, stages: Sequence[Stage] = STAGES, rate: float = 3e-3) -> TrainingPlan:
    planned = tuple(StagePlan(stage=stage, epochs=epochs, rate=rate) for stage in stages)
    return TrainingPlan(stages=planned, size=SMALL, batch=2, rivals=8)


def figures(network: ScheduleNetwork, groups: Sequence[ScheduleGroup]) -> dict[str, float]:
    opinion = Network(network.tensors())
    return judged(groups, lambda group: np.asarray(group.prior + opinion(group.features).error))


def weights(network: ScheduleNetwork) -> list[bytes]:
    return [value.tobytes() for _, value in sorted(network.tensors().items())]


class Killed(Exception):
    """Stands in for the end of the process."""


def killed_after(stage: Stage, epoch: int) -> schedule_training.OnEpoch:
    def on_epoch(report: EpochReport, _: ScheduleNetwork) -> None:
        if (report.stage, report.epoch) == (stage, epoch):
            raise Killed

    return on_epoch


@pytest.mark.slow
def test_it_predicts_schedules_of_shapes_that_it_never_saw(groups: list[ScheduleGroup], tmp_path: Path) -> None:
    trained, held_out = groups[:6], groups[6:]
    network = ScheduleTraining(plan_of(120), trained, Checkpoints(tmp_path, "a")).run()
    opinion = Network(network.tensors())
    before = np.mean([np.std(group.costs - group.prior) for group in held_out])
    after = np.mean([np.std(group.costs - group.prior - opinion(group.features).error) for group in held_out])
    assert after < before / 3
    assert figures(network, held_out)["first over best"] < 1.05
    errors = [group.prior + opinion(group.features).error - group.costs - group.baseline for group in held_out]
    assert abs(float(np.median(np.concatenate(errors)))) < 0.1, "the times themselves are learned too"


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_training_goes_on_as_if_nothing_had_happened(
    groups: list[ScheduleGroup], tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    plan = plan_of(4)
    whole = ScheduleTraining(plan, groups, Checkpoints(tmp_path / "whole", "a")).run()
    with pytest.raises(Killed):
        ScheduleTraining(plan, groups, Checkpoints(tmp_path / "parts", "a")).run(killed_after(stage, 2))
    seen: list[tuple[str, int]] = []
    again = ScheduleTraining(plan, groups, Checkpoints(tmp_path / "parts", "a")).run(
        lambda report, _: seen.append((report.stage, report.epoch))
    )
    assert seen[0] == (stage, 3)
    assert weights(again) == weights(whole)
    done: list[str] = []
    finished = ScheduleTraining(plan, groups, Checkpoints(tmp_path / "parts", "a")).run(lambda *_: done.append("epoch"))
    assert (done, weights(finished)) == ([], weights(whole)), "a finished training is not repeated"


def test_each_stage_changes_the_policy_and_improves_its_own_loss(groups: list[ScheduleGroup], tmp_path: Path) -> None:
    losses: dict[str, list[float]] = {}
    ScheduleTraining(plan_of(16), groups, Checkpoints(tmp_path, "a")).run(
        lambda report, _: losses.setdefault(report.stage, []).append(report.loss)
    )
    assert list(losses) == list(STAGES)
    assert all(values[-1] < values[0] for values in losses.values()), losses


def test_a_loss_that_is_no_number_ends_it_and_keeps_the_last_checkpoint(
    groups: list[ScheduleGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    with pytest.raises(Killed):
        ScheduleTraining(plan_of(4), groups, Checkpoints(tmp_path, "a")).run(killed_after("supervised", 2))
    with monkeypatch.context() as patch:
        patch.setattr(schedule_training, "supervised", lambda scores, _: scores.sum() * torch.nan)
        with pytest.raises(TrainingFailed, match=r"stage supervised is not a number in epoch 3; the last checkpoint is kept"):
            ScheduleTraining(plan_of(4), groups, Checkpoints(tmp_path, "a")).run()
    seen: list[int] = []
    ScheduleTraining(plan_of(4), groups, Checkpoints(tmp_path, "a")).run(lambda report, _: seen.append(report.epoch))
    assert seen[0] == 3


def test_a_full_disk_keeps_the_checkpoint_before(
    groups: list[ScheduleGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    with pytest.raises(Killed):
        ScheduleTraining(plan_of(4), groups, Checkpoints(tmp_path, "a")).run(killed_after("supervised", 1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.torch, "save", full)
        with pytest.raises(OSError, match="No space left"):
            ScheduleTraining(plan_of(4), groups, Checkpoints(tmp_path, "a")).run()
    kept = Checkpoints(tmp_path, "a").latest()
    assert kept is not None
    assert (kept.stage, kept.epoch) == (0, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt", "training.json"], "no part of a file is left"


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path, "a")
    with pytest.raises(UsageError, match="holds a training with other options or data; remove it"):
        Checkpoints(tmp_path, "b")


def test_a_damaged_checkpoint_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04 not a checkpoint")
    assert Checkpoints(tmp_path, "a").latest() is None


def test_torch_and_numpy_compute_the_same(groups: list[ScheduleGroup]) -> None:
    network = ScheduleTraining._network(ScheduleTraining(plan_of(1), groups, None)).eval()  # type: ignore[arg-type]
    features = groups[0].features
    errors, embedding = network(torch.from_numpy(features))
    opinion = Network(network.tensors())(features)
    assert opinion.error == pytest.approx(errors.mean(dim=0).detach().numpy(), abs=1e-5)
    assert opinion.embedding == pytest.approx(embedding.detach().numpy(), abs=1e-5)
    again = ScheduleNetwork.of(network.tensors())
    assert weights(again) == weights(network)
