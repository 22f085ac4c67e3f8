"""A run's progress as SVG: the time of each step, the best so far, the baselines. Needs no plotting library."""

from collections.abc import Sequence
from html import escape
from math import log10

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.evaluation import Measured, Unmeasured
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.speedup import median_us

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 64, 170, 36, 40
INK, FAINT, POINT, LINE = "#333333", "#999999", "#8fb7dd", "#1f5f99"
_TICKS = 5


class _Scale(Record):
    """Maps (step index, microseconds) to pixels. The time axis is logarithmic because candidates differ by factors."""

    last_index: int
    low_us: float
    high_us: float

    def x(self, index: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * index / max(self.last_index, 1)

    def y(self, time_us: float) -> float:
        share = (log10(time_us) - log10(self.low_us)) / (log10(self.high_us) - log10(self.low_us))
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def draw_progress(steps: Sequence[Step], best: Step | None) -> str:
    """An SVG document; without any time, a note in its place."""
    measured = any(step.evaluation.time_us is not None for step in steps)
    points = [(step.index, time_us) for step in steps if (time_us := _time_us(step, measured)) is not None]
    if not points:
        return _document([_text(WIDTH / 2, HEIGHT / 2, "no candidate passed", anchor="middle")])
    lines = _baselines(best)
    times = [time_us for _, time_us in [*points, *lines]]
    scale = _Scale(last_index=max(step.index for step in steps), low_us=min(times) / 1.1, high_us=max(times) * 1.1)
    title = "device time by step, us" if measured else "PREDICTED time by step, us (nothing was measured)"
    return _document([_text(LEFT, 20, title), *_axis(scale), *_levels(lines, scale), *_marks(points, scale)])


def _time_us(step: Step, measured: bool) -> float | None:
    """A measured time, or where no step is measured a predicted one. The two are never drawn together."""
    evaluation = step.evaluation
    if measured or (isinstance(evaluation, Unmeasured) and evaluation.prediction.is_floor):
        return evaluation.time_us
    return evaluation.predicted_us


def _baselines(best: Step | None) -> list[tuple[str, float]]:
    if best is None or not isinstance(best.evaluation, Measured):
        return []
    return [(timing.name, median_us(timing)) for timing in best.evaluation.baselines]


def _axis(scale: _Scale) -> list[str]:
    ratio = (scale.high_us / scale.low_us) ** (1 / (_TICKS - 1))
    ticks = [scale.low_us * ratio**tick for tick in range(_TICKS)]
    labels = [_text(LEFT - 8, scale.y(tick) + 4, f"{tick:.3g}", anchor="end", colour=FAINT) for tick in ticks]
    foot = HEIGHT - BOTTOM
    labels += [_text(scale.x(0), foot + 20, "0", "middle", FAINT), _text(scale.x(1e-9), foot + 34, "step", colour=FAINT)]
    labels.append(_text(scale.x(scale.last_index), foot + 20, str(scale.last_index), "middle", FAINT))
    return [_line(LEFT, TOP, LEFT, foot, FAINT), _line(LEFT, foot, WIDTH - RIGHT, foot, FAINT), *labels]


def _levels(lines: list[tuple[str, float]], scale: _Scale) -> list[str]:
    """Baselines as dashed lines. Their names keep a distance where the lines are close."""
    drawn: list[str] = []
    lowest = float("inf")
    for name, time_us in sorted(lines, key=lambda line: line[1]):
        y = scale.y(time_us)
        label_y = min(y + 4, lowest - 13)
        lowest = label_y
        drawn += [_line(LEFT, y, WIDTH - RIGHT, y, FAINT, dash=True), _text(WIDTH - RIGHT + 6, label_y, name, colour=INK)]
    return drawn


def _marks(points: list[tuple[int, float]], scale: _Scale) -> list[str]:
    circles = [f'<circle cx="{scale.x(i):.1f}" cy="{scale.y(us):.1f}" r="3" fill="{POINT}"/>' for i, us in points]
    path: list[str] = []
    best_us = float("inf")
    for index, time_us in points:
        if path:
            path.append(f"L{scale.x(index):.1f} {scale.y(best_us):.1f}")
        best_us = min(best_us, time_us)
        path.append(f"{'L' if path else 'M'}{scale.x(index):.1f} {scale.y(best_us):.1f}")
    return [*circles, f'<path d="{" ".join(path)}" fill="none" stroke="{LINE}" stroke-width="2"/>']


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dash: bool = False) -> str:
    style = ' stroke-dasharray="5 4"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{style}/>'


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def _document(body: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *body, "</svg>\n"])
