"""`cudal2-agent bench`: kernel files against the four baselines; published modules against PyTorch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    TrustHost,
    read_task,
)
from cudal2_agent.contract.errors import UsageError

if TYPE_CHECKING:
    from cudal2_agent.contract.settings.settings import Settings

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent bench my-kernel/kernel.cu other.cu --shape 4096x1024x512 --json\n"
    "  cudal2-agent bench ModelNew.py --problem my_module.py --trust-host"
)


def bench(
    files: Annotated[list[Path], typer.Argument(help="CUDA sources with their launch plans.", show_default=False)],
    shape: Annotated[str | None, typer.Option("--shape", help="M x N x K, like 4096x1024x512.", show_default=False)] = None,
    problem: Annotated[
        Path | None,
        typer.Option(
            "--problem", metavar="FILE", help="FILES are published modules (ModelNew) for this problem.", show_default=False
        ),
    ] = None,
    arithmetic: Annotated[str, typer.Option("--arithmetic", help="With --problem: f32 (no TF32), tf32, f16 or bf16.")] = "f32",
    dims: Annotated[
        str | None, typer.Option("--dims", help="With --problem: other sizes, like batch_size=16.", show_default=False)
    ] = None,
    training: Annotated[bool, typer.Option("--training", help="With --problem: the modules in training mode.")] = False,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.1, help="With --problem: limit of a file, compiling included.")
    ] = 15,
    accumulate: Accumulate = "f32",
    element: Element = "f16",
    layout: LayoutName = "nn",
    bias: Bias = False,
    activation: ActivationName = None,
    gated: Gated = False,
    arch: ArchName = None,
    mode: Mode = "offline",
    device: Device = None,
    host: Annotated[bool, typer.Option("--host", help="FILES are published C++ launchers for nvcc, not device code.")] = False,
    trust_host: TrustHost = None,
    as_json: AsJson = False,
) -> None:
    """Verify and time kernel files against torch.matmul, cuBLAS and cuBLASLt, or with --problem what others published for a
    PyTorch module. Needs a GPU; fails unless all files pass.
    """
    from cudal2_agent.agent.cli.files import evaluate_files
    from cudal2_agent.agent.cli.render.file_answer import print_times
    from cudal2_agent.contract.settings.settings import load_settings

    settings = load_settings(device=device, trust_host=trust_host)
    if (shape is None) == (problem is None):
        raise UsageError("name either --shape, for kernels of a matrix product, or --problem, for published modules")
    if problem is not None:
        raise typer.Exit(_published(files, problem, dims, arithmetic, training, arch, mode, minutes, settings, as_json))
    assert shape is not None
    kinds = accumulate, element, layout, arch, mode
    task = read_task(shape, *kinds, settings, bias=bias, activation=activation, gated=gated)
    results = evaluate_files(files, task, settings, timed=True, host=host)
    print_times(results, as_json)
    raise typer.Exit(0 if all(result.passed for result in results) else 1)


def _published(
    files: list[Path],
    problem: Path,
    dims: str | None,
    arithmetic: str,
    training: bool,
    arch: str | None,
    mode: str,
    minutes: float,
    settings: "Settings",
    as_json: bool,
) -> int:
    """The exit code: 0 where every module is right on every case."""
    from cudal2_agent.agent.bench.published_files import measure_files, read_trusted
    from cudal2_agent.agent.cli.module_flags import read_module, read_problem
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.agent.cli.render.published_answer import print_published

    texts = read_trusted(files, settings)  # before the problem is traced and checked
    task = read_module(read_problem(problem), problem.stem, dims, arithmetic, training, arch, mode, settings)
    with Progress() as progress:
        rows = list(measure_files(files, texts, task, settings, progress.emit, minutes))
    print_published(rows, as_json)
    return 0 if all(row.right for row in rows) else 1
