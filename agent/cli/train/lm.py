"""`cudal2-agent train lm`: trains a language model that names schedules."""

import json
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cudal2_agent.agent.cli.arguments import AsJson, Device, HeldOut
from cudal2_agent.contract.errors import UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cudal2_agent.contract.events import Emit
    from cudal2_agent.contract.reward.score import JointScore
    from cudal2_agent.contract.settings.settings import Settings
    from cudal2_agent.policies.lm.adapter_folder import AdapterRecord
    from cudal2_agent.policies.lm.examples import Examples, Stage
    from cudal2_agent.policies.lm.stage_settings import StageSettings

EXAMPLE = (
    "\b\nExamples:\n  cudal2-agent train lm --stage sft --held-out benchmarks/campaigns/held_out.json --out lm-sft\n"
    "  cudal2-agent train lm --stage grpo --adapter lm-sft --steps 100 --out lm-grpo"
)

StageName = Annotated[str | None, typer.Option("--stage", help="sft, contrastive or grpo.", show_default=False)]
NewFolder = Annotated[Path | None, typer.Option("--out", help="New folder for the adapter.", show_default=False)]
BaseModelName = Annotated[
    str | None,
    typer.Option("--model", help="A model's folder or name.", show_default="the packaged SmolLM2-135M-Instruct"),
]
PreviousAdapter = Annotated[
    Path | None, typer.Option("--adapter", help="Adapter of the stage before, to continue.", show_default=False)
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Optimiser steps.", show_default="200")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of data, samples and new weights.", show_default="0")]
LearningRate = Annotated[
    float | None,
    typer.Option("--learning-rate", help="At the start of a cosine.", show_default="by stage: 5e-4, 3e-4, 3e-5"),
]
Batch = Annotated[int | None, typer.Option("--batch", min=1, help="Examples or replies of one pass.", show_default="16")]
AccumulatedPasses = Annotated[int | None, typer.Option("--accumulate", min=1, help="Passes per step.", show_default="1")]
GroupSize = Annotated[int | None, typer.Option("--group", min=2, help="grpo: replies to a prompt.", show_default="8")]
KlWeight = Annotated[
    float | None, typer.Option("--kl", min=0, help="grpo: weight of the divergence from the start.", show_default="0.02")
]
Rank = Annotated[int | None, typer.Option("--rank", min=1, help="Rank of a new adapter.", show_default="32")]
SaveEvery = Annotated[int | None, typer.Option("--save-every", min=1, help="Steps between checkpoints.", show_default="50")]
ReplyTokens = Annotated[int | None, typer.Option("--reply-tokens", min=8, help="Limit of a reply.", show_default="112")]
TestShare = Annotated[float, typer.Option("--test-share", min=0, max=1, help="Share of the shapes that never train.")]
ExamplesFile = Annotated[
    Path | None, typer.Option("--examples", help="Examples made before.", show_default="made from the store")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the interrupted training of --out.")]


def train_lm(
    stage: StageName = None,
    out: NewFolder = None,
    model: BaseModelName = None,
    adapter: PreviousAdapter = None,
    steps: Steps = None,
    seed: Seed = None,
    learning_rate: LearningRate = None,
    batch: Batch = None,
    accumulate: AccumulatedPasses = None,
    group: GroupSize = None,
    kl: KlWeight = None,
    rank: Rank = None,
    save_every: SaveEvery = None,
    reply_tokens: ReplyTokens = None,
    held_out: HeldOut = None,
    test_share: TestShare = 0.0,
    examples: ExamplesFile = None,
    resume: Resume = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Train a language model that names schedules, one stage at a time."""
    from cudal2_agent.policies.lm.needs import TRAINING, require

    given: dict[str, Any] = {
        "model": model,
        "previous": str(adapter) if adapter else None,
        "steps": steps,
        "seed": seed,
        "batch": batch,
    }
    given |= {"learning_rate": learning_rate, "accumulate": accumulate, "group": group, "kl": kl, "rank": rank}
    given |= {"save_every": save_every, "reply_tokens": reply_tokens}
    given = {name: value for name, value in given.items() if value is not None}
    if (stage is None) != resume:
        raise UsageError("say what to do: --stage NAME, or --resume to continue an interrupted training")
    require(TRAINING)
    if out is None:
        raise UsageError("--out is missing; name a new folder, for example --out lm-sft")
    if resume and given:
        raise UsageError("--resume continues with the settings that the training began with; leave out the others")
    _print_record(out, _trained(stage, out, given, _Data(examples, held_out, test_share), device), as_json)


class _Data:
    """Where the examples of a stage come from."""

    def __init__(self, examples: Path | None, held_out: Path | None, test_share: float) -> None:
        self.examples, self.held_out, self.test_share = examples, held_out, test_share

    def make(self, stage: "Stage", seed: int, settings: "Settings", emit: "Emit") -> "Examples":
        """Raises: UsageError, StoreError."""
        from cudal2_agent.agent.campaign.shapes import held_out_shapes
        from cudal2_agent.policies.exports.splits import ShapeSplit
        from cudal2_agent.policies.lm.examples import make_examples, read_examples, stored_searches
        from cudal2_agent.store.store import open_store

        if self.examples is not None:
            return read_examples(self.examples, stage)
        split = ShapeSplit(self.test_share, held_out_shapes(self.held_out), seed)
        with open_store(settings.store_url) as store:
            return make_examples(stored_searches(store), [stage], split, seed, emit)[stage]


def _trained(stage: str | None, out: Path, given: dict[str, Any], data: _Data, device: str | None) -> "AdapterRecord | None":
    """Begin a stage, or take up the one that was interrupted, and train it."""
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.policies.lm.stages import begin, begun, dropped_before_its_first_step, local_device, train_stage

    settings = load_settings(device=device or local_device())
    with Progress() as progress, ExitStack() as started:
        if stage is not None:
            wanted = _settings(stage, given)
            begin(out, wanted, lambda: data.make(wanted.stage, wanted.seed, settings, progress.emit))
            started.enter_context(dropped_before_its_first_step(out))
        with _score(begun(out).stage, settings, progress.emit) as score:
            return train_stage(out, progress.emit, score)


def _settings(stage: str, given: dict[str, Any]) -> "StageSettings":
    """Raises: UsageError for a stage that is not known, or a setting out of its range."""
    from pydantic import ValidationError

    from cudal2_agent.policies.lm.examples import STAGES
    from cudal2_agent.policies.lm.stage_settings import LEARNING_RATES, StageSettings

    if stage not in STAGES:
        raise UsageError(f"--stage {stage!r} is not known; choose from {', '.join(STAGES)}")
    chosen = next(one for one in STAGES if one == stage)
    try:
        return StageSettings.model_validate({"stage": chosen, "learning_rate": LEARNING_RATES[chosen], **given})
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        flag = "--" + ".".join(map(str, first["loc"])).replace("_", "-")
        raise UsageError(f"{flag}: {first['msg']}") from exc


def _score(stage: "Stage", settings: "Settings", emit: "Emit") -> "AbstractContextManager[JointScore | None]":
    if stage != "grpo":
        return nullcontext()
    from cudal2_agent.agent.learning.environment.sandbox_score import open_score

    return open_score(settings, emit=emit)


def _print_record(out: Path, record: "AdapterRecord | None", as_json: bool) -> None:
    """Nothing in the processes beside the main one."""
    if record is None:
        return
    if as_json:
        print(json.dumps({"out": str(out), "adapter": record.model_dump(mode="json")}))
        return
    last = record.stages[-1]
    figures = ", ".join(f"{name} {value:.4g}" for name, value in last.figures.items())
    steps, examples = last.settings.steps, last.counts.examples
    print(f"{out}: {last.stage}, {steps} steps on {examples} examples in {last.seconds:.0f} s; {figures}")
