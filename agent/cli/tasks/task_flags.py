"""The flags that name a task of either kind, a matrix product or a PyTorch module, and the task that they name."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import read_task
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_task import Task

if TYPE_CHECKING:
    from cudal2_agent.contract.settings.settings import Settings

AnyShape = Annotated[str | None, typer.Option("--shape", help="M x N x K, like 4096x1024x512.", show_default=False)]
Problem = Annotated[
    Path | None, typer.Option("--problem", metavar="FILE", help="A PyTorch module in KernelBench's form.", show_default=False)
]
TaskName = Annotated[
    str | None, typer.Option("--task", help="A problem of an added collection, like kernelbench:1/19.", show_default=False)
]
Dims = Annotated[
    str | None, typer.Option("--dims", help="Other sizes of a module, like batch_size=16,dim=64.", show_default="the file's")
]
ArithmeticName = Annotated[str, typer.Option("--arithmetic", help="Of a module: f32, tf32, f16 or bf16.")]
Training = Annotated[bool, typer.Option("--training", help="Run a module in training mode.")]


@dataclass(frozen=True)
class TaskFlags:
    """As the command line has them."""

    shape: str | None
    problem: Path | None
    task_name: str | None
    dims: str | None
    arithmetic: str
    training: bool
    accumulate: str
    element: str
    layout: str
    bias: bool
    activation: str | None
    gated: bool
    arch: str | None
    mode: str

    @property
    def named(self) -> list[str]:
        """The flags that name a task."""
        given = (("--shape", self.shape), ("--problem", self.problem), ("--task", self.task_name))
        return [flag for flag, value in given if value is not None]

    def check(self) -> None:
        """Raises: UsageError unless they name one task, and nothing that is of the other kind."""
        if len(self.named) > 1:
            raise UsageError(f"{' and '.join(self.named)} name two tasks; a run has one")
        if not self.named:
            raise UsageError("--shape is missing; write for example --shape 4096x1024x512, or --problem FILE for a module")
        of_module = {"--dims": self.dims, "--arithmetic": self.arithmetic != "f32", "--training": self.training}
        of_product = {
            "--accumulate": self.accumulate != "f32",
            "--element": self.element != "f16",
            "--layout": self.layout != "nn",
            "--bias": self.bias,
            "--activation": self.activation is not None,
            "--gated": self.gated,
        }
        of_other_kind = [flag for flag, given in (of_module if self.shape is not None else of_product).items() if given]
        if of_other_kind:
            kind = "a matrix product" if self.shape is not None else "a module"
            raise UsageError(f"{kind} has no {of_other_kind[0]}; leave it out")

    def read(self, settings: "Settings") -> Task:
        """The task. A module's file is traced in a jailed child. Raises: UsageError, naming the wrong flag."""
        if self.shape is not None:
            kinds = self.accumulate, self.element, self.layout, self.arch, self.mode
            bias, activation, gated = self.bias, self.activation, self.gated
            return read_task(self.shape, *kinds, settings, bias=bias, activation=activation, gated=gated)
        from cudal2_agent.agent.cli.module_flags import read_module, read_named, read_problem

        text = read_problem(self.problem) if self.problem is not None else read_named(self.task_name or "", settings)
        name = self.problem.stem if self.problem is not None else self.task_name or ""
        return read_module(text, name, self.dims, self.arithmetic, self.training, self.arch, self.mode, settings)
