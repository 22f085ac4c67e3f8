"""The kernels that the timer's tests time: the schedules that the analytic prior ranks first, compiled."""

import os
from pathlib import Path

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.task import Arch, GemmTask, TimingMode
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.prior import predict_many_us
from cudal2_agent.sandbox.building.builder import Builder


def best_of_the_prior(task: GemmTask, count: int, cache: Path) -> list[Built]:
    """The schedules that the analytic prior ranks first, compiled. Raises: SystemExit if too few build."""
    chip = REFERENCE_CHIPS[task.arch]
    ranked = []
    for family in families(task.arch):
        if family.supports(task):
            space = list(family.space(task, chip))
            times = predict_many_us([family.work(schedule, task, chip) for schedule in space], task, chip)
            ranked += [(float(us), family, schedule) for us, schedule in zip(times, space, strict=True)]
    ranked.sort(key=lambda entry: entry[0])
    candidates = [family.write(schedule, task) for _, family, schedule in ranked[: 2 * count]]
    builder = Builder(CompileOptions(cache_dir=str(cache), jobs=os.cpu_count() or 2), chip)
    built = [
        outcome
        for _, outcome in sorted(builder.build(candidates, task), key=lambda each: each[0])
        if isinstance(outcome, Built)
    ]
    if len(built) < count:
        raise SystemExit(f"{task.shape}: only {len(built)} of {len(candidates)} kernels build")
    return built[:count]


def task_of(shape: tuple[int, int, int], mode: TimingMode = TimingMode.OFFLINE) -> GemmTask:
    m, n, k = shape
    return GemmTask(m=m, n=n, k=k, arch=Arch.SM_90A, mode=mode)
