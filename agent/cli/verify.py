"""`cudal2-agent verify`: check, compile, inspect and run one kernel file."""

from pathlib import Path
from typing import Annotated

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
    Shape,
    read_task,
)

EXAMPLE = (
    "Exit code: 0 found right by all tiers of tests, of a large task some on a smaller one or on a sample (with --device none: "
    "it compiles); 1 refused; 2 bad input; 3 some tier did not run in any form, as the first line says.\n\n"
    "\b\nExample:\n  cudal2-agent verify my-kernel/kernel.cu --shape 4096x1024x512"
)
NOT_RUN = 3


def verify(
    file: Annotated[Path, typer.Argument(help="A CUDA source with its launch plan.", show_default=False)],
    shape: Shape,
    accumulate: Accumulate = "f32",
    element: Element = "f16",
    layout: LayoutName = "nn",
    bias: Bias = False,
    activation: ActivationName = None,
    gated: Gated = False,
    arch: ArchName = None,
    mode: Mode = "offline",
    device: Device = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of data and schedules, as a record holds it.", show_default="drawn anew")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check, compile and inspect a kernel file, and run it on a GPU or the emulator. Fails unless it is found right."""
    from cudal2_agent.agent.cli.files import evaluate_files
    from cudal2_agent.agent.cli.render.file_answer import print_verdict
    from cudal2_agent.contract.settings.settings import load_settings

    settings = load_settings(device=device, verify_seed=seed)
    kinds = accumulate, element, layout, arch, mode
    task = read_task(shape, *kinds, settings, bias=bias, activation=activation, gated=gated)
    [result] = evaluate_files([file], task, settings, timed=False)
    print_verdict(result, as_json)
    if result.evaluation.failed:
        raise typer.Exit(1)
    raise typer.Exit(0 if result.passed or settings.device == "none" else NOT_RUN)
