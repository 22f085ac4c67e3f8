"""`cudal2-agent mcp`: a Model Context Protocol server over stdio, whose calls are a run."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from cudal2_agent.agent.cli.arguments import (
    Accumulate,
    ActivationName,
    ArchName,
    Bias,
    Device,
    Element,
    Gated,
    LayoutName,
    Mode,
    NoKnowledge,
)
from cudal2_agent.agent.cli.tasks.task_flags import AnyShape, ArithmeticName, Dims, Problem, TaskFlags, TaskName, Training
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.settings.run_settings import AGENT_CALL_S, AGENT_CALLS, CHAT_MINUTES, RunSettings

EXAMPLE = (
    "stdout carries the protocol only; progress and the answer go to stderr. An agent's program starts this command, so that "
    "it belongs in that program's configuration (docs/guide/agents.md).\n\n"
    "\b\nExample:\n  cudal2-agent mcp --shape 4096x1024x512\n"
    "  cudal2-agent mcp --problem my_module.py --minutes 120 --calls 600"
)
_DEFAULTS = RunSettings(home=Path())


def serve(
    shape: AnyShape = None,
    problem: Problem = None,
    task_name: TaskName = None,
    dims: Dims = None,
    arithmetic: ArithmeticName = "f32",
    training: Training = False,
    accumulate: Accumulate = "f32",
    element: Element = "f16",
    layout: LayoutName = "nn",
    bias: Bias = False,
    activation: ActivationName = None,
    gated: Gated = False,
    arch: ArchName = None,
    mode: Mode = "offline",
    calls: Annotated[
        int | None, typer.Option("--calls", help="Maximum number of calls.", show_default=str(AGENT_CALLS))
    ] = None,
    call_seconds: Annotated[
        float | None,
        typer.Option(
            "--call-seconds",
            help="After so many seconds a call answers that its work goes on. Clients give up after a minute or so.",
            show_default=f"{AGENT_CALL_S:g}",
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option("--budget", help="Maximum number of kernels handed in.", show_default=str(_DEFAULTS.budget)),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Wall-clock limit in minutes.", show_default=f"{CHAT_MINUTES:g}")
    ] = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option("--out", help="Output folder; default: one per run in the home folder.")] = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN", help="Continue a run instead of starting one."),
    ] = None,
    no_knowledge: NoKnowledge = False,
    no_profile: Annotated[bool, typer.Option("--no-profile", help="Read no hardware counters.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON, on stderr.")] = False,
) -> None:
    """Serve tools to another agent, over the Model Context Protocol on stdin and stdout. What it does is one run."""
    if find_spec("mcp") is None:
        raise UsageError("the server needs the package mcp; run: pip install 'cudal2-agent[mcp]'")
    from cudal2_agent.agent.mcp.agent_calls import AgentCalls
    from cudal2_agent.agent.mcp.handed_in import HandedIn
    from cudal2_agent.agent.mcp.protocol_server import open_door
    from cudal2_agent.contract.settings.settings import load_settings

    flags: dict[str, Any] = {"budget": budget, "minutes": minutes, "device": device}
    flags |= {"chat_tool_calls": calls, "chat_tool_s": call_seconds}
    flags |= {"use_knowledge": False if no_knowledge else None, "profile": "off" if no_profile else None}
    kinds = accumulate, element, layout, bias, activation, gated, arch, mode
    task = TaskFlags(shape, problem, task_name, dims, arithmetic, training, *kinds)
    if resume is None:
        task.check()
    elif task.named or out is not None:
        left = " and ".join([*task.named, *(["--out"] if out is not None else [])])
        raise UsageError(f"--resume continues a run with its own task and output folder; leave out {left}")
    settings = load_settings(**flags)
    door = open_door(AgentCalls(HandedIn()))  # the client is answered before the seconds that the imports take
    from cudal2_agent.agent.cli.agents.agent_host import host_new, host_resumed

    if resume is None:
        raise typer.Exit(host_new(door, task.read, settings, out, as_json=as_json))
    raise typer.Exit(host_resumed(door, resume, flags, as_json=as_json))
