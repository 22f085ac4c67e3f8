"""Trains one stage: supervised, contrastive or group-relative. trl trains, peft adapts, accelerate distributes.

Everything that an interrupted stage needs lies in `OUT.training`: settings, examples, log and checkpoints. The folder is
deleted once the adapter is at `OUT`.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]
import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from huggingface_hub import constants as hub_constants
from peft import LoraConfig, get_peft_model
from pydantic import ValidationError
from transformers import PrinterCallback, ProgressCallback, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Emit, Notice, ignore
from cudal2_agent.contract.reward.score import JointScore
from cudal2_agent.contract.whole_file import whole_file
from cudal2_agent.policies.lm.adapter_folder import (
    LOG,
    TENSORBOARD,
    AdapterRecord,
    TrainedStage,
    check_free,
    open_adapter,
    read_record,
    write_adapter,
)
from cudal2_agent.policies.lm.base_model import LoadedModel, check_base, load_base, quieten
from cudal2_agent.policies.lm.compact_prompt import axes_fingerprint
from cudal2_agent.policies.lm.examples import Examples, read_examples, write_examples
from cudal2_agent.policies.lm.guarded_training import LogLines, PromptOrder, guard, latest_checkpoint, step_of
from cudal2_agent.policies.lm.replies.reply_readers import ReplyReaders, reader_count
from cudal2_agent.policies.lm.replies.reply_reward import ReplyReward, ScoredCandidates, StepSeconds
from cudal2_agent.policies.lm.replies.reply_sampler import merged_adapter
from cudal2_agent.policies.lm.stage_settings import StageSettings, work_of

SETTINGS = "settings.json"
EXAMPLES = "examples.json"
KEPT_CHECKPOINTS = 2
_LOGGED = 100  # records of a stage, about
_PACKAGES = ("cudal2-agent", "torch", "transformers", "trl", "peft", "accelerate")


def begin(out: Path, settings: StageSettings, make: Callable[[], Examples]) -> None:
    """Prepares the work folder of a new stage. Examples are made, which may take minutes, once its model has been looked at.

    Raises: UsageError where an adapter or an interrupted stage is there, or the model cannot be loaded.
    """
    work = work_of(out)
    with process_state().main_process_first():
        if not process_state().is_main_process:
            return
        check_free(out)
        if (work / SETTINGS).exists():
            raise UsageError(f"{work} holds an interrupted training; continue it with --resume, or delete the folder")
        previous = read_record(Path(settings.previous)) if settings.previous is not None else None
        check_base(settings.model or (previous.base if previous else None))
        examples = make()
        try:
            work.mkdir(parents=True, exist_ok=True)
            write_examples(work / EXAMPLES, examples)
            with whole_file(work / SETTINGS) as temporary:
                temporary.write_text(settings.model_dump_json(), encoding="utf-8")
        except OSError as exc:
            raise UsageError(f"{work} cannot be written ({exc.strerror}); make room or choose another --out") from exc


@contextmanager
def dropped_before_its_first_step(out: Path) -> Iterator[None]:
    """Deletes what `begin` made where an error comes before training starts, so that the same command can be given again."""
    try:
        yield
    except Exception:
        work = work_of(out)
        if process_state().is_main_process and not (work / LOG).exists():
            shutil.rmtree(work, ignore_errors=True)
        raise


def begun(out: Path) -> StageSettings:
    """The settings of an interrupted stage. Raises: UsageError where there is none."""
    file = work_of(out) / SETTINGS
    try:
        return StageSettings.model_validate_json(file.read_bytes())
    except OSError as exc:
        raise UsageError(f"there is no interrupted training of {out}; leave out --resume to start one") from exc
    except ValidationError as exc:
        raise UsageError(
            f"{file} was written by another version of cudal2-agent; delete {file.parent} and start again"
        ) from exc


def train_stage(out: Path, emit: Emit, score: JointScore | None = None, readers: int | None = None) -> AdapterRecord | None:
    """Trains the stage that was begun at `out`, from its latest checkpoint if it has one. `score`: for `grpo`.

    `readers`: processes that read the replies of `grpo`; by default as many as suit the machine.
    None in the processes beside the main one.

    Raises: UsageError for a full disk, a NaN, or what does not fit; WorkerError where the reward fails twice. Training can be
    resumed after each.
    """
    settings, main = begun(out), process_state().is_main_process
    emit = emit if main else ignore
    examples = read_examples(work_of(out) / EXAMPLES, settings.stage)
    _quieten()
    with ExitStack() as opened:
        rewards = None
        if settings.stage == "grpo" and score is not None:
            rewards = opened.enter_context(closing(_Rewards(examples, settings, score, emit, readers)))
        return _train_examples(out, examples, settings, rewards, emit if main else ignore)


def _train_examples(
    out: Path, examples: Examples, settings: StageSettings, rewards: "_Rewards | None", emit: Emit
) -> AdapterRecord | None:
    work, main = work_of(out), process_state().is_main_process
    began_s = time.monotonic()
    set_seed(settings.seed)
    loaded, earlier = _adapted(settings)
    # Embeddings are never trained; peft's default would ask a hub whether the base model has others.
    loaded.model.save_pretrained = partial(loaded.model.save_pretrained, save_embedding_layers=False)
    _check_room(loaded, examples, settings)
    with process_state().main_process_first():
        checkpoint = latest_checkpoint(work)
    trainer = _trainer(loaded, examples, settings, work, rewards)
    guard(trainer, work)
    seconds = rewards.seconds if rewards else StepSeconds()
    _sample_merged(trainer, seconds)
    log = _logged(trainer, settings, work, emit, step_of(checkpoint) if checkpoint else 0, seconds) if main else None
    if checkpoint:
        emit(Notice(message=f"training continues from checkpoint {step_of(checkpoint)} of {settings.steps}"))
    _train(trainer, checkpoint, out)
    stage = TrainedStage(
        stage=settings.stage,
        settings=settings,
        counts=examples.counts,
        examples=examples.id,
        figures=log.figures if log else {},
        seconds=time.monotonic() - began_s,
        finished_at=datetime.now(UTC),
    )
    record = AdapterRecord(
        base=loaded.name,
        base_fingerprint=loaded.fingerprint,
        axes=axes_fingerprint(),
        stages=(*(earlier.stages if earlier else ()), stage),
        versions=_versions(),
    )
    if main:
        write_adapter(out, trainer.accelerator.unwrap_model(trainer.model), loaded.tokenizer, record, work)
        shutil.rmtree(work, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    return record if main else None


def _adapted(settings: StageSettings) -> tuple[LoadedModel, AdapterRecord | None]:
    """The model with a trainable adapter: a new one, or the one of the previous stage."""
    if settings.previous is not None:
        return open_adapter(Path(settings.previous), settings.model, trainable=True)
    base = load_base(settings.model)
    config = LoraConfig(
        r=settings.rank, lora_alpha=2 * settings.rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return LoadedModel(get_peft_model(base.model, config), base.tokenizer, base.name, base.fingerprint), None


def _check_room(loaded: LoadedModel, examples: Examples, settings: StageSettings) -> None:
    """Raises: UsageError where the longest prompt and its reply exceed the model's context."""
    longest = max(examples.examples, key=lambda one: sum(len(message.content) for message in one.prompt))
    messages = [message.model_dump() for message in longest.prompt]
    prompt = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    needed = len(loaded.tokenizer(prompt)["input_ids"]) + settings.reply_tokens
    if needed > loaded.context:
        raise UsageError(f"prompt and reply take {needed} tokens, and {loaded.name} has a context of {loaded.context}")


