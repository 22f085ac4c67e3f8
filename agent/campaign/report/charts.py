"""The charts of the page, by bokeh: heat maps, speedup over time, distribution. A selected cell or dot fills the panel."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf, nan
from typing import Any

from bokeh.layouts import column, gridplot, row
from bokeh.models import (
    BoxAnnotation,
    ColorBar,
    ColumnDataSource,
    CustomJS,
    Div,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    RadioButtonGroup,
    Span,
)
from bokeh.palettes import Blues256, Oranges256, diverging_palette
from bokeh.plotting import figure

from cudal2_agent.agent.campaign.report.figures import BOUNDS_US, SIZES, has_result, on_grid, plain_speedups, speedups
from cudal2_agent.agent.campaign.report.panel import NOTHING_CHOSEN, Winners, panel_of, samples_of, step_of
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.evaluation import AUTOTUNED

CELL, LABELS, COLUMNS = 15, 58, 5  # pixels of a cell and of the labels of an axis; maps in a line
LOW, HIGH = 0.7, 1.7  # speedups beyond have the colours of the ends
STEPS = 101
BEST, PLAIN, HELD_OUT = "#d1662b", "#3d6fa5", "#222222"
PANEL = 300
WIDTH = COLUMNS * (len(SIZES) * CELL + LABELS)
TIPS = [("shape", "@shape"), ("best kernel", "@best{0.000}"), ("plain launches", "@plain{0.000}")]

_SHOW = """
const chosen = source.selected.indices;
if (chosen.length) {
  const all = details.data, at = source.data.at[chosen[0]];
  const ours = Array.from(all.ours[at]), theirs = Array.from(all.theirs[at]);
  text.text = all.text[at];
  samples.data = {
    time_us: ours.concat(theirs),
    who: ours.map(() => "kernel").concat(theirs.map(() => "AutoTuning")),
    colour: ours.map(() => best).concat(theirs.map(() => "#555555")),
  };
  chart.visible = ours.length > 0;
}
"""
_CHOOSE = """
for (const source of sources) {
  source.data.shown = Array.from(cb_obj.active ? source.data.plain : source.data.best);
  source.change.emit();
}
"""


class Charts:
    """The charts of one page, and the panel beside them: `text`, and `samples` of the selected result's race.

    `steps`: winners in the store. `held_out`: shapes to mark.
    """

    def __init__(self, rows: Sequence[ShapeResult], steps: Winners, held_out: frozenset[str]) -> None:
        self._held_out = held_out
        self._places = {row.task.id: place for place, row in enumerate(rows)}
        winners = [step_of(row, steps) for row in rows]
        samples = [samples_of(row, step) for row, step in zip(rows, winners, strict=True)]
        self._details = ColumnDataSource(
            {
                "text": [panel_of(row, step) for row, step in zip(rows, winners, strict=True)],
                "ours": [ours for ours, _ in samples],
                "theirs": [theirs for _, theirs in samples],
            }
        )
        self.text = Div(text=NOTHING_CHOSEN, width=PANEL)
        self._samples = ColumnDataSource({"time_us": [], "who": [], "colour": []})
        self.samples = figure(
            width=PANEL, height=130, y_range=["AutoTuning", "kernel"], tools="", toolbar_location=None, title="samples, µs"
        )
        self.samples.visible = False
        self.samples.xgrid.visible = False
        self.samples.scatter("time_us", "who", source=self._samples, color="colour", alpha=0.6, size=7)

    def maps(self, rows: Sequence[ShapeResult]) -> Any:
        """A heat map over M and N for each K, and the choice between best kernels and plain launches."""
        mapper = LinearColorMapper(palette=_palette(), low=LOW, high=HIGH, nan_color="#dddddd")
        by_depth = {k: [row for row in rows if row.task.k == k and on_grid(row)] for k in SIZES}
        sources = {k: self._source(members) for k, members in by_depth.items() if members}
        if not sources:
            return Div(text="<p>No shape of these rows is on the grid.</p>")
        which = RadioButtonGroup(labels=["best kernel", "plain launches only"], active=0)
        which.js_on_change("active", CustomJS(args={"sources": list(sources.values())}, code=_CHOOSE))
        charts = [self._map(k, source, mapper) for k, source in sources.items()]
        return column(row(which, _colour_bar(mapper)), gridplot(charts, ncols=COLUMNS, toolbar_location=None))

    def dots(self, rows: Sequence[ShapeResult]) -> Any:
        """Speedup over the time that AutoTuning takes, one dot per shape."""
        labels = {"x_axis_label": "AutoTuning, µs", "y_axis_label": "speedup"}
        chart = figure(width=WIDTH, height=340, x_axis_type="log", tools="tap,box_zoom,reset", **labels)
        for number, (low, high) in enumerate(pairwise(BOUNDS_US)):
            if number % 2:
                band = BoxAnnotation(left=low, right=high if high < inf else None, fill_color="#f3f3f0", fill_alpha=1)
                band.level = "underlay"
                chart.add_layout(band)
        chart.add_layout(_unity())
        for out, name, marker, colour in ((False, "not held out", "circle", BEST), (True, "held out", "triangle", HELD_OUT)):
            members = [row for row in rows if has_result(row) and (row.task.shape in self._held_out) is out]
            if members:
                source = self._source(members)
                look = {"marker": marker, "color": colour, "alpha": 0.55, "size": 6, "legend_label": name}
                chart.scatter("autotuned", "best", source=source, **look)
        chart.add_tools(HoverTool(tooltips=[*TIPS, ("AutoTuning", "@autotuned{0.00} µs")]))
        return chart

    def distribution(self, rows: Sequence[ShapeResult]) -> Any:
        """The share of shapes at or above each speedup."""
        labels = {"x_axis_label": "speedup", "y_axis_label": "share of shapes"}
        chart = figure(width=WIDTH, height=300, tools="", toolbar_location=None, y_range=(0, 1.02), **labels)
        chart.add_layout(_unity("height"))
        found = [row for row in rows if has_result(row)]
        kinds = (("best kernel", BEST, speedups(found)), ("plain launches only", PLAIN, plain_speedups(found)))
        for name, colour, ratios in kinds:
            if ratios:
                shares = [place / len(ratios) for place in range(1, len(ratios) + 1)]
                chart.step(sorted(ratios, reverse=True), shares, mode="after", color=colour, line_width=2, legend_label=name)
        return chart

    def _map(self, k: int, source: Any, mapper: Any) -> Any:
        names, size = [str(size) for size in SIZES], len(SIZES) * CELL
        axes = {"x_range": names, "y_range": names, "x_axis_label": "N", "y_axis_label": "M"}
        chart = figure(title=f"K = {k}", tools="tap", toolbar_location=None, frame_width=size, frame_height=size, **axes)
        fill = {"field": "shown", "transform": mapper}
        kept = {"nonselection_fill_alpha": 1, "nonselection_line_alpha": 1}
        marked = {"selection_line_color": "#e6007e", "selection_line_width": 3}
        chart.rect("n", "m", 0.96, 0.96, source=source, fill_color=fill, line_color="edge", **kept, **marked)
        chart.add_tools(HoverTool(tooltips=TIPS))
        chart.xaxis.major_label_orientation = 1.2
        for axis in (chart.xaxis, chart.yaxis):
            axis.major_label_text_font_size, axis.axis_label_text_font_size, axis.axis_label_standoff = "8px", "10px", 0
        chart.grid.visible = False
        return chart

    def _source(self, rows: Sequence[ShapeResult]) -> Any:
        """The rows as columns. Selecting one of them shows it in the panel. Copies of a column are changed in the browser."""
        best = [row.best.speedup.ratio if row.best else nan for row in rows]
        source = ColumnDataSource(
            {
                "at": [self._places[row.task.id] for row in rows],
                "shape": [row.task.shape for row in rows],
                "m": [str(row.task.m) for row in rows],
                "n": [str(row.task.n) for row in rows],
                "best": best,
                "plain": [row.best_without.speedup.ratio if row.best_without else nan for row in rows],
                "shown": list(best),
                "autotuned": [row.baselines_us.get(AUTOTUNED, nan) for row in rows],
                "edge": [HELD_OUT if row.task.shape in self._held_out else "#ffffff" for row in rows],
            }
        )
        parts = {"text": self.text, "samples": self._samples, "chart": self.samples, "details": self._details, "best": BEST}
        source.selected.js_on_change("indices", CustomJS(args={"source": source, **parts}, code=_SHOW))
        return source


def _palette() -> tuple[str, ...]:
    """Blue for faster and orange for slower than AutoTuning, white at 1; also for readers who cannot tell red from green."""
    return tuple(diverging_palette(Oranges256, Blues256, STEPS, midpoint=(1 - LOW) / (HIGH - LOW)))


def _colour_bar(mapper: Any) -> Any:
    """The scale of all maps, once."""
    chart = figure(
        width=420, height=46, tools="", toolbar_location=None, outline_line_color=None, x_range=(0, 1), y_range=(0, 1)
    )
    chart.axis.visible = chart.grid.visible = False
    chart.scatter([], [])
    ticks = FixedTicker(ticks=[LOW, 0.85, 1.0, 1.15, 1.3, 1.5, HIGH])
    chart.add_layout(ColorBar(color_mapper=mapper, ticker=ticks, orientation="horizontal", height=10, padding=2), "above")
    return chart


def _unity(dimension: str = "width") -> Any:
    return Span(location=1, dimension=dimension, line_color="#222222", line_width=1)
