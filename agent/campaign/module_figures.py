"""Figures of the modules of a campaign: what became of them, and speedups over PyTorch. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import geometric_mean, median

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.evaluation import EAGER
from cudal2_agent.contract.records.module_campaign import ModuleResult
from cudal2_agent.contract.reward.speedup import served_ratio


class ModuleFigures(Record):
    """Of the modules of a level; 0 is a folder without one, None all of them.

    `faster`, `kept`, `proved`, `no_plan`, `no_task`: counts by what became of them; `own`: right plans with a kernel of ours.
    `over_fastest`: geometric mean, over the fastest baseline, of what is served of the sound ones (`served_ratio`); 1 where no
    plan was right. `over_eager`: median over eager of what is served of them. None where nothing was measured.
    """

    level: int | None
    modules: int
    faster: int
    kept: int
    proved: int
    no_plan: int
    no_task: int
    own: int
    unsound: int
    over_fastest: float | None = None
    over_eager: float | None = None


def latest_modules(rows: Iterable[ModuleResult]) -> list[ModuleResult]:
    """Of several rows of one module in one environment the last, by level and name."""
    latest = {(row.task.place, row.environment): row for row in sorted(rows, key=lambda row: row.finished_at)}
    return sorted(latest.values(), key=lambda row: (row.task.level, row.task.name, row.environment or ""))


def module_figures(rows: Iterable[ModuleResult]) -> list[ModuleFigures]:
    """One line a level, then one for all; nothing where there are no rows. Of several rows of a module the last counts."""
    found = latest_modules(rows)
    levels = sorted({row.task.level for row in found})
    by_level = [_figures(level, [row for row in found if row.task.level == level]) for level in levels if len(levels) > 1]
    return [*by_level, _figures(None, found)] if found else []


def _figures(level: int | None, rows: Sequence[ModuleResult]) -> ModuleFigures:
    counts = Counter(row.status for row in rows)
    sound = [row for row in rows if row.soundness == "sound"]
    timed = [(row, row.speedup.ratio) for row in sound if row.speedup is not None]
    fastest = [served_ratio(ratio, ratio) for _, ratio in timed]
    fastest += [1.0 for row in sound if fastest and row.status == "no-plan"]
    eager = [served_ratio(found.ratio, ratio) for row, ratio in timed if (found := row.over(EAGER)) is not None]
    return ModuleFigures(
        level=level,
        modules=len(rows),
        faster=counts["faster"],
        kept=counts["keep-pytorch"],
        proved=counts["proved"],
        no_plan=counts["no-plan"],
        no_task=counts["no-task"],
        own=sum(row.best is not None and row.best.kernels > 0 for row in rows),
        unsound=sum(row.soundness == "unsound" for row in rows),
        over_fastest=geometric_mean(fastest) if fastest else None,
        over_eager=median(eager) if eager else None,
    )
