"""`cudal2-agent profile`: the bottlenecks of a kernel file, from hardware counters where they can be read."""

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

EXAMPLE = "\b\nExample:\n  cudal2-agent profile my-kernel/kernel.cu --shape 4096x1024x512"


def profile(
    file: Annotated[Path, typer.Argument(help="A CUDA source with its launch plan.", show_default=False)],
    shape: Shape,
    other: Annotated[Path | None, typer.Argument(help="A second file, to explain the differences.", show_default=False)] = None,
    accumulate: Accumulate = "f32",
    element: Element = "f16",
    layout: LayoutName = "nn",
    bias: Bias = False,
    activation: ActivationName = None,
    gated: Gated = False,
    arch: ArchName = None,
    mode: Mode = "offline",
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Verify, time and profile a kernel file with Nsight Compute, and print its bottlenecks. Two files are compared.

    Without a GPU or without ncu, the diagnosis rests on the compiled code or on the time, and says so.
    """
    from cudal2_agent.agent.cli.files import profile_files
    from cudal2_agent.agent.cli.render.file_answer import print_comparison
    from cudal2_agent.contract.settings.settings import load_settings

    settings = load_settings(device=device)
    kinds = accumulate, element, layout, arch, mode
    task = read_task(shape, *kinds, settings, bias=bias, activation=activation, gated=gated)
    comparison, failures = profile_files([file, *([other] if other else [])], task, settings)
    print_comparison(comparison, task.arch, as_json)
    if failures:
        raise failures[0]
    raise typer.Exit(0 if all(each.diagnosis for each in comparison.files) else 1)
