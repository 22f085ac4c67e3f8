"""A module's plan as a picture and a table: its kernels and library calls in order, what each moves, and its time.

Every step is a box. A line leads from a step that names a buffer to the next one that names it. Bytes are those of the buffers,
each once a step. Times are those of a profile, which runs kernels alone on cold caches.
"""

from collections.abc import Iterator, Sequence
from html import escape

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.reward.plan_traffic import PlanStep, steps_of

WIDTH, LEFT, BOX, TALL, GAP, TOP = 760, 40, 420, 44, 22, 40
INK, FAINT, OURS, LIBRARY, EDGE = "#333333", "#999999", "#d7e7f5", "#f3e3c3", "#1f5f99"
MOST_STEPS = 60
_LABEL_CHARS, _NAMES = 34, 4


def plan_of_best(best: Step | None, run: RunRecord) -> ResolvedPlan | None:
    """None where there is no best candidate, it has no plan, or the task is no module."""
    if best is None or not isinstance(run.task, ModuleTask) or not isinstance(best.candidate, Candidate):
        return None
    try:
        return resolve(best.candidate.plan, run.task, LIMITS[run.task.arch], run.chip.sms)
    except PlanError:
        return None


def times_us(best: Step | None, plan: ResolvedPlan) -> dict[int, float]:
    """By launch of the plan, where counters were read of as many launches of the same names. Unit: microseconds."""
    counted = best.profile.launches if best is not None and best.profile is not None else ()
    if [each.entry for each in counted] != [each.entry for each in plan.launches]:
        return {}
    found = {place: each.metrics.get("duration_ns") for place, each in enumerate(counted)}
    return {place: time_ns / 1e3 for place, time_ns in found.items() if time_ns is not None}


def step_rows(plan: ResolvedPlan, task: ModuleTask, best: Step | None) -> list[tuple[str, str, str, str, str]]:
    """(number, kernel or call, buffers, bytes, time) of each step, for a table. Steps beyond `MOST_STEPS` are one row."""
    times, steps = times_us(best, plan), steps_of(plan, task)
    rows = []
    for number, step in enumerate(steps[:MOST_STEPS], 1):
        rows.append((str(number), _label(step), ", ".join(step.moved), _bytes(_moved(step)), _time(step, times)))
    if left := steps[MOST_STEPS:]:
        rows.append(("…", f"{len(left)} more steps", "", _bytes(sum(map(_moved, left))), ""))
    return rows


def draw_plan(plan: ResolvedPlan, task: ModuleTask, best: Step | None) -> str:
    """An SVG document."""
    steps, times = steps_of(plan, task), times_us(best, plan)
    shown = steps[:MOST_STEPS]
    most = max((_moved(step) for step in steps), default=0.0) or 1.0
    ours = sum(step.launch is not None for step in steps)
    title = f"{ours} kernels and {len(steps) - ours} library calls, {_bytes(sum(map(_moved, steps)))} moved"
    body = [_text(LEFT, 22, title), *_edges(shown)]
    for place, step in enumerate(shown):
        body += _box(place, step, _moved(step) / most, _time(step, times))
    if left := len(steps) - len(shown):
        body.append(_text(LEFT, _y(len(shown)) + 14, f"and {left} more steps", FAINT))
    height = _y(len(shown)) + (30 if left else 4)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *body, "</svg>\n"])


def _box(place: int, step: PlanStep, share: float, time: str) -> Iterator[str]:
    """A step: its number, what runs, its buffers, and a bar for its share of the largest step's bytes."""
    y, fill = _y(place), OURS if step.launch is not None else LIBRARY
    yield f'<rect x="{LEFT}" y="{y}" width="{BOX}" height="{TALL}" rx="4" fill="{fill}" stroke="{FAINT}"/>'
    yield _text(LEFT + 8, y + 18, f"{place + 1}. {_label(step)}")
    yield _text(LEFT + 8, y + 36, _named(step), FAINT)
    yield f'<rect x="{LEFT + BOX + 12}" y="{y + 26}" width="{max(1.0, 120 * share):.1f}" height="8" fill="{EDGE}"/>'
    yield _text(LEFT + BOX + 12, y + 18, "  ".join(each for each in (_bytes(_moved(step)), time) if each))


def _edges(steps: Sequence[PlanStep]) -> Iterator[str]:
    """A line for each buffer between a step and the next one that names it; a curve at the left where steps lie between."""
    last: dict[str, int] = {}
    for place, step in enumerate(steps):
        for before in sorted({last[name] for name in step.moved if name in last}):
            start, end = _y(before) + TALL, _y(place)
            if place == before + 1:
                yield f'<line x1="{LEFT + 24}" y1="{start}" x2="{LEFT + 24}" y2="{end}" stroke="{EDGE}" stroke-width="1.5"/>'
            else:
                bend = LEFT - min(32, 8 + 3 * (place - before))
                yield (
                    f'<path d="M{LEFT} {start - 10} C{bend} {start} {bend} {end} {LEFT} {end + 10}" fill="none" '
                    f'stroke="{EDGE}" stroke-opacity="0.6"/>'
                )
        last |= dict.fromkeys(step.moved, place)


def _label(step: PlanStep) -> str:
    kind = f"kernel {step.name}" if step.launch is not None else f"library {step.name}"
    return kind if len(kind) <= _LABEL_CHARS else f"{kind[: _LABEL_CHARS - 1]}…"


def _named(step: PlanStep) -> str:
    names = [name for name in step.moved if name != step.out]
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    short = [name if len(name) <= 18 else f"{name[:17]}…" for name in names[:_NAMES]]
    return ", ".join(short) + more + (f" → {step.out[:18]}" if step.out else "")


def _moved(step: PlanStep) -> float:
    return sum(step.moved.values())


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _time(step: PlanStep, times: dict[int, float]) -> str:
    time_us = times.get(step.launch) if step.launch is not None else None
    return "" if time_us is None else f"{time_us:.2f} us"


def _y(place: int) -> int:
    return TOP + place * (TALL + GAP)


def _text(x: float, y: float, words: str, colour: str = INK) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}">{escape(words)}</text>'
