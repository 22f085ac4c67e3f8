"""The panel that a cell of the page leads to: one result in HTML."""

from collections.abc import Mapping, Sequence
from html import escape

from cudal2_agent.agent.campaign.report.reasons import reason_of
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.candidate import axes_in_use
from cudal2_agent.contract.records.evaluation import AUTOTUNED, BASELINES, Measured
from cudal2_agent.contract.records.task import GemmTask, Layout, TimingMode
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.speedup import baseline_of

# Steps by run and index.
Winners = Mapping[tuple[str, int], Step]
NOTHING_CHOSEN = "<p>Select a cell or a dot.</p>"


def panel_of(row: ShapeResult, step: Step | None = None) -> str:
    """Speedup with its interval, times, kernel, errors and cost. `step`: the winner's in the store, where it is there."""
    parts = [f"<h3>{title_of(row.task)}</h3>"]
    if row.best is None:
        return "".join([*parts, f"<p>No kernel: {escape(row.reason or 'nothing was measured')}</p>"])
    parts += [_speedup("", row.best), *([_speedup(" with plain launches", row.best_without)] if row.best_without else [])]
    parts += [_times(row), f"<p>{escape(reason_of(row, step))}</p>", _kernel(row.best), _cost(row)]
    return "".join(parts)


def title_of(task: GemmTask) -> str:
    return f"{task.m}×{task.n}×{task.k} <small>{escape(kind_of(task))}</small>"


def kind_of(task: GemmTask) -> str:
    """What times of a task may be averaged with: mode, layout and types."""
    return f"{task.mode.value}, {task.layout.value}, {task.element.value}, accumulate {task.accumulate.value}"


def kinds_of(rows: Sequence[ShapeResult]) -> dict[str, list[ShapeResult]]:
    """Rows by what may be averaged: layouts in the order of `Layout`, offline first."""
    layouts, modes = list(Layout), list(TimingMode)
    ordered = sorted(
        rows,
        key=lambda row: (row.task.element != "f16", layouts.index(row.task.layout), modes.index(row.task.mode)),
    )
    kinds: dict[str, list[ShapeResult]] = {}
    for row in ordered:
        kinds.setdefault(kind_of(row.task), []).append(row)
    return kinds


def schedule_of(winner: Winner) -> str:
    """The kernel's schedule in words; its id where it has none."""
    if not winner.schedule:
        return f"kernel {winner.candidate_id}, written without a schedule"
    family = str(winner.schedule.get("family", ""))
    return " ".join([family, *axes_in_use({axis: value for axis, value in winner.schedule.items() if axis != "family"})])


def _speedup(what: str, winner: Winner) -> str:
    speedup = winner.speedup
    return f"<p><b>{speedup.ratio:.3f}×</b> AutoTuning{what} (95 %: {speedup.low:.3f} to {speedup.high:.3f})</p>"


def _times(row: ShapeResult) -> str:
    assert row.best is not None
    times = [("best kernel" + (", programmatic launch" if row.best.programmatic else ""), row.best.time_us)]
    if row.best_without is not None and row.best.programmatic:
        times.append(("best with plain launches", row.best_without.time_us))
    times += [(name, row.baselines_us[name]) for name in reversed(BASELINES) if name in row.baselines_us]
    times.append(("floor", row.floor_us))
    right = 'style="padding-left: 10px; text-align: right"'
    lines = "".join(f"<tr><td>{escape(name)}</td><td {right}>{time_us:.2f} µs</td></tr>" for name, time_us in times)
    rate = row.task.flops / row.best.time_us / 1e6
    return f"<table>{lines}</table><p>{rate:,.0f} TFLOP/s</p>"


def _kernel(winner: Winner) -> str:
    return f"<p><code>{escape(schedule_of(winner))}</code></p><p>candidate <code>{escape(winner.candidate_id)}</code></p>"


def _cost(row: ShapeResult) -> str:
    assert row.best is not None
    errors = (("error over its bound", row.best.worst_error), ("cuBLAS", row.best.library_error))
    told = [f"{name} {value:.2g}" for name, value in errors if value is not None]
    told += [f"emulator: {row.witness or 'not asked'}", f"{row.candidates} candidates, {row.gpu_seconds:.1f} s of the GPU"]
    told += [f"{row.host.cpu_s:.0f} s of host processors"] if row.host else []
    where = f"run <code>{escape(row.run_id)}</code>, step {row.best.step_index}; " if row.run_id else ""
    return f"<p>{escape('; '.join(told))}</p><p>{where}commit {escape(row.commit)}, {row.finished_at:%Y-%m-%d %H:%M}</p>"


def step_of(row: ShapeResult, steps: Winners) -> Step | None:
    """The winner's step; None where it is not among them."""
    return steps.get((row.run_id, row.best.step_index)) if row.best and row.run_id else None


def samples_of(row: ShapeResult, step: Step | None) -> tuple[list[float], list[float]]:
    """Samples of the winner and of AutoTuning, round by round; empty where the store does not have them. Unit: µs."""
    if row.best is None or step is None or not isinstance(step.evaluation, Measured):
        return [], []
    plain = None if row.best.programmatic else step.evaluation.plain
    theirs = baseline_of(step.evaluation, AUTOTUNED)
    return list((plain or step.evaluation.timing).samples_us), list(theirs.samples_us) if theirs else []
