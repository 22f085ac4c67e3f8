"""A campaign: its answer on stdout, and its live table on stderr.

Without a terminal, the table is a line per shape and now and then one of totals.
"""

import json
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cudal2_agent.agent.campaign.module_figures import ModuleFigures, module_figures
from cudal2_agent.agent.campaign.watching import CampaignCost, ClassFigures, Overview, class_figures, cost_of
from cudal2_agent.agent.cli.render.alignment import aligned, cell
from cudal2_agent.agent.cli.render.plain_console import PlainConsole
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.module_campaign import CampaignResult, ModuleResult
from cudal2_agent.store.campaign_queue import CampaignQueue, FailedItem

TOTALS_S = 30.0  # between two lines of totals where there is no terminal
_SHOWN_FAILURES = 10


class CampaignTable:
    """`agent.campaign.campaign.Display`."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or PlainConsole()
        self._live: Live | None = None
        self._totals_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def finished(self, result: CampaignResult) -> None:
        line = module_line(result) if isinstance(result, ModuleResult) else result_line(result)
        self._console.print(line, markup=False)

    def show(self, overview: Overview) -> None:
        if self._live is not None:
            found = [*class_lines(overview.classes), *module_lines(overview.modules)]
            lines = ["", *totals(overview), "", *found, "", *workers(overview)]
            self._live.update(Group(*(Text(line) for line in lines)), refresh=True)
        elif time.monotonic() - self._totals_s > TOTALS_S:
            self._totals_s = time.monotonic()
            self._console.print("; ".join(totals(overview)), markup=False)

    def note(self, message: str) -> None:
        self._console.print(f"note: {' '.join(message.split())}", markup=False)


def result_line(result: ShapeResult) -> str:
    """One shape in one line."""
    task = result.task
    cost = f"{result.candidates} candidates, {result.seconds:.1f} s"
    if result.best is None:
        return f"{task.shape} {task.layout}{task.epilogue}: {result.reason}; {cost}"
    best, plain = result.best, result.best_without
    without = f", {plain.speedup.ratio:.3f}x without programmatic launch" if plain and best.programmatic else ""
    return f"{task.shape} {task.layout}{task.epilogue}: {best.time_us:.2f} us, {best.speedup.ratio:.3f}x{without}; {cost}"


def totals(overview: Overview) -> list[str]:
    left = f"{_clock(overview.left_s)} left" if overview.left_s is not None else "time left unknown"
    busy = f"GPUs busy {overview.busy:.0%}" if overview.busy is not None else "GPUs busy –"
    failed = f", {overview.failed} failed" if overview.failed else ""
    proofs = f", {overview.unproved} to prove" if overview.unproved else ""
    return [
        f"campaign {overview.name}: {overview.done} of {overview.total} {_what(overview.of_modules)}{failed}{proofs}; {left}",
        f"{overview.candidates_per_s:.2f} candidates/s, {busy}, {_clock(overview.spent_s)} so far",
    ]


def workers(overview: Overview) -> list[str]:
    now_s = time.monotonic()
    rows = [(one.device, f"{one.candidates}", _clock(now_s - one.since_s), one.doing or "–") for one in overview.workers]
    return aligned([("worker", "candidates", "for", "doing"), *rows], right=frozenset((1, 2)), flexible=3)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def print_campaign(queue: CampaignQueue, failed: Sequence[FailedItem] = (), *, as_json: bool) -> None:
    """The answer of a campaign: how far it is, and its figures."""
    name, counts = queue.name, queue.counts()
    results, modules = [one.result for one in queue.results()], [one.result for one in queue.modules()]
    classes, cost, of_modules = class_figures(results), cost_of([*results, *modules]), module_figures(modules)
    if as_json:
        found = {"campaign": name, **counts.model_dump(), "classes": [one.model_dump() for one in classes]}
        found["modules"] = [one.model_dump() for one in of_modules]
        failures = [{"shape": one.task.shape, "reason": one.reason} for one in failed]
        print(json.dumps({**found, "cost": cost.model_dump(), "failures": failures}))
        return
    done = f"{counts.done} of {counts.total} {_what(queue.holds_modules())} done"
    print(f"campaign {name}: {done}, {counts.left} left, {counts.failed} failed")
    if results or not modules:
        print("\n".join(class_lines(classes)))
    if modules:
        print("\n".join(module_lines(of_modules)))
    if results or modules:
        print(cost_line(cost, "task" if modules else "shape"))
    for one in failed[:_SHOWN_FAILURES]:
        print(f"failed: {one.task.shape} after {one.attempts} attempts: {' '.join(one.reason.split())}")
    if len(failed) > _SHOWN_FAILURES:
        print(f"… and {len(failed) - _SHOWN_FAILURES} more; --json has all")


def module_line(result: ModuleResult) -> str:
    """One module in one line."""
    cost = f"{result.candidates} candidates, {result.seconds:.1f} s"
    sound = "" if result.soundness == "sound" or result.status == "no-task" else f"; {result.soundness}"
    return f"{result.task.name}: {_outcome(result)}{sound}; {cost}"


def _outcome(result: ModuleResult) -> str:
    best, speedup = result.best, result.speedup
    if best is None:
        return f"{result.status.replace('-', ' ')}: {result.reason}"
    plan = f"{_count(best.kernels, 'kernel')}, {_count(best.library_calls, 'library call')}"
    if best.time_us is None or speedup is None:
        return f"{best.found_right}, {plan}"
    keep = "keep PyTorch's: " if result.status == "keep-pytorch" else ""
    interval = f"{speedup.low:.3f} to {speedup.high:.3f}"
    return f"{keep}{best.time_us:.2f} us, {speedup.ratio:.3f}x of {speedup.baseline} ({interval}), {plan}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def module_lines(figures: Sequence[ModuleFigures]) -> list[str]:
    """One line per level of modules, and one for all. `own`: with kernels of ours; the last two are speedups over PyTorch."""
    if not figures:
        return []
    head = ("modules", "all", "faster", "kept", "proved", "no plan", "no task", "own", "fastest", "eager")
    rows = [
        (
            "all" if one.level is None else f"level {one.level}",
            *map(str, (one.modules, one.faster, one.kept, one.proved, one.no_plan, one.no_task, one.own)),
            cell(one.over_fastest, ".3f", "x"),
            cell(one.over_eager, ".3f", "x"),
        )
        for one in figures
    ]
    return aligned([head, *rows], right=frozenset(range(1, len(head))))


def _what(of_modules: bool) -> str:
    return "tasks" if of_modules else "shapes"


def class_lines(classes: Sequence[ClassFigures]) -> list[str]:
    """One line per class of shapes by the time of AutoTuning; nothing where there are no classes."""
    if not classes:
        return []
    head = ("AutoTuning takes", "shapes", "speedup", "without programmatic launch", "faster")
    rows = [
        (
            one.name,
            str(one.shapes),
            cell(one.geomean, ".3f", "x"),
            cell(one.geomean_without, ".3f", "x"),
            cell(one.faster, ".0%"),
        )
        for one in classes
    ]
    return aligned([head, *rows], right=frozenset(range(1, len(head))))


def cost_line(cost: CampaignCost, what: str = "shape") -> str:
    """What a shape or a task took, and the memory of the campaign; empty before the first shape."""
    per_shape = [
        f"{value:.{digits}f} {unit}"
        for value, digits, unit in (
            (cost.candidates, 0, "candidates"),
            (cost.gpu_s, 1, "GPU s"),
            (cost.host_cpu_s, 1, "host CPU s"),
        )
        if value is not None
    ]
    if cost.search_peak_mib is None or cost.campaign_peak_mib is None:
        memory = ""
    else:
        memory = f"; memory at most {cost.search_peak_mib:,.0f} MiB per search, {cost.campaign_peak_mib:,.0f} MiB in all"
    return f"per {what} {', '.join(per_shape)}{memory}" if per_shape else ""
