"""`cudal2-agent bench`: kernel files against the four baselines."""

from pathlib import Path
from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import (
    Accumulate,
    ArchName,
    AsJson,
    Device,
    Element,
    LayoutName,
    Mode,
    Shape,
    TrustHost,
    read_task,
)

EXAMPLE = "\b\nExample:\n  cudal2-agent bench my-kernel/kernel.cu other.cu --shape 4096x1024x512 --json"


def bench(
    files: Annotated[list[Path], typer.Argument(help="CUDA sources with their launch plans.", show_default=False)],
    shape: Shape,
    accumulate: Accumulate = "f32",
    element: Element = "f16",
    layout: LayoutName = "nn",
    arch: ArchName = None,
    mode: Mode = "offline",
    device: Device = None,
    host: Annotated[bool, typer.Option("--host", help="FILES are published C++ launchers for nvcc, not device code.")] = False,
    trust_host: TrustHost = None,
    as_json: AsJson = False,
) -> None:
    """Verify and time kernel files against torch.matmul, cuBLAS and cuBLASLt. Needs a GPU; fails unless all files pass."""
    from cudal2_agent.agent.cli.files import evaluate_files
    from cudal2_agent.agent.cli.render.file_answer import print_times
    from cudal2_agent.contract.settings.settings import load_settings

    settings = load_settings(device=device, trust_host=trust_host)
    task = read_task(shape, accumulate, element, layout, arch, mode, settings)
    results = evaluate_files(files, task, settings, timed=True, host=host)
    print_times(results, as_json)
    raise typer.Exit(0 if all(result.passed for result in results) else 1)
