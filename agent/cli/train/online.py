"""`cudal2-agent train online`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import Accumulate, AsJson, Device, Element, LayoutName, Mode, read_task

if TYPE_CHECKING:
    from cudal2_agent.policies.training.online_training import OnlinePlan, StepReport

EXAMPLE = (
    "\b\nExamples:\n  cudal2-agent train online --prior h200 --shapes 512x512x512,64x4096x64 --steps 20 --name mine\n"
    "  cudal2-agent train online --prior h200 --shapes shapes.txt --accumulate f16 --name f16-sums"
)


def online(
    prior: Annotated[
        str, typer.Option("--prior", "--policy", help="The prior that is trained on: a name of `prior list`, or a file.")
    ],
    shapes: Annotated[list[str], typer.Option("--shapes", metavar="SHAPES", help="grid1000, a file, or shapes with commas.")],
    name: Annotated[str, typer.Option("--name", help="Name of the new prior.")] = "online",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Default: policies/NAME.safetensors in the home folder.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps of training.", show_default="10")] = None,
    tasks: Annotated[int | None, typer.Option("--tasks", min=1, help="Shapes of a step.", show_default="4")] = None,
    group: Annotated[int | None, typer.Option("--group", min=2, help="Candidates of a shape.", show_default="8")] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0, help="Rate of learning.", show_default="1e-4")] = None,
    layout: LayoutName = "nn",
    element: Element = "f16",
    accumulate: Accumulate = "f32",
    mode: Mode = "offline",
    seed: Annotated[int | None, typer.Option("--seed", help="Of what is drawn.", show_default="0")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Train a prior by trying: what it proposes is verified and timed, and it follows what paid. It resumes after a kill."""
    from cudal2_agent.agent.campaign.shapes import read_shapes
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.agent.learning.environment.sandbox_score import open_score
    from cudal2_agent.agent.run.versions import own_version
    from cudal2_agent.contract.events import Notice
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.policies.schedule.learned.policy_file import find_policy
    from cudal2_agent.policies.training.online_training import train_online

    settings = load_settings(device=device)
    start = find_policy(prior, settings.home).path
    plan = _plan(steps=steps, tasks=tasks, group=group, rate=rate, seed=seed)
    wanted, notices = read_shapes(shapes)
    target = out or settings.home / "policies" / f"{name}.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    with Progress() as progress, open_score(settings, emit=progress.emit) as score:
        for message in notices:
            progress.emit(Notice(message=message))

        def on_step(report: "StepReport") -> None:
            progress.emit(Notice(message=_line(report)))

        judged = [
            read_task(
                f"{one.m}x{one.n}x{one.k}",
                accumulate,
                element,
                one.layout or layout,
                score.chip.arch,
                mode,
                settings,
                bias=one.bias,
                activation=one.activation,
                gated=one.gated,
            )
            for one in wanted
        ]
        card = train_online(start, plan, judged, score, target, name, own_version(), on_step)
    print(card.model_dump_json() if as_json else f"prior    {card.name}, from {card.base}\nfile     {target}")


def _plan(**given: float | None) -> "OnlinePlan":
    from cudal2_agent.policies.training.online_training import OnlinePlan

    return OnlinePlan.model_validate({name: value for name, value in given.items() if value is not None})


def _line(report: "StepReport") -> str:
    value = "no value is known" if report.value is None else f"mean value {report.value:.3f}"
    kept = f", {report.cached} known from before" if report.cached else ""
    failed = f", {report.failed} failed" if report.failed else ""
    return f"step {report.step} of {report.steps}: {report.scored} scored{kept}{failed}, {value}"
