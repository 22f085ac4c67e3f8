"""`cudal2-agent tasks`: problem files of PyTorch modules, and collections of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson

if TYPE_CHECKING:
    from cudal2_agent.agent.tasks.task_check import TaskRow
    from cudal2_agent.contract.records.module_task import ModuleTask

app = typer.Typer(
    help="Problem files of PyTorch modules, in KernelBench's form.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="\b\nExample:\n  cudal2-agent tasks check my_module.py",
)
NOT_ALL = 1
ROWS = Path("tasks-check.jsonl")

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A file, a folder, kernelbench, kernelbench:1 or kernelbench:1/19.", show_default=False
    ),
]
ArithmeticName = Annotated[str, typer.Option("--arithmetic", help="f32 (no TF32), tf32, f16 or bf16.")]
Training = Annotated[bool, typer.Option("--training", help="The module in training mode; its states are compared.")]


@app.command("list", epilog="\b\nExample:\n  cudal2-agent tasks list kernelbench:1")
def list_(
    source: Annotated[
        str | None, typer.Argument(metavar="[SOURCE]", help="As of check; by default all collections.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The problems of a source, or the collections that were added. Nothing is run."""
    import json

    from cudal2_agent.agent.tasks.problem_sources import collections, in_collection, problems_of
    from cudal2_agent.contract.settings.settings import load_settings

    home = load_settings().home
    names = [source] if source else list(collections(home))
    found = [each for name in names for each in (problems_of(name, home) if source else in_collection(name, home))]
    if as_json:
        print("".join(f"{json.dumps({'name': each.name, 'path': str(each.path)})}\n" for each in found), end="")
    elif source:
        print("\n".join(f"{each.name}  {each.path.stem}" for each in found))
    else:
        counts = {name: sum(each.name.startswith(f"{name}:") for each in found) for name in names}
        lines = [f"{name}: {count:,} problems" for name, count in counts.items()]
        print("\n".join(lines) or "no collection was added; bring one with: cudal2-agent tasks add PATH|git+URL@TAG")


