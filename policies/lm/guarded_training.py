"""What keeps a training safe: whole checkpoints, a stop at the first NaN, a log of JSON lines, and prompts in a known order.

A checkpoint counts once its marker is written, so that a kill in the middle of one leaves the one before it.
"""

import json
import math
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.policies.lm.adapter_folder import is_disk_error
from cudal2_agent.policies.lm.examples import LmExample
from cudal2_agent.policies.lm.replies.reply_readers import TaskPlace
from cudal2_agent.policies.lm.replies.reply_reward import StepSeconds
from cudal2_agent.policies.lm.stage_settings import StageSettings

MARKER = "whole"
_PREFIX = "checkpoint-"
_PARTS = ("sample_s", "read_s", "build_s", "measure_s")  # of a group-relative step
_TOLD = ("loss", "reward", "rewards/schedule/mean", "valid", "verified", "kl", "mean_token_accuracy")


def latest_checkpoint(work: Path) -> Path | None:
    """The newest whole checkpoint; those that were cut off are deleted."""
    whole = []
    for folder in work.glob(f"{_PREFIX}*"):
        if (folder / MARKER).exists():
            whole.append(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return max(whole, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(_PREFIX))


def guard(trainer: Any, work: Path) -> None:
    """Checkpoints of the trainer are whole, and it stops where the loss or a weight is not a number.

    Raises, in training: UsageError, which names the last checkpoint.
    """
    save, step = trainer._save_checkpoint, trainer.training_step

    def saved(model: Any, trial: Any) -> None:
        _require_numbers(trainer, work)
        folder = work / f"{_PREFIX}{trainer.state.global_step}"
        try:
            save(model, trial)
            if trainer.args.should_save:
                (folder / MARKER).touch()
        except Exception as exc:  # torch and safetensors report a full disk by errors of their own
            shutil.rmtree(folder, ignore_errors=True)
            if not is_disk_error(exc):
                raise
            raise UsageError(
                f"checkpoint {trainer.state.global_step} cannot be written to {work} ({exc}); make room and continue with "
                f"--resume from {_last(work)}"
            ) from exc

    def stepped(*arguments: Any, **named: Any) -> Any:
        loss = step(*arguments, **named)
        if not math.isfinite(float(loss)):
            raise _not_a_number("the loss", trainer, work)
        return loss

    trainer._save_checkpoint, trainer.training_step = saved, stepped


def _require_numbers(trainer: Any, work: Path) -> None:
    for name, weight in trainer.model.named_parameters():
        if weight.requires_grad and not bool(torch.isfinite(weight).all()):
            raise _not_a_number(f"the weight {name}", trainer, work)


def _not_a_number(what: str, trainer: Any, work: Path) -> UsageError:
    return UsageError(
        f"{what} is not a number in step {trainer.state.global_step + 1}; training stopped and {_last(work)} is kept: "
        "start again with a lower --learning-rate, or continue with --resume"
    )


def _last(work: Path) -> str:
    kept = [folder for folder in work.glob(f"{_PREFIX}*") if (folder / MARKER).exists()]
    return f"checkpoint {max(map(step_of, kept))}" if kept else "no checkpoint yet"


class LogLines(TrainerCallback):
    """Appends every record that the trainer logs to a file as a JSON line, and emits it as a notice.

    What a log holds of steps behind the checkpoint that training continues from is dropped. Of several processes, use one.
    `seconds`: parts of a step, which are logged per step.
    """

    def __init__(self, file: Path, stage: str, emit: Emit, resumed_at: int, seconds: StepSeconds) -> None:
        self._file, self._stage, self._emit = file, stage, emit
        self._seconds, self._logged_at = seconds, resumed_at
        self._began_s, self._began_at = time.monotonic(), resumed_at
        self.figures: dict[str, float] = {}
        kept = [line for line in _lines(file) if json.loads(line)["step"] <= resumed_at]
        file.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:  # noqa: ARG002
        if not logs or "train_runtime" in logs:
            return
        numbers = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        numbers |= self._seconds.taken(state.global_step - self._logged_at)
        self._logged_at = state.global_step
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": state.global_step, "stage": self._stage, **numbers}) + "\n")
        self.figures = {name: float(numbers[name]) for name in _TOLD if name in numbers}
        parts = {name: numbers[name] for name in _PARTS if name in numbers}
        told = ", ".join(f"{name} {value:.4g}" for name, value in (self.figures | parts).items())
        steps = max(state.global_step - self._began_at, 1)
        pace = (time.monotonic() - self._began_s) / steps
        self._emit(Notice(message=f"{self._stage} step {state.global_step}/{state.max_steps}: {told}, {pace:.2g} s per step"))


def _lines(file: Path) -> list[str]:
    """The whole lines of a log; a kill may have cut the last one."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


class PromptOrder:
    """Each round over the examples has an order of its own. `stride`: prompts of one step, over all processes.

    trl's sampler starts again with the first order where training resumes.
    """

    def __init__(self, examples: Sequence[LmExample], settings: StageSettings, processes: int) -> None:
        rng = random.Random(settings.seed)
        replies = settings.batch * settings.accumulate * processes
        rounds = -(-settings.steps * replies // (settings.group * len(examples)))
        self.examples = [one for _ in range(rounds) for one in rng.sample(examples, len(examples))]
        self.places = [TaskPlace(one.task.model_dump_json(), one.chip.model_dump_json()) for one in self.examples]
        self.stride = max(replies // settings.group, 1)
        self._at = 0

    def first(self) -> list[TaskPlace]:
        return self.places[: self.stride]

    def after(self, seen: Sequence[TaskPlace]) -> list[TaskPlace]:
        """The tasks that this process is asked for after these; none where the order does not hold them."""
        distinct = list(dict.fromkeys(seen))
        onwards = [*range(self._at, len(self.places)), *range(self._at)]  # a task comes again in each round
        found = next((begin for begin in onwards if self.places[begin : begin + len(distinct)] == distinct), None)
        if not distinct or found is None:
            return []
        self._at = found
        begin = found + self.stride
        return self.places[begin : begin + len(distinct)]
