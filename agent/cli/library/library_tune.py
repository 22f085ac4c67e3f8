"""`cudal2-agent library tune`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson, Element, LayoutName
from cudal2_agent.agent.cli.library.library_source import ExtendedLibrary, WrittenLibrary

if TYPE_CHECKING:
    from cudal2.dispatch.decision import GpuIdentity
    from cudal2.library.kernel_library import KernelLibrary
    from cudal2_agent.agent.library.algorithms.tuned_products import TunedProduct
    from cudal2_agent.contract.records.task import GemmTask

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent library tune --shapes products.json --out mine.jsonl.gz\n"
    "  cudal2-agent library tune --shapes 2048x8192x1024 --layout tn --library h200 --out h200-tuned"
)
ROWS = Path("library-tune.jsonl")


def tune(
    shapes: Annotated[
        list[str],
        typer.Option(
            "--shapes",
            metavar="SHAPES…",
            help="A file (of `campaign record`, or a shape per line), or shapes with commas; may be repeated.",
        ),
    ],
    out: WrittenLibrary,
    library: ExtendedLibrary = None,
    layout: LayoutName = "nn",
    element: Element = "f16",
    rows: Annotated[
        Path, typer.Option("--rows", metavar="FILE", help="Where rows are added; a later tuning resumes there.")
    ] = ROWS,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="No matrix product begins later.", min=0, show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add to a library the algorithms of cuBLASLt that beat PyTorch's own product, a second or so per product.

    For products that no kernel of the library is chosen for. The GPU at hand measures all that cuBLASLt suggests. The
    algorithm that one race chooses is judged by another, and kept where the whole interval beats torch.mm.
    """
    from cudal2_agent.agent.campaign.shapes import read_shapes
    from cudal2_agent.agent.cli.arguments import choice
    from cudal2_agent.agent.library.algorithms.suggested_algorithms import CudaProductBench, environment_of, open_platform
    from cudal2_agent.agent.library.algorithms.tuned_products import tune_products
    from cudal2_agent.agent.library.library_building import extend_library, library_to_extend
    from cudal2_agent.contract.errors import DeviceUnavailable
    from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout

    named, notices = read_shapes(shapes)
    wanted = [one for one in named if not one.bias and one.activation is None]
    if len(wanted) < len(named):
        notices.append(
            f"{len(named) - len(wanted)} products add a bias or have an activation, which a stored algorithm has not"
        )
    own, type_ = choice("--layout", Layout, layout), choice("--element", ElementType, element)
    platform, identity = open_platform()
    if identity.arch is None:
        raise DeviceUnavailable(f"{identity.gpu} is of an architecture that this product has no tasks for")
    base = library_to_extend(library, identity.gpu)
    tasks = [GemmTask(m=w.m, n=w.n, k=w.k, layout=w.layout or own, element=type_, arch=identity.arch) for w in wanted]
    left = [task for task in tasks if not _served(base, task, identity)]
    if not as_json:
        print("".join(f"note: {notice}\n" for notice in notices), end="")
        print(
            f"{len(tasks)} matrix products on {identity.gpu}, {len(tasks) - len(left)} of which have a kernel; rows in {rows}",
            flush=True,
        )
    done = list["TunedProduct"]()
    found = tune_products(
        left,
        lambda task: CudaProductBench(task, platform, identity),
        rows,
        chip=identity.gpu,
        environment=environment_of(identity),
        end_s=None if minutes is None else minutes * 60,
    )
    for row in found:
        done.append(row)
        print(row.model_dump_json() if as_json else _line(row), flush=True)
    manifest = extend_library(base, done, out, identity.gpu)
    if as_json:
        print(json.dumps({"library": str(out) if manifest else None, "tuned": len(done), "left": len(left) - len(done)}))
        return
    print(_summary(done, len(left) - len(done)))
    held = f"{len(manifest.entries):,} entries and {len(manifest.algorithms):,} algorithms in {out}" if manifest else ""
    print(held or "nothing is faster than PyTorch, so that no library was written")


def _served(base: "KernelLibrary | None", task: "GemmTask", identity: "GpuIdentity") -> bool:
    """Whether a kernel of the library is chosen for the product on this GPU with its driver."""
    from cudal2.library.kernel_library import key_of

    entry = base.find(key_of(task)) if base else None
    return entry is not None and entry.wins and identity.measured(entry.evaluation.environment) is None


def _line(row: "TunedProduct") -> str:
    where = f"{row.task.shape} {row.task.layout}"
    if row.speedup is None:
        return f"{where}: no algorithm: {row.note or 'cuBLASLt suggests nothing'}"
    note = f"; WRONG: {row.note}" if row.note else ""
    told = f"{row.time_us:.2f} us, {row.speedup.ratio:.3f}x of torch.mm ({row.speedup.low:.3f}–{row.speedup.high:.3f})"
    kept = "" if row.faster else ", left to PyTorch"
    return f"{where}: {told}, best of {row.tried}{kept}, {row.seconds:.1f} s{note}"


def _summary(rows: "list[TunedProduct]", left: int) -> str:
    faster = sum(row.faster for row in rows)
    more = f"; {left:,} are left, the same command resumes" if left else ""
    return f"{len(rows):,} tuned: {faster:,} got an algorithm, {len(rows) - faster:,} are left to PyTorch{more}"
