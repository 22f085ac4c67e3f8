"""Whether a program should keep what it has: no kernel of a run is faster than the fastest baseline. Pure."""

from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.speedup import median_us, paired_speedup, yardstick_of


def keeps_pytorch(task: Task, best: Step | None) -> bool:
    """Of a module: whether its best kernel was measured, and is no faster than the fastest baseline of the same rounds."""
    if not isinstance(task, ModuleTask) or best is None or not isinstance(best.evaluation, Measured):
        return False
    yardstick = yardstick_of(best.evaluation)
    return yardstick is not None and paired_speedup(best.evaluation.timing, yardstick).ratio <= 1.0


def replaces_pytorch(task: Task, best: Step | None) -> bool:
    """Of a module: whether its best plan was executed and found right, and was not measured to be slower than PyTorch."""
    return best is not None and best.evaluation.passed and not keeps_pytorch(task, best)


def advice(task: Task, best: Step | None) -> str:
    """For a module whose best kernel is no faster than PyTorch: what to do, with the figures; else empty."""
    if not keeps_pytorch(task, best):
        return ""
    assert best is not None
    assert isinstance(best.evaluation, Measured)
    yardstick = yardstick_of(best.evaluation)
    assert yardstick is not None
    found = paired_speedup(best.evaluation.timing, yardstick)
    return (
        f"Keep PyTorch's: {yardstick.name} takes {median_us(yardstick):.2f} us, the best kernel "
        f"{median_us(best.evaluation.timing):.2f} us ({found.ratio:.3f}x, 95 % interval {found.low:.3f} to {found.high:.3f})."
    )
