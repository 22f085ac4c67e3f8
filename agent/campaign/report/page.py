"""The page of a campaign: one HTML file with its scripts and data inside. It loads nothing from a network."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from cudal2_agent.agent.campaign.module_figures import module_figures
from cudal2_agent.agent.campaign.report.figures import (
    CLASS_NAMES,
    CLASSES,
    CampaignFigures,
    figures_of,
    has_result,
    on_grid,
    slowest,
)
from cudal2_agent.agent.campaign.report.panel import Winners, kinds_of, schedule_of, step_of
from cudal2_agent.agent.campaign.report.reasons import reason_of
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.evaluation import MODULE_BASELINES
from cudal2_agent.contract.records.module_campaign import CampaignResult, ModuleResult
from cudal2_agent.contract.records.trajectory import Step

TEMPLATE = Path(__file__).parent / "template"
WORST = 10
# Without bokeh's other scripts (WebGL, MathJax, tables), which the page does not use.
COMPONENTS = ["bokeh", "bokeh-widgets"]


@dataclass(frozen=True)
class LineOfFigures:
    """One line of the table of figures."""

    name: str
    figures: CampaignFigures


@dataclass(frozen=True)
class SlowResult:
    """One of the results with the smallest speedup, and what bounds it."""

    row: ShapeResult
    kernel: str
    reason: str


def build_page(
    rows: Sequence[ShapeResult],
    held_out: Iterable[str] = (),
    steps: Iterable[Step] = (),
    modules: Sequence[ModuleResult] = (),
) -> str:
    """The page as HTML.

    `rows`: one per task, of one environment. `held_out`: shapes that nothing was tuned on, reported apart. `steps`: winners in
    the store; where a step is given, the page has its samples, counters and diagnosis. `modules`: their table needs no bokeh.
    Raises: UsageError without bokeh, and where there is nothing to report.
    """
    if not rows and not modules:
        raise UsageError("there is no campaign result to report; run `cudal2-agent campaign` first")
    told: list[CampaignResult] = [*rows, *modules]
    kinds = kinds_of(rows)
    apart = frozenset(held_out)
    known = {(step.run_id, step.index): step for step in steps}
    script, parts, inline = _charts(kinds, apart, known) if rows else ("", {}, "")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html").render(
        title=f"Campaign on {_environment(told)}",
        newest=max(row.finished_at for row in told),
        commits=sorted({row.commit for row in told if row.commit}),
        lines=_lines(kinds, apart),
        classes=[(name, CLASS_NAMES[name]) for name in CLASSES],
        kinds=list(kinds),
        worst={kind: _worst(members, known) for kind, members in kinds.items()},
        lost=[row for row in rows if not has_result(row)],
        modules=modules,
        module_figures=module_figures(modules),
        baselines=[name for name in MODULE_BASELINES if any(name in row.baselines_us for row in modules)],
        scripts=inline,
        script=script,
        parts=parts,
    )


def _lines(kinds: dict[str, list[ShapeResult]], apart: frozenset[str]) -> list[LineOfFigures]:
    """For each kind the grid and, apart from it, other shapes; of both the part that is held out."""
    lines = []
    for kind, rows in kinds.items():
        grid, others = [row for row in rows if on_grid(row)], [row for row in rows if not on_grid(row)]
        for name, members in ((kind, grid), (f"{kind}, off the grid", others)):
            held = [row for row in members if row.task.shape in apart]
            all_held = ", held out of every tuning" if members and len(held) == len(members) else ""
            lines += [LineOfFigures(name + all_held, figures_of(members))] if members else []
            lines += [LineOfFigures("— of these held out of every tuning", figures_of(held))] if held and not all_held else []
    return lines


def _worst(rows: Sequence[ShapeResult], steps: Winners) -> list[SlowResult]:
    slow = slowest(rows, WORST)
    return [SlowResult(row, schedule_of(row.best), reason_of(row, step_of(row, steps))) for row in slow if row.best is not None]


def _environment(rows: Sequence[CampaignResult]) -> str:
    return next((row.environment for row in rows if row.environment), "a machine without a measurement")


def _charts(kinds: dict[str, list[ShapeResult]], apart: frozenset[str], steps: Winners) -> tuple[Any, Any, Any]:
    """The charts' script, their places by name, and bokeh's own scripts, all to be written into the page."""
    try:
        from bokeh.embed import components
        from bokeh.models import TabPanel, Tabs
        from bokeh.resources import Resources
    except ImportError as exc:
        raise UsageError("the page of a campaign needs bokeh; install it with: pip install 'cudal2-agent[report]'") from exc
    from cudal2_agent.agent.campaign.report.charts import Charts

    charts = Charts([row for rows in kinds.values() for row in rows], steps, apart)

    def tabs(draw: Callable[[Sequence[ShapeResult]], Any]) -> Any:
        return Tabs(tabs=[TabPanel(child=draw(rows), title=kind) for kind, rows in kinds.items()])

    drawn = {"maps": tabs(charts.maps), "dots": tabs(charts.dots), "distribution": tabs(charts.distribution)}
    script, parts = components({"text": charts.text, "samples": charts.samples, **drawn})
    return script, parts, Resources(mode="inline", components=COMPONENTS).render()
