"""The stages on a tiny model: what they learn, what interrupts them, and that they go on with the same data.

Children are forked from this process, because importing the trainers takes longer than a stage. They have one thread.
"""

import errno
import functools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file

from cudal2_agent.contract.errors import UsageError, WorkerError
from cudal2_agent.contract.events import Event, Notice, ignore
from cudal2_agent.policies.exports.splits import ShapeSplit
from cudal2_agent.policies.lm import stages
from cudal2_agent.policies.lm.adapter_folder import LOG, read_record
from cudal2_agent.policies.lm.base_model import PACKAGED, LoadedModel, load_base
from cudal2_agent.policies.lm.compact_prompt import reply_of
from cudal2_agent.policies.lm.examples import STAGES, Examples, Stage, make_examples
from cudal2_agent.policies.lm.guarded_training import MARKER
from cudal2_agent.policies.lm.replies import reply_reward
from cudal2_agent.policies.lm.replies.reply_readers import TaskPlace, TaskReplies
from cudal2_agent.policies.lm.replies.reply_sampler import merged_adapter
from cudal2_agent.policies.lm.stage_settings import StageSettings, work_of
from cudal2_agent.policies.lm.stages import SETTINGS, begin, begun, train_stage
from tests.policies.lm.tiny import TASKS, PriorScore, search, tiny_model

STEPS = 4
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests replace what reads replies; a process of its own would not know."""
    monkeypatch.setattr(stages, "reader_count", lambda _: 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "base")


@functools.cache
def made() -> Mapping[Stage, Examples]:
    searches = [search(task, f"run-{index}") for index, task in enumerate(TASKS)]
    return make_examples(searches, STAGES, ShapeSplit(), 0, ignore)


def examples(stage: Stage) -> Examples:
    return made()[stage]


def settings(stage: Stage, model: Path, **changes: Any) -> StageSettings:
    fields = {"steps": STEPS, "batch": 4, "group": 2, "save_every": 2, "reply_tokens": 12, "learning_rate": 0.01, "rank": 4}
    return StageSettings.model_validate({"stage": stage, "model": str(model), **fields, **changes})


def trained(
    out: Path, chosen: StageSettings, emit: Callable[[Event], None] = ignore, score: Any = None, readers: int = 0
) -> Path:
    begin(out, chosen, lambda: examples(chosen.stage))
    train_stage(out, emit, score or PriorScore(), readers)
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "adapter_model.safetensors")


def log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / LOG).read_text().splitlines()]


def equal(one: Path, other: Path) -> bool:
    found, expected = weights(one), weights(other)
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_supervised_steps_lower_the_loss_and_leave_an_adapter_alone(model: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    out = trained(tmp_path / "sft", settings("sft", model, steps=8), events.append)
    losses = [line["loss"] for line in log(out)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 0.1
    assert {file.name for file in tmp_path.iterdir()} == {"sft"}, "what an interrupted training needs is gone"
    told = [event.message for event in events if isinstance(event, Notice)]
    assert any("sft step 8/8: loss" in message and "s per step" in message for message in told)
    record = read_record(out)
    assert [(one.stage, one.settings.steps, one.counts.examples) for one in record.stages] == [("sft", 8, 2)]


def test_no_hub_is_asked_for_a_model_that_lies_here(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packaged model has no folder of its name, for which peft asks a hub by default."""

    def packaged(_name: str | None) -> LoadedModel:
        loaded = load_base(str(model), "cpu")
        loaded.model.config._name_or_path = loaded.model.name_or_path = PACKAGED
        return loaded

    asked: list[str] = []
    monkeypatch.setattr(stages, "load_base", packaged)
    monkeypatch.setattr("peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda name, *_, **__: asked.append(name))
    trained(tmp_path / "sft", settings("sft", model))
    assert asked == []


def test_a_stage_continues_the_adapter_of_the_one_before(model: Path, tmp_path: Path) -> None:
    first = trained(tmp_path / "sft", settings("sft", model))
    second = trained(tmp_path / "contrastive", settings("contrastive", model, previous=str(first)))
    third = trained(tmp_path / "grpo", settings("grpo", model, previous=str(second)))
    assert [one.stage for one in read_record(third).stages] == list(STAGES)
    assert not equal(first, second)
    assert not (third / "ref").exists(), "the reference is not part of the result"
    assert "kl" in log(third)[-1]


def test_group_relative_steps_learn_from_differences_of_rewards_alone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random model writes no schedule, so that its rewards are equal; with schedules in place of its replies they differ."""
    flat = trained(tmp_path / "flat", settings("grpo", model, steps=1))
    _always_written(monkeypatch)
    steep = trained(tmp_path / "steep", settings("grpo", model, steps=1))
    assert (log(flat)[0]["reward_std"], log(flat)[0]["valid"], log(flat)[0]["grad_norm"]) == (0.0, 0.0, 0.0)
    assert (log(steep)[0]["valid"], log(steep)[0]["verified"]) == (1.0, 1.0)
    assert log(steep)[0]["reward_std"] > 0
    assert log(steep)[0]["grad_norm"] > 0
    assert not equal(flat, steep)


def test_a_reader_that_is_killed_changes_nothing_but_a_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replies become schedules before they are read, so that rewards differ and processes read them."""
    chosen = settings("grpo", model)
    _say_schedules(monkeypatch)
    here = trained(tmp_path / "here", chosen)
    killed: list[int] = []
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, Notice) and event.message.startswith("grpo step 2/"):
            for child in multiprocessing.active_children():
                killed.append(child.pid or 0)
                os.kill(child.pid or 0, signal.SIGKILL)

    apart = trained(tmp_path / "apart", chosen, emit, readers=2)
    assert len(killed) == 2
    assert equal(here, apart)
    assert [line["reward"] for line in log(here)] == [line["reward"] for line in log(apart)]
    assert len({line["reward"] for line in log(apart)}) > 1
    lost = [event.message for event in events if isinstance(event, Notice) and "was lost" in event.message]
    assert lost == ["a process that reads replies was lost (signal 9); it is started again"] * 2
    assert multiprocessing.active_children() == []


