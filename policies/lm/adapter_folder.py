"""A trained adapter as a folder: weights, tokenizer, record, log and model card. It appears whole or not at all."""

import shutil
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from peft import PeftModel

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import parse_record, read_file
from cudal2_agent.contract.whole_file import make_durable
from cudal2_agent.policies.lm.base_model import LoadedModel, load_base
from cudal2_agent.policies.lm.compact_prompt import axes_fingerprint
from cudal2_agent.policies.lm.examples import ExampleCounts, Stage
from cudal2_agent.policies.lm.stage_settings import StageSettings

RECORD = "cudal2.json"
LOG = "log.jsonl"
TENSORBOARD = "tensorboard"
CARD = "README.md"
OWN_LICENCE = "Apache-2.0"
# Of torch's writer and of safetensors, where a file could not be written.
_DISK_WORDS = ("no space", "file write failed", "i/o error", "iostream", "unexpected pos")


class TrainedStage(Record):
    """One stage of a training. `figures`: the last ones that were logged. `seconds`: of wall-clock time."""

    stage: Stage
    settings: StageSettings
    counts: ExampleCounts
    examples: str
    figures: dict[str, float]
    seconds: float
    finished_at: datetime


class AdapterRecord(Record):
    """What an adapter is bound to and came from.

    `base`, `base_fingerprint`: the model and its weights. `axes`: of the kernel families, see `axes_fingerprint`.
    `stages`: in the order in which they were trained. `versions`: of packages.
    """

    schema_version: Literal[1] = 1
    base: str
    base_fingerprint: str
    axes: str
    stages: tuple[TrainedStage, ...]
    versions: dict[str, str]


def check_free(folder: Path) -> None:
    """Raises: UsageError where something is at the place of a new folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already; choose a new folder with --out")


def write_adapter(folder: Path, model: Any, tokenizer: Any, record: AdapterRecord, work: Path) -> None:
    """`work`: where the training's logs are. Raises: UsageError where it cannot be written; nothing is left then."""

    def fill(new: Path) -> None:
        model.save_pretrained(new, selected_adapters=["default"])
        tokenizer.save_pretrained(new)
        (new / RECORD).write_text(record.model_dump_json(indent=1), encoding="utf-8")
        (new / CARD).write_text(_card(record), encoding="utf-8")
        shutil.copy(work / LOG, new / LOG)
        if (work / TENSORBOARD).exists():
            shutil.copytree(work / TENSORBOARD, new / TENSORBOARD)

    write_whole(folder, fill)


def write_whole(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fills a folder beside its place and moves it there. Raises: UsageError."""
    check_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        fill(temporary)
        for file in temporary.rglob("*"):
            if file.is_file():
                make_durable(file)
        temporary.chmod(0o755)
        temporary.replace(folder)
    except BaseException as exc:
        shutil.rmtree(temporary, ignore_errors=True)
        if is_disk_error(exc):
            raise UsageError(f"{folder} cannot be written ({exc}); make room or choose another place") from exc
        raise


def is_disk_error(exc: BaseException) -> bool:
    """Whether a file could not be written: as an OSError, or as torch and safetensors report one."""
    if isinstance(exc, OSError):
        return True
    named = type(exc).__name__ == "SafetensorError" or isinstance(exc, RuntimeError)
    return named and any(words in str(exc).lower() for words in _DISK_WORDS)


def read_record(folder: Path) -> AdapterRecord:
    """Raises: UsageError for a folder that is not an adapter of this version, or is bound to other axes."""
    file = folder / RECORD
    try:
        record = parse_record(AdapterRecord, read_file(file))
    except OSError as exc:
        raise UsageError(f"{folder} is not an adapter of `train lm`: {RECORD} cannot be read ({exc.strerror})") from exc
    except ValueError as exc:
        raise UsageError(f"{file} was written by another version of cudal2-agent; train the adapter again") from exc
    if record.axes != axes_fingerprint():
        raise UsageError(
            f"{folder} was trained on other axes of the kernel families ({record.axes}, here {axes_fingerprint()}); "
            "train it again, or use the version of cudal2-agent that wrote it"
        )
    return record


def open_adapter(
    folder: Path, base: str | None = None, device: str | None = None, *, trainable: bool = False
) -> tuple[LoadedModel, AdapterRecord]:
    """The adapter on its base model. `base`: where that model lies now, if not where it was.

    Raises: UsageError where the folder does not fit this version or the model.
    """
    record = read_record(folder)
    loaded = load_base(base or record.base, device)
    if loaded.fingerprint != record.base_fingerprint:
        raise UsageError(
            f"{folder} is an adapter for the weights of {record.base} ({record.base_fingerprint}), and {loaded.name} has "
            f"others ({loaded.fingerprint}); name the right model with --model"
        )
    try:
        model = PeftModel.from_pretrained(loaded.model, folder, is_trainable=trainable)
    except (OSError, ValueError, RuntimeError) as exc:
        reason = str(exc).strip().partition("\n")[0]
        raise UsageError(f"the adapter in {folder} cannot be loaded ({reason}); train it again") from exc
    return LoadedModel(model, loaded.tokenizer, loaded.name, loaded.fingerprint), record


def write_merged(folder: Path, target: Path, base: str | None = None) -> None:
    """A whole model with the adapter in its weights, for servers. Raises: UsageError."""
    loaded, _ = open_adapter(folder, base, "cpu")
    model = loaded.model.merge_and_unload()
    model.generation_config.do_sample = True  # `transformers serve` decodes greedily otherwise, whatever is asked

    def fill(new: Path) -> None:
        model.save_pretrained(new)
        loaded.tokenizer.save_pretrained(new)

    write_whole(target, fill)


def _card(record: AdapterRecord) -> str:
    rows = "\n".join(
        f"| {one.stage} | {one.settings.steps} | {one.settings.seed} | {one.counts.runs} | {one.counts.shapes} | "
        f"{one.counts.held_out} | {one.counts.examples} | {_figures(one.figures)} | {one.seconds:.0f} |"
        for one in record.stages
    )
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return f"""---
base_model: {record.base}
library_name: peft
license: {OWN_LICENCE.lower()}
---
# Schedules of GEMM kernels

A LoRA adapter that names schedules of the kernel families of cudal2-agent for one matrix product, as one line of JSON.
It was trained by `cudal2-agent train lm`, and `cudal2-agent optimize --policy lm --lm FOLDER` uses it.

| stage | steps | seed | runs | shapes | runs held out | examples | last figures | seconds |
|---|---|---|---|---|---|---|---|---|
{rows}

- Base: {record.base}, weights {record.base_fingerprint}. The adapter fits no other weights.
- Axes of the kernel families: {record.axes}. It names no schedules of a version with other axes.
- Data: measured schedules of a trajectory store. Shapes that were held out occur in no example.
- Versions: {versions}.
- Licence: {OWN_LICENCE} for the adapter; the terms of the base model apply to both together.
- It writes no source code and answers no questions. Its schedules are proposals: each kernel is compiled, verified and timed.
- Nothing is known of its schedules on chips, element types and accumulators that its data lack.
"""


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items()) or "none"
