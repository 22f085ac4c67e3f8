"""The flags that several commands share, and the task that they describe."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from pydantic import ValidationError

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import (
    AccumulatorType,
    Activation,
    Arch,
    ElementType,
    GemmTask,
    Layout,
    TimingMode,
    parse_shape,
)
from cudal2_agent.contract.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from cudal2_agent.contract.settings.settings import Settings

E = TypeVar("E", bound=StrEnum)

Shape = Annotated[str, typer.Option("--shape", help="M x N x K, like 4096x1024x512.", show_default=False)]
Accumulate = Annotated[str, typer.Option("--accumulate", help="Accumulator type: f32 or f16.")]
Element = Annotated[str, typer.Option("--element", help="Element type of A, B and D: f16 or bf16.")]
Bias = Annotated[bool, typer.Option("--bias", help="Add N elements to every row of D, rounded once with the product.")]
ActivationName = Annotated[
    str | None,
    typer.Option(
        "--activation", help="Of each output before it is rounded: relu, gelu, gelu_tanh or silu.", show_default=False
    ),
]
Gated = Annotated[
    bool,
    typer.Option("--gated", help="Multiply the activation of A·B with A·up, as in SwiGLU; `up` is a second matrix like B."),
]
LayoutName = Annotated[str, typer.Option("--layout", help="nn: A and B row-major; tn: B column-major; nt: A column-major.")]
ArchName = Annotated[
    str | None,
    typer.Option(
        "--arch", help="sm_80, sm_86, sm_89, sm_90a or sm_100a; default: the device's, else sm_90a.", show_default=False
    ),
]
Mode = Annotated[str, typer.Option("--mode", help="Timing: offline (back to back) or server (idle GPU, cold L2).")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="auto, emulator, cuda:N or none; elsewhere: exec:COMMAND or spool:FOLDER.",
        show_default=str(RunSettings.model_fields["device"].default),
    ),
]
ReleaseName = Annotated[str, typer.Argument(metavar="RELEASE", help="A release, as `index list` names it.", show_default=False)]
NoKnowledge = Annotated[bool, typer.Option("--no-knowledge", help="Do not search the knowledge base.")]
TrustHost = Annotated[
    bool | None,
    typer.Option(
        "--trust-host", help="Allow --host files and published modules, which run their own code here.", show_default=False
    ),
]
HeldOut = Annotated[Path | None, typer.Option("--held-out", help="JSON list of shapes that never train.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def read_task(
    shape: str,
    accumulate: str,
    element: str,
    layout: str,
    arch: str | None,
    mode: str,
    settings: "Settings",
    *,
    bias: bool = False,
    activation: str | None = None,
    gated: bool = False,
) -> GemmTask:
    """The task that the flags describe. Raises: UsageError, naming the wrong flag."""
    m, n, k = parse_shape(shape)
    chosen = read_target(arch, settings)
    try:
        return GemmTask(
            m=m,
            n=n,
            k=k,
            element=choice("--element", ElementType, element),
            accumulate=choice("--accumulate", AccumulatorType, accumulate),
            layout=choice("--layout", Layout, layout),
            arch=chosen,
            mode=choice("--mode", TimingMode, mode),
            bias=bias,
            activation=None if activation is None else choice("--activation", Activation, activation),
            gated=gated,
        )
    except ValidationError as exc:
        raise UsageError(exc.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")) from exc


def read_arch(text: str) -> Arch:
    """The target that `--arch` names; `sm_90` is `sm_90a`. Raises: UsageError."""
    wanted = text.lower()
    return next((arch for arch in Arch if arch.rstrip("a") == wanted), None) or choice("--arch", Arch, text)


def choice(flag: str, choices: type[E], text: str) -> E:
    """The member that a flag names. Raises: UsageError."""
    try:
        return choices(text.lower())
    except ValueError as exc:
        raise UsageError(f"{flag} {text!r} is not known; choose from {', '.join(choices)}") from exc


def read_target(arch: str | None, settings: "Settings") -> Arch:
    """The target that `--arch` names, else the device's. Raises: UsageError."""
    from cudal2_agent.agent.wiring.gpus import default_arch

    return choice("--arch", Arch, arch) if arch is not None else default_arch(settings.device, settings.worker_wait_s)
