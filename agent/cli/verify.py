"""`cudal2-agent verify`: check, compile, inspect and run one kernel file."""

from pathlib import Path
from typing import Annotated

import typer

from agent.cli.inputs import Accumulate, ArchName, AsJson, Device, Element, LayoutName, Mode, Shape, read_task

EXAMPLE = "\b\nExample:\n  cudal2-agent verify my-kernel/kernel.cu --shape 4096x1024x512"


def verify(
    file: Annotated[Path, typer.Argument(help="A CUDA source with its launch plan.", show_default=False)],
    shape: Shape,
    accumulate: Accumulate = "f32",
    element: Element = "f16",
    layout: LayoutName = "nn",
    arch: ArchName = None,
    mode: Mode = "offline",
    device: Device = None,
    host: Annotated[bool, typer.Option("--host", help="FILE is a C++ launcher for nvcc, not device code.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check, compile and inspect a kernel file, and run it where there is a GPU; fails unless it passes."""
    from agent.cli.files import evaluate_files, print_verdict
    from contract.settings import load_settings

    settings = load_settings(device=device)
    task = read_task(shape, accumulate, element, layout, arch, mode, settings)
    [result] = evaluate_files([file], task, settings, timed=False, host=host)
    print_verdict(result, as_json)
    raise typer.Exit(0 if result.passed else 1)