class _Rewards:
    """What rewards the replies of `grpo`. The spaces of the first step's tasks are enumerated from the start."""

    def __init__(self, examples: Examples, settings: StageSettings, score: JointScore, emit: Emit, readers: int | None) -> None:
        state = process_state()
        processes = state.num_processes
        self.seconds = StepSeconds()
        self.order = PromptOrder(examples.examples, settings, processes)
        self._readers = ReplyReaders(reader_count(processes) if readers is None else readers, emit)
        self._readers.expect(self.order.first())
        self.reward = ReplyReward(ScoredCandidates(score, emit), _settled, self._readers, self.order.after, self.seconds)

    def close(self) -> None:
        self._readers.close()


def _sample_merged(trainer: Any, seconds: StepSeconds) -> None:
    """Replies are sampled with the adapter merged into the weights, and the time is counted.

    Where weights are shared out to processes, the adapter stays apart.
    """
    model, shared_out = trainer.model, trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    generate = model.generate

    def sampled(*arguments: Any, **named: Any) -> Any:
        with seconds.part("sample"), nullcontext() if shared_out else merged_adapter(model):
            return generate(*arguments, **named)

    model.generate = sampled


def _trainer(loaded: LoadedModel, examples: Examples, settings: StageSettings, work: Path, rewards: _Rewards | None) -> Any:
    on_gpu = torch.cuda.is_available()
    common: dict[str, Any] = {
        "output_dir": str(work),
        "max_steps": settings.steps,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": min(settings.steps // 20, 100),
        "per_device_train_batch_size": settings.batch,
        "gradient_accumulation_steps": settings.accumulate,
        "gradient_checkpointing": False,
        "seed": settings.seed,
        "save_steps": settings.save_every,
        "save_total_limit": KEPT_CHECKPOINTS,
        "logging_steps": max(1, settings.steps // _LOGGED),
        "logging_nan_inf_filter": False,
        "report_to": [],
        "disable_tqdm": True,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
    }
    try:
        made = (
            _group_relative(loaded, settings, common, rewards)
            if settings.stage == "grpo"
            else _supervised(loaded, examples, common)
        )
    except ValueError as exc:
        raise UsageError(_options_message(str(exc))) from exc
    made.remove_callback(PrinterCallback)  # stdout is for the answer
    made.remove_callback(ProgressCallback)
    return made


def _supervised(loaded: LoadedModel, examples: Examples, common: dict[str, Any]) -> Any:
    """The loss is that of the completions alone."""
    rows = [_supervised_row(one.model_dump(mode="json")) for one in examples.examples]
    config = SFTConfig(**common, max_length=loaded.context, completion_only_loss=True)
    data = datasets.Dataset.from_list(rows)
    return SFTTrainer(loaded.model, config, train_dataset=data, processing_class=loaded.tokenizer)


def _supervised_row(plain: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": plain["prompt"], "completion": [{"role": "assistant", "content": plain["completion"]}]}


def _group_relative(loaded: LoadedModel, settings: StageSettings, common: dict[str, Any], rewards: _Rewards | None) -> Any:
    if rewards is None:
        raise UsageError("stage grpo needs a sandbox that executes kernels; choose --device emulator or a GPU")
    rows = [
        {"prompt": [message.model_dump() for message in one.prompt], "task": place.task, "chip": place.chip}
        for one, place in zip(rewards.order.examples, rewards.order.places, strict=True)
    ]
    config = GRPOConfig(
        **common,
        num_generations=settings.group,
        max_completion_length=settings.reply_tokens,
        temperature=settings.temperature,
        shuffle_dataset=False,
        beta=settings.kl,
        scale_rewards="none",  # the advantage is then the leave-one-out one times (group - 1) / group
    )
    data = datasets.Dataset.from_list(rows)
    return GRPOTrainer(loaded.model, rewards.reward, args=config, train_dataset=data, processing_class=loaded.tokenizer)


def _settled() -> None:
    """Waits for the trainer's own kernels: the sandbox times candidates on the same GPU, in another process."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def process_state() -> PartialState:
    """The place of this process among those that accelerate launched."""
    return PartialState(cpu=not torch.cuda.is_available())


def local_device() -> str | None:
    """The GPU of this process among those that accelerate launched; None where there is one process."""
    state = process_state()
    return f"cuda:{state.local_process_index}" if state.num_processes > 1 and torch.cuda.is_available() else None


def _quieten() -> None:
    """As `quieten`; and trl's and datasets' own, and no report of a training to the makers of trl."""
    quieten()
    datasets.disable_progress_bars()
    hub_constants.HF_HUB_DISABLE_TELEMETRY = True


def _options_message(said: str) -> str:
    if "DataParallel" in said:
        return (
            f"{torch.cuda.device_count()} GPUs are visible to one process; write "
            "`accelerate launch -m cudal2_agent.agent.cli.main train lm …`, or make one visible with CUDA_VISIBLE_DEVICES=0"
        )
    return f"trl refuses these settings: {said.strip().partition(chr(10))[0]}"


def _logged(trainer: Any, settings: StageSettings, work: Path, emit: Emit, resumed_at: int, seconds: StepSeconds) -> LogLines:
    """The log of a trainer as lines, and as TensorBoard's events where it is installed."""
    log = LogLines(work / LOG, settings.stage, emit, resumed_at, seconds)
    trainer.add_callback(log)
    if find_spec("tensorboard") is None:
        emit(Notice(message=f"tensorboard is not installed; the log is {work / LOG} alone"))
        return log
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import integration_utils

    callbacks: Any = integration_utils
    trainer.add_callback(callbacks.TensorBoardCallback(SummaryWriter(str(work / TENSORBOARD))))
    return log


def _train(trainer: Any, checkpoint: Path | None, out: Path) -> None:
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except OSError as exc:
        raise UsageError(f"training of {out} stopped: {exc}; mend that and continue with --resume") from exc


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
