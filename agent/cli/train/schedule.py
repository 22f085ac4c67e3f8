"""`cudal2-agent train schedule`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson, HeldOut

if TYPE_CHECKING:
    from cudal2_agent.policies.schedule.learned.policy_file import PolicyCard
    from cudal2_agent.policies.training.trainer import TrainingProgress
    from cudal2_agent.policies.training.training_plan import TrainingPlan

EXAMPLE = (
    "\b\nExamples:\n  cudal2-agent train schedule --name mine\n"
    "  cudal2-agent train schedule --stages supervised --epochs 40 --out mine.safetensors --json"
)


def schedule(
    name: Annotated[str, typer.Option("--name", help="Name of the prior.")] = "trained",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Default: policies/NAME.safetensors in the home folder.")
    ] = None,
    stages: Annotated[
        str, typer.Option("--stages", help="Of supervised, contrastive, group-relative, trees.")
    ] = "supervised,trees",
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Of the first stage; a later one has a sixth.", show_default=False)
    ] = None,
    members: Annotated[
        int | None, typer.Option("--members", min=1, help="Networks of the ensemble.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the split, the first weights and the order.")] = 0,
    chip: Annotated[str | None, typer.Option("--chip", help="Learn from runs of this GPU only.", show_default=False)] = None,
    start: Annotated[
        Path | None, typer.Option("--start", metavar="FILE", help="Train a prior on instead of a new one.")
    ] = None,
    test_share: Annotated[float, typer.Option("--test-share", min=0, max=0.9, help="Share of shapes that are held out.")] = 0.1,
    held_out: HeldOut = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes that make features.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Train a prior of the schedule policy from all runs of the store. The same command resumes an interrupted training."""
    from cudal2_agent.agent.campaign.shapes import held_out_shapes
    from cudal2_agent.agent.run.versions import own_version
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.policies.training.trainer import TrainingOptions, train_schedule
    from cudal2_agent.store.store import open_store

    settings = load_settings()
    options = TrainingOptions(
        name=name,
        plan=_plan(stages, epochs, members, seed),
        chip=chip,
        start=str(start) if start else None,
        test_share=test_share,
        test_shapes=tuple(held_out_shapes(held_out)),
        jobs=jobs or settings.compile_jobs,
    )
    target = out or settings.home / "policies" / f"{name}.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    cache = settings.home / "cache" / "training"
    with open_store(settings.store_url) as store:
        card = train_schedule(store, options, target, cache, own_version(), _TrainingLines().tell)
    print(card.model_dump_json() if as_json else "\n".join(_summary(card, target)))


def _plan(stages: str, epochs: int | None, members: int | None, seed: int) -> "TrainingPlan":
    """Raises: UsageError for an unknown stage."""
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.policies.training.training_plan import STAGES, TREES, TrainingPlan

    default = TrainingPlan()
    wanted = [word.strip() for word in stages.split(",")]
    if unknown := [word for word in wanted if word not in (*STAGES, TREES)]:
        raise UsageError(f"--stages: {unknown[0]!r} is not known; choose from {', '.join((*STAGES, TREES))}")
    planned = {plan.stage: plan for plan in default.stages}
    if epochs is not None:
        own = {stage: epochs if stage == STAGES[0] else max(epochs // 6, 1) for stage in STAGES}
        planned = {stage: plan.model_copy(update={"epochs": own[stage]}) for stage, plan in planned.items()}
    size = default.size.model_copy(update={"members": members} if members else {})
    chosen = tuple(planned[stage] for stage in STAGES if stage in wanted)
    return default.model_copy(update={"stages": chosen, "trees": TREES in wanted, "seed": seed, "size": size})


class _TrainingLines:
    """Progress on stderr: one line every few seconds, and one for each judged epoch."""

    EVERY_S = 5.0

    def __init__(self) -> None:
        import time

        self._now_s = time.monotonic
        self._said_s = float("-inf")

    def tell(self, progress: "TrainingProgress") -> None:
        import sys

        last = progress.done == progress.total
        if not (progress.figures or last) and self._now_s() - self._said_s < self.EVERY_S:
            return
        self._said_s = self._now_s()
        loss = f", loss {progress.loss:.3f}" if progress.loss is not None else ""
        figures = _shares(progress.figures)
        print(f"{progress.stage}: {progress.done:,} of {progress.total:,}{loss}{figures}", file=sys.stderr, flush=True)


def _shares(figures: dict[str, float]) -> str:
    if not figures:
        return ""
    first, eight = figures["first within 5 %"], figures["best of 8 within 2 %"]
    return f"; held out: first within 5 % {first:.0%}, best of 8 within 2 % {eight:.0%}"


def _summary(card: "PolicyCard", target: Path) -> list[str]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in card.tasks.items())
    lines = [
        f"prior    {card.name}, for {', '.join(card.chips)}",
        f"learned  {card.schedules:,} schedules of {card.runs:,} runs: {kinds}",
        f"stages   {', '.join(card.stages)}",
    ]
    if card.figures:
        lines.append(f"held out {card.held_out} shapes{_shares(card.figures).removeprefix('; held out')}")
        lines.append(
            "         Only schedules that a run timed are ordered here; what the prior would propose beyond is not judged."
        )
    return [*lines, f"file     {target}", f"use it   cudal2-agent optimize --shape 4096x1024x512 --prior {card.name}"]