def test_the_log_splits_the_seconds_of_a_group_relative_step(model: Path, tmp_path: Path) -> None:
    parts = ("sample_s", "read_s", "build_s", "measure_s")
    for line in log(trained(tmp_path / "grpo", settings("grpo", model))):
        assert all(line[part] >= 0 for part in parts)
        assert 0 < line["sample_s"] < line["step_time"]
        assert sum(line[part] for part in parts) < line["step_time"]
    assert not any(part in line for line in log(trained(tmp_path / "sft", settings("sft", model))) for part in parts)


def test_adapters_are_merged_while_replies_are_sampled_and_apart_while_weights_are_updated(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[bool] = []

    def watched(one: Any) -> Any:
        stack = merged_adapter(one)
        with stack:
            merged.append(all(layer.merged for layer in one.modules() if isinstance(layer, LoraLayer)))
            yield

    monkeypatch.setattr(stages, "merged_adapter", contextmanager(watched))
    first = trained(tmp_path / "sft", settings("sft", model))
    out = trained(tmp_path / "grpo", settings("grpo", model, previous=str(first), steps=2))
    assert merged == [True, True]
    base = {name for name in weights(out) if "lora" not in name}
    assert base == set()


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_stage_resumes_with_the_same_data_and_ends_with_the_same_weights(
    stage: Stage, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes in the middle of the second checkpoint, so that half of one is there."""
    _always_written(monkeypatch)
    whole = trained(tmp_path / "whole", settings(stage, model))
    out = tmp_path / "killed"
    begin(out, settings(stage, model), lambda: examples(stage))
    child = multiprocessing.get_context("fork").Process(target=_train_until_killed, args=(out,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    checkpoints = {folder.name: (folder / MARKER).exists() for folder in work_of(out).glob("checkpoint-*")}
    assert checkpoints == {"checkpoint-2": True, "checkpoint-4": False}
    assert not out.exists()
    with pytest.raises(UsageError, match="holds an interrupted training; continue it with --resume"):
        begin(out, settings(stage, model), lambda: examples(stage))
    events: list[Event] = []
    train_stage(out, events.append, PriorScore())
    assert any(isinstance(one, Notice) and "continues from checkpoint 2 of 4" in one.message for one in events)
    assert equal(out, whole)
    same = ("step", "loss", "grad_norm", "reward", "entropy")
    assert [[line.get(name) for name in same] for line in log(out)] == [
        [line.get(name) for name in same] for line in log(whole)
    ]
    assert len({line.get("reward", line["loss"]) for line in log(out)}) > 1


def _train_until_killed(out: Path) -> None:
    torch.set_num_threads(1)
    save = torch.save

    def killing(state: Any, file: Any, *arguments: Any, **named: Any) -> None:
        if "checkpoint-4" in str(file):
            os.kill(os.getpid(), signal.SIGKILL)
        save(state, file, *arguments, **named)

    torch.save = killing
    train_stage(out, ignore, PriorScore())


def test_a_full_disk_in_a_checkpoint_keeps_the_one_before(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(tmp_path / "whole", settings("sft", model))
    save = torch.save

    def full(state: Any, file: Any, *arguments: Any, **named: Any) -> None:
        if "checkpoint-4" in str(file):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(state, file, *arguments, **named)

    out = tmp_path / "full"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(UsageError, match=r"checkpoint 4 cannot be written .*No space left.*--resume from checkpoint 2"):
            trained(out, settings("sft", model))
    assert [folder.name for folder in work_of(out).glob("checkpoint-*")] == ["checkpoint-2"]
    train_stage(out, ignore)
    assert equal(out, whole)


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_a_loss_that_is_not_a_number_stops_and_keeps_the_last_checkpoint(
    stage: Stage, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = stages.SFTTrainer if stage == "sft" else stages.GRPOTrainer
    compute = trainer.compute_loss

    def broken(self: Any, *arguments: Any, **named: Any) -> Any:
        loss = compute(self, *arguments, **named)
        return loss * float("nan") if self.state.global_step == 3 and not isinstance(loss, tuple) else loss

    monkeypatch.setattr(trainer, "compute_loss", broken)
    out = tmp_path / "nan"
    with pytest.raises(UsageError, match="the loss is not a number in step 4; training stopped and checkpoint 2 is kept"):
        trained(out, settings(stage, model))
    assert not out.exists()
    monkeypatch.setattr(trainer, "compute_loss", compute)
    train_stage(out, ignore, PriorScore())
    assert out.exists()


def test_a_weight_that_is_not_a_number_is_in_no_checkpoint(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = torch.nn.utils.clip_grad_norm_

    def poisoned(parameters: Any, *arguments: Any, **named: Any) -> Any:
        parameters = list(parameters)
        for one in parameters:
            if one.grad is not None:
                one.grad.fill_(float("nan"))
        return clip(parameters, *arguments, **named)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", poisoned)
    with pytest.raises(UsageError, match=r"the weight .* is not a number in step 2; .*no checkpoint yet is kept"):
        trained(tmp_path / "nan", settings("sft", model, save_every=1))


def test_a_reward_worker_that_dies_twice_stops_and_training_resumes(model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Every reply is read as the best schedule, since a random model writes none."""
    _always_written(monkeypatch)
    whole = trained(tmp_path / "whole", settings("grpo", model))
    out = tmp_path / "died"
    errors = [WorkerError("killed"), WorkerError("killed again")]
    with pytest.raises(WorkerError, match=r"died twice on .* continue with --resume"):
        trained(out, settings("grpo", model), score=PriorScore(errors))
    train_stage(out, ignore, PriorScore())
    assert equal(out, whole)


def _say_schedules(patch: pytest.MonkeyPatch) -> None:
    """In place of each reply one of the best schedules, by the reply's length."""

    def said(place: TaskPlace, texts: tuple[str, ...]) -> TaskReplies:
        schedules = place.schedules()
        best = schedules.best(8)
        return TaskReplies(place, tuple(reply_of(schedules, best[len(text) % len(best)].values) or "" for text in texts))

    patch.setattr(reply_reward, "TaskReplies", said)


def _always_written(patch: pytest.MonkeyPatch) -> None:
    from cudal2_agent.policies.lm.replies import reply_readers

    read = reply_readers.read_schedule

    def written(text: str, schedules: Any, **named: Any) -> Any:
        best = schedules.best(8)
        return read(reply_of(schedules, best[len(text) % len(best)].values) or "", schedules, **named)

    patch.setattr(reply_readers, "read_schedule", written)


def test_what_cannot_begin_or_resume_is_one_line(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no interrupted training"):
        begun(tmp_path / "none")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UsageError, match="exists already; choose a new folder"):
        begin(tmp_path / "full", settings("sft", model), lambda: examples("sft"))
    begin(tmp_path / "old", settings("sft", model), lambda: examples("sft"))
    (work_of(tmp_path / "old") / SETTINGS).write_text("{}")
    with pytest.raises(UsageError, match="another version of cudal2-agent"):
        begun(tmp_path / "old")


def test_options_that_do_not_fit_are_one_line(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"trl refuses these settings: .*divisible"):
        trained(tmp_path / "odd", settings("grpo", model, batch=3))
    begin(tmp_path / "alone", settings("grpo", model), lambda: examples("grpo"))
    with pytest.raises(UsageError, match="needs a sandbox that executes kernels"):
        train_stage(tmp_path / "alone", ignore)
    small = tiny_model(tmp_path / "small", context=64)
    with pytest.raises(UsageError, match=r"prompt and reply take .* tokens, and .*small has a context of 64"):
        trained(tmp_path / "out", settings("sft", small))
