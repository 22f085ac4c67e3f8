"""`cudal2-agent prior list|use|evaluate`: learned priors that are here, the one that searches use, and which proposes best.

A prior ranks schedules before any is tried. The former name of the verb is `policy`.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import Accumulate, ArchName, AsJson, Device, Element, LayoutName, Mode, read_task
from cudal2_agent.contract.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudal2_agent.agent.bench.proposals.proposal_rows import ProposalRow
    from cudal2_agent.contract.records.task import GemmTask
    from cudal2_agent.contract.settings.settings import Settings

LIST_EXAMPLE = "\b\nExample:\n  cudal2-agent prior list"
USE_EXAMPLE = "\b\nExample:\n  cudal2-agent prior use my-weights.safetensors\n  cudal2-agent prior use auto"
EVALUATE_EXAMPLE = (
    "\b\nExample:\n  cudal2-agent prior evaluate --shapes 512x512x512,64x4096x64 --arms schedule,random --out rows.jsonl\n"
    "  cudal2-agent prior evaluate rows.jsonl"
)
DEFAULT_ARMS = "schedule,store,random"
ROUND = 8

BenchShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shapes",
        metavar="SHAPES…",
        help="grid1000, a file, a JSON file (FILE.json:LIST for one of its lists), or shapes with commas; may be repeated. "
        "Without it, figures of FILES alone.",
        show_default=False,
    ),
]

app = typer.Typer(
    help="Learned priors: choose one, and which proposes best.",
    epilog=LIST_EXAMPLE,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def tell_renamed() -> None:
    """For the verb's former name."""
    print("note: `policy` is now `prior`; the old name goes after this version", file=sys.stderr)


@app.command("list", epilog=LIST_EXAMPLE)
def list_priors(as_json: AsJson = False) -> None:
    """The learned priors that are here: built in, and in the folder `policies` of the home folder."""
    from cudal2_agent.agent.cli.render.prior_table import prior_lines
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.policies.schedule.learned.policy_file import known_policies

    settings = load_settings()
    known, reasons = known_policies(settings.home)
    if as_json:
        found = [one.model_dump(mode="json") for one in known]
        print(json.dumps({"used": settings.schedule_prior, "policies": found, "left_out": reasons}))
        return
    print("\n".join(prior_lines(known, settings.schedule_prior, reasons)))


@app.command("use", epilog=USE_EXAMPLE)
def use(
    prior: Annotated[
        str, typer.Argument(metavar="NAME|PATH|analytic|auto", help="A prior of `prior list`, a file, or analytic or auto.")
    ],
    as_json: AsJson = False,
) -> None:
    """Choose what ranks schedules in later searches: a learned prior, the analytic one, or what fits the chip (auto)."""
    from cudal2_agent.contract.settings.settings import keep_choice, load_settings
    from cudal2_agent.policies.schedule.learned.policy_file import ANALYTIC_NAME, AUTO, find_policy, read_weights

    settings = load_settings()
    value = prior
    if prior not in (ANALYTIC_NAME, AUTO):
        found = find_policy(prior, settings.home)
        read_weights(found.path)  # a search would refuse them
        value = str(found.path) if found.origin == "file" else prior
    kept = keep_choice(settings.home, "schedule_prior", value)
    now = load_settings().schedule_prior
    if as_json:
        print(json.dumps({"schedule_prior": value, "kept_in": str(kept), "in_force": now}))
        return
    print(f"searches use {value} (kept in {kept})")
    if now != value:
        print(f"note: CUDAL2_SCHEDULE_PRIOR or cudal2.toml says {now}, which goes first")


