"""`cudal2-agent optimize`: writes, verifies and times kernels for a shape."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cudal2_agent.agent.cli.arguments import (
    Accumulate,
    ActivationName,
    ArchName,
    AsJson,
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
from cudal2_agent.contract.settings.run_settings import CHAT_MINUTES, TRAINED_BUDGET, RunSettings

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent optimize --shape 4096x1024x512 --minutes 4 --out my-kernel\n"
    "  cudal2-agent optimize --problem my_module.py --dims batch_size=16 --out my-module\n"
    "  cudal2-agent optimize --shape 4096x1024x512 --model MODEL --base-url http://127.0.0.1:8000/v1"
)

_DEFAULTS = RunSettings(home=Path())  # a user may have no home
BudgetOption = Annotated[
    int | None,
    typer.Option(
        "--budget",
        help="Maximum number of candidates.",
        show_default=f"{TRAINED_BUDGET} where the prior was trained on the chip, else {_DEFAULTS.budget}",
    ),
]
PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="Author of candidates: schedule, chat, portfolio or lm; for a module fusion, fusion-algebra, chat or portfolio.",
        show_default="portfolio where a model is named, else schedule; for a module fusion",
    ),
]
PriorName = Annotated[
    str | None,
    typer.Option(
        "--prior",
        help="What the schedule policy starts from: auto (one trained on the chip, else analytic), analytic, "
        "or a prior's name or file.",
        show_default=_DEFAULTS.schedule_prior,
    ),
]
Model = Annotated[str | None, typer.Option("--model", help="Model for the chat policy.", show_default=False)]
LmFolder = Annotated[
    Path | None, typer.Option("--lm", metavar="FOLDER", help="Adapter of `train lm` for the policy lm.", show_default=False)
]
RepliesOption = Annotated[
    str | None,
    typer.Option("--replies", help="What a model replies with: source, schedule or any.", show_default=_DEFAULTS.chat.replies),
]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="OpenAI-compatible server, /v1 included.", show_default=False)
]
Tokens = Annotated[
    int | None, typer.Option("--tokens", help="Maximum number of chat tokens.", show_default=str(_DEFAULTS.chat.tokens))
]
Money = Annotated[float | None, typer.Option("--money", help="Maximum cost of chat, by the prices set.", show_default=False)]
ChatTools = Annotated[
    str | None,
    typer.Option(
        "--chat-tools",
        help="Tools for the model: on, off, or auto, which continues without them where a server refuses them.",
        show_default=_DEFAULTS.chat.tools,
    ),
]
Replay = Annotated[
    str | None,
    typer.Option(
        "--replay", metavar="RUN", help="Repeat a run with its recorded replies, without a server.", show_default=False
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        help="Wall-clock limit in minutes.",
        show_default=f"{_DEFAULTS.minutes:g}; {CHAT_MINUTES:g} where a chat server is asked",
    ),
]


def optimize(
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
    policy: PolicyName = None,
    prior: PriorName = None,
    budget: BudgetOption = None,
    minutes: Minutes = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the search.", show_default=str(_DEFAULTS.seed))] = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option("--out", help="Output folder; default: one per run in the home folder.")] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Continue a run instead of starting one.")
    ] = None,
    no_knowledge: NoKnowledge = False,
    no_profile: Annotated[bool, typer.Option("--no-profile", help="Read no hardware counters.")] = False,
    lm: LmFolder = None,
    model: Model = None,
    base_url: BaseUrl = None,
    replies: RepliesOption = None,
    tokens: Tokens = None,
    money: Money = None,
    chat_tools: ChatTools = None,
    replay: Replay = None,
    as_json: AsJson = False,
) -> None:
    """Write, verify and time kernels for one shape and keep the best; with --problem or --task, for a PyTorch module."""
    from cudal2_agent.agent.cli.session import optimize_task, replay_by_id, resume_by_id
    from cudal2_agent.contract.settings.settings import load_settings

    flags: dict[str, Any] = {"policy": policy, "budget": budget, "minutes": minutes, "seed": seed, "device": device}
    flags |= {"use_knowledge": False if no_knowledge else None, "profile": "off" if no_profile else None}
    flags |= {"model": model, "base_url": base_url, "chat_replies": replies, "chat_tools": chat_tools}
    flags |= {"tokens": tokens, "money": money, "schedule_prior": prior, "lm": lm}
    kinds = accumulate, element, layout, bias, activation, gated, arch, mode
    task_flags = TaskFlags(shape, problem, task_name, dims, arithmetic, training, *kinds)
    named = task_flags.named
    if replay is not None:
        if named or resume is not None:
            raise UsageError(f"--replay repeats a run with its own task; leave out {' and '.join(named) or '--resume'}")
        code = replay_by_id(replay, out, as_json=as_json, **flags)
    elif resume is not None:
        if named or out is not None:
            left = " and ".join([*named, *(["--out"] if out is not None else [])])
            raise UsageError(f"--resume continues a run with its own task and output folder; leave out {left}")
        code = resume_by_id(resume, as_json=as_json, **flags)
    else:
        task_flags.check()
        settings = load_settings(**flags)
        code = optimize_task(task_flags.read(settings), settings, out, as_json=as_json)
    raise typer.Exit(code)
