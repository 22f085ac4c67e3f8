"""Who proposes best. Three commands, from the repository's root; `-h` after each lists its options.

    python -m benchmarks.proposals evaluate --device cuda:0 --part 1/2 --arms ARMS --out ROWS --minutes 8
    python -m benchmarks.proposals figures ROWS... [--shapes benchmarks/campaigns/held_out.json:off_grid] [--json]
    python -m benchmarks.proposals replay [--rows ROWS...] [--mode server] [--policy NAME] [--json]

`evaluate` is `cudal2-agent prior evaluate` with more arms (see `other_arms`), on the held-out shapes by default. It measures
what all arms propose for a shape together with the schedules that led earlier runs of it, in one process; a row per shape goes
to a file, from which the same command goes on. On two GPUs it runs twice, each with a device, a part and a file of its own; the
home folders, which hold the store, may be one.

`replay` needs no GPU and judges no proposals (see the module `replay`). It orders stored sweeps, or what `evaluate` measured.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import execute, result_arguments, script, stamp, table
from benchmarks.proposals.forest_tuner import other_arms, trained_forest
from benchmarks.proposals.replay import WARNING, ReplayFigures, analytic_ranker, learned_ranker, replay, search_ranker
from benchmarks.proposals.sweeps import stored_sweeps, sweeps_of_rows
from benchmarks.speed.grid import held_out
from cudal2_agent.agent.bench.proposals.arms import own_arms, read_arms
from cudal2_agent.agent.bench.proposals.bench_session import BenchSession
from cudal2_agent.agent.bench.proposals.bench_shapes import read_bench_shapes
from cudal2_agent.agent.bench.proposals.estimates import Estimate
from cudal2_agent.agent.bench.proposals.proposal_rows import BenchSize, ProposalRow, read_rows
from cudal2_agent.agent.campaign.shapes import WantedShape
from cudal2_agent.agent.cli.arguments import choice, read_task
from cudal2_agent.agent.cli.prior import show
from cudal2_agent.agent.cli.render.progress import Progress
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Notice
from cudal2_agent.contract.records.task import Arch, Layout, TimingMode
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.store import open_store

HELD_OUT = "benchmarks/campaigns/held_out.json:grid"
ARMS = "schedule,store,random,lfbo,lfbo-trained"
ROUND = 8


def evaluate(options: argparse.Namespace) -> None:
    settings = load_settings(device=options.device, seed=options.seed)
    before, notices = read_rows([options.out] if options.out.exists() else [])
    wanted, said = read_bench_shapes(options.shapes, options.part)
    names, layout = [name for name in options.arms.split(",") if name], options.layout
    tasks = [
        read_task(
            f"{one.m}x{one.n}x{one.k}", options.accumulate, "f16", one.layout or layout, Arch.SM_90A, options.mode, settings
        )
        for one in wanted
    ]
    size = BenchSize(count=min(ROUND, options.budget), budget=options.budget)
    with Progress() as progress, open_store(settings.store_url) as store:
        for message in (*notices, *said):
            progress.emit(Notice(message=message))
        judged = {task.shape for task in tasks} | held_out()
        arms = read_arms(names, own_arms(store, judged) | other_arms(store, judged), settings.home)
        session = BenchSession(arms, size, settings, store, progress.emit, stamp(__file__, options.commit)["commit"])
        rows = [*before, *session.rows(tasks, before, options.out, options.minutes)]
    show(rows, as_json=options.json)


def figures(options: argparse.Namespace) -> None:
    rows, notices = read_rows(options.files)
    wanted, said = read_bench_shapes(options.shapes, None) if options.shapes else ([], [])
    for message in (*notices, *said):
        print(f"note: {message}", file=sys.stderr)
    show(rows_of(rows, wanted) if options.shapes else rows, as_json=options.json)


def rows_of(rows: Sequence[ProposalRow], shapes: Sequence[WantedShape]) -> list[ProposalRow]:
    """The rows of these shapes. Raises: UsageError where there is none."""
    kept = {(one.m, one.n, one.k) for one in shapes}
    found = [row for row in rows if (row.task.m, row.task.n, row.task.k) in kept]
    if not found:
        raise UsageError("no row is of a shape that --shapes names")
    return found


def replay_sweeps(options: argparse.Namespace) -> None:
    apart, mode = held_out(), choice("--mode", TimingMode, options.mode)
    settings = load_settings()
    with open_store(settings.store_url) as store:
        if options.rows:
            sweeps = sweeps_of_rows([row for row in read_rows(options.rows)[0] if row.task.mode is mode])
        else:
            sweeps = stored_sweeps(store, lambda task: task.shape in apart and task.mode is mode)
        forest, note = trained_forest(store, apart)
    rankers = {
        "schedule": search_ranker,
        "prior": analytic_ranker,
        f"lfbo-trained ({note})": forest.rank,
        **{name: learned_ranker(name, settings.home) for name in options.policy},
    }
    found = replay(sweeps, rankers)
    if options.json:
        print(json.dumps({"warning": WARNING, "figures": [one.model_dump(mode="json") for one in found]}))
        return
    print("\n".join(replay_lines(found)))


def replay_lines(found: Sequence[ReplayFigures]) -> list[str]:
    """The figures as a Markdown table."""
    head = ("order of the measured schedules", "first within 5 %", "best of 8 within 2 %", "first", "best of 8")
    shares = ([_share(figure) for figure in (one.first_within, one.best_within)] for one in found)
    means = ([f"{figure.value:.3f}" for figure in (one.first_mean, one.best_mean)] for one in found)
    cells = ((one.ranker, *share, *mean) for one, share, mean in zip(found, shares, means, strict=True))
    return [f"{found[0].first_within.shapes} held-out shapes; {WARNING}.", "", *table(head, cells)]


def _share(one: Estimate) -> str:
    return f"{100 * one.value:.0f} % ({100 * one.low:.0f}–{100 * one.high:.0f})"


def _parser() -> argparse.ArgumentParser:
    parser = script(__file__, __doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("evaluate", help="measure what arms propose")
    one.add_argument("--shapes", nargs="+", default=[HELD_OUT], help="as of `cudal2-agent prior evaluate`")
    one.add_argument("--arms", default=ARMS, help="with commas; names or files of weights are arms too")
    result_arguments(one)
    one.add_argument("--budget", type=int, default=ROUND, help="candidates of an arm; more than 8 lets it see its times")
    one.add_argument("--minutes", type=float, help="no shape begins that would end later")
    one.add_argument("--part", help="I/N: the I-th of N processes that share the shapes")
    one.add_argument("--mode", default=TimingMode.OFFLINE.value)
    one.add_argument("--layout", default=Layout.NN.value)
    one.add_argument("--accumulate", default="f32")
    one.add_argument("--seed", type=int)
    one.add_argument("--device", help="cuda:N, auto, emulator or none")
    one.set_defaults(run=evaluate)
    two = commands.add_parser("figures", help="figures of rows")
    two.add_argument("files", type=Path, nargs="+")
    two.add_argument("--shapes", action="append", default=[], help="of these shapes alone; as of `evaluate`, may be repeated")
    two.set_defaults(run=figures)
    three = commands.add_parser("replay", help="order the stored schedules of held-out shapes")
    three.add_argument("--mode", default=TimingMode.OFFLINE.value)
    three.add_argument("--rows", type=Path, nargs="+", default=[], help="order what `evaluate` measured instead")
    three.add_argument("--policy", action="append", default=[], help="a learned policy; may be repeated")
    three.set_defaults(run=replay_sweeps)
    for command in (one, two, three):
        command.add_argument("--json", action="store_true")
    return parser


def main() -> None:
    options = _parser().parse_args()
    options.run(options)


if __name__ == "__main__":
    execute(main)