@app.command("evaluate", epilog=EVALUATE_EXAMPLE)
def evaluate(
    files: Annotated[list[Path] | None, typer.Argument(help="Files of rows that count too.", show_default=False)] = None,
    shapes: BenchShapes = None,
    arms: Annotated[
        str, typer.Option("--arms", help="With commas: schedule, store, random, or learned priors.")
    ] = DEFAULT_ARMS,
    out: Annotated[
        Path | None, typer.Option("--out", help="File that gets a row per shape; its rows are not measured again.")
    ] = None,
    budget: Annotated[
        int, typer.Option("--budget", min=1, max=512, help="Candidates of an arm; more than 8 lets it see its times.")
    ] = ROUND,
    minutes: Annotated[float | None, typer.Option("--minutes", min=0, help="No shape begins that would end later.")] = None,
    part: Annotated[
        str | None,
        typer.Option("--part", metavar="I/N", help="The I-th of N processes that share the shapes.", show_default=False),
    ] = None,
    layout: LayoutName = "nn",
    element: Element = "f16",
    accumulate: Accumulate = "f32",
    mode: Mode = "offline",
    arch: ArchName = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the arms.", show_default="0")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Measure together what arms propose, and how near it is to the best known. The same command resumes a killed bench."""
    from cudal2_agent.agent.bench.proposals.bench_shapes import read_bench_shapes
    from cudal2_agent.contract.settings.settings import load_settings

    settings = load_settings(seed=seed, device=device)
    rows, notices = _earlier_rows(files or [], out, measures=bool(shapes))
    wanted, said = read_bench_shapes(shapes, part) if shapes else ([], [])
    tasks = []
    if wanted:
        chosen = read_task("16x16x16", accumulate, element, layout, arch, mode, settings).arch
        tasks = [
            read_task(
                f"{one.m}x{one.n}x{one.k}",
                accumulate,
                element,
                one.layout or layout,
                chosen,
                mode,
                settings,
                bias=one.bias,
                activation=one.activation,
                gated=one.gated,
            )
            for one in wanted
        ]
    names = [name for name in arms.split(",") if name]
    show([*rows, *_measured_rows(tasks, names, rows, out, budget, minutes, settings, [*notices, *said])], as_json=as_json)


def _earlier_rows(files: "Sequence[Path]", out: Path | None, *, measures: bool) -> "tuple[list[ProposalRow], list[str]]":
    """The rows that were measured before, and notices. Raises: UsageError where there is nothing to do."""
    from cudal2_agent.agent.bench.proposals.proposal_rows import read_rows

    if measures and out is None:
        raise UsageError("--out is missing; name the file that gets the rows, such as --out rows.jsonl")
    rows, notices = read_rows([*files, *([out] if out is not None and out.exists() else [])])
    if not measures and not rows:
        raise UsageError("there is nothing to evaluate; name --shapes and --out, or files of rows")
    return rows, notices


def _measured_rows(
    tasks: "Sequence[GemmTask]",
    arms: "Sequence[str]",
    before: "Sequence[ProposalRow]",
    out: Path | None,
    budget: int,
    minutes: float | None,
    settings: "Settings",
    notices: "Sequence[str]",
) -> "list[ProposalRow]":
    """The rows of tasks that have none before; none without `out`."""
    from cudal2_agent.agent.bench.proposals.arms import own_arms, read_arms
    from cudal2_agent.agent.bench.proposals.bench_session import BenchSession
    from cudal2_agent.agent.bench.proposals.proposal_rows import BenchSize
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.contract.events import Notice
    from cudal2_agent.store.store import open_store

    with Progress() as progress:
        for message in notices:
            progress.emit(Notice(message=message))
        if out is None or not tasks:
            return []
        with open_store(settings.store_url) as store:
            compared = read_arms(arms, own_arms(store, {task.shape for task in tasks}), settings.home)
            size = BenchSize(count=min(ROUND, budget), budget=budget)
            return BenchSession(compared, size, settings, store, progress.emit).rows(tasks, before, out, minutes)


def show(rows: "Sequence[ProposalRow]", *, as_json: bool) -> None:
    """Print the figures of rows."""
    from cudal2_agent.agent.bench.proposals.proposal_figures import figures_of
    from cudal2_agent.agent.cli.render.prior_table import figure_lines

    figures = figures_of(rows)
    if as_json:
        print(json.dumps({"benches": [one.model_dump(mode="json") for one in figures]}))
        return
    print("\n".join(line for one in figures for line in figure_lines(one)))
