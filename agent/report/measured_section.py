"""What was measured of a kernel, in Markdown: time, speedups over the baselines with their intervals, and how it was timed."""

from collections.abc import Iterable, Sequence

from cudal2_agent.agent.run.stopping import roofline_fraction
from cudal2_agent.contract.records.evaluation import BASELINES, MODULE_BASELINES, Measured, SideFigures
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.ruler import Ruler
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord
from cudal2_agent.contract.reward.speedup import median_us, speedup_over


def measured_section(measured: Measured, run: RunRecord) -> str:
    """Time, share of the roofline, speedups with their intervals, side figures, environment."""
    time_us = median_us(measured.timing)
    tflops = run.task.flops / time_us / 1e6
    fraction = roofline_fraction(measured, run.task, run.chip)
    parts = [
        f"**{time_us:.2f} us** ({tflops:.0f} TFLOP/s, {fraction:.0%} of the roofline), {measured.mode} timing, "
        f"median of {len(measured.timing.samples_us)} rounds; {len(measured.tests)} verification tests passed.",
        speedup_table(measured, baselines_of(run.task)),
        _ruler(measured.ruler, run.task),
        _side(measured.side),
        f"{measured.environment.gpu}, driver {measured.environment.driver}, CUDA {measured.environment.cuda}, "
        f"cuBLAS {measured.environment.cublas}.",
        "\n".join(f"- note: {note}" for note in measured.remarks),
    ]
    return "\n\n".join(part for part in parts if part)


def baselines_of(task: Task) -> tuple[str, ...]:
    """The baselines that a full measurement of a task has, in the order a report shows them."""
    return BASELINES if isinstance(task, GemmTask) else MODULE_BASELINES


def speedup_table(measured: Measured, baselines: Sequence[str]) -> str:
    """`baselines`: those that a reader expects."""
    rows = []
    known = {timing.name: timing for timing in measured.baselines}
    for name in [*baselines, *(name for name in known if name not in baselines)]:
        speedup = speedup_over(measured, name)
        if speedup is None:
            rows.append((name, "not measured", "", "", ""))
        else:
            interval = f"{speedup.low:.3f} – {speedup.high:.3f}"
            rows.append((name, f"{median_us(known[name]):.2f}", f"{speedup.ratio:.3f}x", interval, known[name].detail))
    return table(("baseline", "time, us", "speedup", "95 % interval", "detail"), rows)


def _ruler(ruler: Ruler | None, task: Task) -> str:
    """How the time was measured; empty for older records without it."""
    if ruler is None:
        return ""
    activated = isinstance(task, GemmTask) and task.activation is not None
    looked_at = "A drawn row and column" if activated else "Every row"
    return (
        f"Each sample is {ruler.launches} launches on {ruler.sets} sets of operands, each launch with an output of its own. "
        f"{looked_at} of {ruler.projected} outputs was checked, "
        f"and {len(ruler.compared)} outputs in full. Seed: {ruler.secret}."
    )


def _side(side: SideFigures) -> str:
    figures = {
        "host time of one launch": side.host_launch_us,
        "device time with operands in L2": side.hot_l2_us,
        "host clock around one synchronised call": side.wall_clock_us,
        "device time without programmatic launch": side.without_programmatic_us,
    }
    rows = [(name, f"{figure_us:.2f}") for name, figure_us in figures.items() if figure_us is not None]
    return table(("side figure", "us"), rows) if rows else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. Bars and line breaks in a cell are escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
