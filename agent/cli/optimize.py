"""`cudal2-agent optimize`: a shape in, a proven and measured kernel out."""

from pathlib import Path
from typing import Annotated

import typer

from agent.cli.inputs import Accumulate, ArchName, AsJson, Device, Element, LayoutName, Mode, NoKnowledge, read_task
from contract.errors import UsageError

EXAMPLE = "\b\nExample:\n  cudal2-agent optimize --shape 4096x1024x512 --minutes 4 --out my-kernel"

Budget = Annotated[int | None, typer.Option("--budget", help="Candidates to try.", show_default="96")]
Minutes = Annotated[float | None, typer.Option("--minutes", help="Wall-clock limit.", show_default="4")]


def optimize(
    shape: Annotated[str | None, typer.Option("--shape", help="M x N x K, like 4096x1024x512.", show_default=False)] = None,
    accumulate: Accumulate = "f32",
    element: Element = "f16",
    layout: LayoutName = "nn",
    arch: ArchName = None,
    mode: Mode = "offline",
    policy: Annotated[str | None, typer.Option("--policy", help="What writes candidates.", show_default="schedule")] = None,
    budget: Budget = None,
    minutes: Minutes = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the search.", show_default="0")] = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option("--out", help="Output folder; default: one per run in the home folder.")] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Continue a run instead of starting one.")
    ] = None,
    no_knowledge: NoKnowledge = False,
    as_json: AsJson = False,
) -> None:
    """Write, prove and time kernels for one shape and keep the best."""
    from agent.cli.session import optimize_task, resume_by_id
    from contract.settings import load_settings

    use_knowledge = False if no_knowledge else None
    if resume is not None:
        if shape is not None or out is not None:
            raise UsageError("--resume continues a run with its own shape and output folder; leave out --shape and --out")
        flags = {"policy": policy, "budget": budget, "minutes": minutes, "seed": seed, "device": device}
        code = resume_by_id(resume, as_json=as_json, **flags, use_knowledge=use_knowledge)
    else:
        if shape is None:
            raise UsageError("--shape is missing; write for example --shape 4096x1024x512")
        settings = load_settings(
            policy=policy, budget=budget, minutes=minutes, seed=seed, device=device, use_knowledge=use_knowledge
        )
        task = read_task(shape, accumulate, element, layout, arch, mode, settings)
        code = optimize_task(task, settings, out, as_json=as_json)
    raise typer.Exit(code)