@app.command("add", epilog="\b\nExample:\n  cudal2-agent tasks add ~/KernelBench --name kernelbench")
def add(
    source: Annotated[str, typer.Argument(metavar="PATH|git+URL@TAG", help="A folder, or a repository.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Of the collection; by default the folder's, in small letters.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a collection: link a folder, or fetch a repository. Its files run when they are checked or optimized, in a jail."""
    import json

    from cudal2_agent.agent.tasks.adding import add_collection
    from cudal2_agent.contract.settings.settings import load_settings

    added, count = add_collection(source, name, load_settings().home)
    if as_json:
        print(json.dumps({"name": added, "problems": count}))
        return
    print(f"{added}: {count:,} problems; see them with: cudal2-agent tasks list {added}")


@app.command("show", epilog="\b\nExample:\n  cudal2-agent tasks show kernelbench:1/19")
def show(
    source: Source,
    arithmetic: ArithmeticName = "f32",
    training: Training = False,
    as_json: AsJson = False,
) -> None:
    """The task that a problem file states: buffers, sizes, operations by kind, work, and the least time of a GPU."""
    from cudal2_agent.agent.cli.arguments import choice
    from cudal2_agent.agent.cli.module_flags import read_problem
    from cudal2_agent.agent.tasks.problem_sources import problems_of
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.records.module_task import Arithmetic
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.sandbox.modules.tracing.tracer import open_tracer

    found = problems_of(source, load_settings().home)
    if len(found) > 1:
        raise UsageError(f"{source} holds {len(found):,} problems; name one of them, as `tasks list {source}` does")
    kind = choice("--arithmetic", Arithmetic, arithmetic)
    with open_tracer() as tracer:
        task = tracer.trace(read_problem(found[0].path), found[0].name, arithmetic=kind, training=training)
    print(task.model_dump_json() if as_json else "\n".join(_lines(task)))


@app.command("check", epilog="\b\nExample:\n  cudal2-agent tasks check kernelbench:1 --rows level1.jsonl")
def check(
    source: Source,
    rows: Annotated[
        Path | None,
        typer.Option(
            "--rows", "--resume", metavar="FILE", help="Where rows are added; a later check resumes there.", show_default=False
        ),
    ] = None,
    arithmetic: ArithmeticName = "f32",
    training: Training = False,
    trace_only: Annotated[bool, typer.Option("--trace-only", help="Try no wrong programs.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="What inputs are drawn by.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Say of each problem whether it is a task, and whether zeros, an old answer or a dropped operation pass its tests.

    The file runs in a jail. Wrong programs are tried at small sizes. Fails unless every problem is a sound task.
    """
    from functools import partial

    from cudal2_agent.agent.cli.arguments import choice
    from cudal2_agent.agent.cli.module_flags import read_problem
    from cudal2_agent.agent.library.row_file import append_row, read_row_file
    from cudal2_agent.agent.tasks.problem_sources import problems_of
    from cudal2_agent.agent.tasks.task_check import CheckHow, CheckRows, TaskRow, check_problems
    from cudal2_agent.contract.records.module_task import Arithmetic
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.sandbox.modules.tracing.tracer import open_tracer

    problems = problems_of(source, load_settings().home)
    kind = choice("--arithmetic", Arithmetic, arithmetic)
    kept = CheckRows(read_row_file(rows, TaskRow, "tasks check"), partial(append_row, rows)) if rows else None
    done: list[TaskRow] = []
    with open_tracer() as tracer:
        how = CheckHow(kind, training, seed, None if trace_only else tracer.soundness)
        for row in check_problems(problems, tracer, read_problem, how, kept):
            done.append(row)
            print(row.model_dump_json() if as_json else _row(row, f"[{len(done):,}/{len(problems):,}] "), flush=True)
    if not as_json:
        print(_summary(done))
    wanted = {"sound", "unchecked"} if trace_only else {"sound"}
    raise typer.Exit(0 if all(row.status in wanted for row in done) else NOT_ALL)


def _row(row: "TaskRow", place: str) -> str:
    operations = f", {row.operations:,} operation{'s' * (row.operations > 1)}" if row.operations else ""
    passed = ", ".join(
        f"{each.kind}{f' {each.operation}' if each.operation else ''}" for each in row.accepted if each.on == "own"
    )
    own = f"; on its own inputs these pass: {passed}" if passed else ""
    return f"{place}{row.name}: {row.status}{operations}{f': {row.reason}' if row.reason else ''}{own}, {row.seconds:.1f} s"


def _summary(rows: "list[TaskRow]") -> str:
    counts = {status: sum(row.status == status for row in rows) for status in ("sound", "unsound", "unchecked", "untraceable")}
    told = ", ".join(f"{count:,} {status}" for status, count in counts.items() if count)
    return f"{sum(row.is_task for row in rows):,} of {len(rows):,} are tasks: {told}"


def _lines(task: "ModuleTask") -> list[str]:
    from collections import Counter

    from cudal2_agent.agent.cli.render.alignment import aligned
    from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
    from cudal2_agent.contract.reward.roofline import roofline_us

    chip = REFERENCE_CHIPS[task.arch]
    kinds = Counter(node.op.removeprefix("aten.").partition(".")[0] for node in task.graph.nodes)
    buffers = [("buffer", "role", "shape", "element", "bytes", "values")]
    for each in task.buffers:
        values = (
            "fixed"
            if each.fixed
            else f"{each.low:g} to {each.high:g}"
            if each.low is not None and each.high is not None
            else ""
        )
        shape = "x".join(map(str, each.shape)) or "one"
        buffers.append((each.name, each.role.value, shape, each.element.value, f"{each.bytes:,}", values))
    return [
        f"task {task.id}: {task.name}, {task.arithmetic}, {'training' if task.training else 'eval'}",
        f"sizes: {', '.join(f'{name}={size}' for name, size in task.dims.items()) or 'none at the top of the file'}",
        *aligned(buffers, right=frozenset((4,)), flexible=0),
        f"operations: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common()) or 'none'}",
        f"work: {task.flops / 1e9:,.3f} GFLOP of products, {task.operand_bytes / 1e6:,.3f} MB at least",
        f"floor: {roofline_us(task, chip):,.2f} us on {chip.name}, if every buffer is moved once",
        *([f"note: {each}" for each in task.notes]),
    ]
