"""A candidate from a task's groups and the axes of their kernels."""

from collections.abc import Mapping

from cudal2_agent.contract.plan.library_call import LibraryCall
from cudal2_agent.contract.plan.plan import Launch, LaunchPlan, render_plan
from cudal2_agent.contract.records.candidate import Candidate, Origin, ScheduleValue
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.grouping import Groups, LibraryStep, ScanStep
from cudal2_agent.policies.fusion.kernel_text import kernel_text
from cudal2_agent.policies.fusion.preamble import HEADERS, PREAMBLE
from cudal2_agent.policies.fusion.values import Unplanned

FAMILY = "fusion"


def written(task: ModuleTask, groups: Groups, axes: Mapping[str, Axes]) -> Candidate:
    """The source with its plan; equal groups and axes give equal text. Raises: Unplanned."""
    launches: list[Launch | LibraryCall] = []
    kernels: list[str] = []
    for step in groups.steps:
        match step:
            case LibraryStep(call=call):
                launches.append(call)
            case ScanStep():
                raise Unplanned("scan")
            case _:
                text = kernel_text(step, axes[step.name], groups.buffers, groups.elements)
                launches.append(text.launch)
                kernels.append(text.source)
    plan = LaunchPlan(arch=task.arch, launches=tuple(launches), scratch=groups.scratch)
    headers = "".join(f"#include <{HEADERS[each]}>\n" for each in HEADERS if each in groups.elements.values())
    source = render_plan(plan) + headers + PREAMBLE + "\n" + "\n".join(kernels)
    schedule: dict[str, ScheduleValue] = {"family": FAMILY, **{name: each.text() for name, each in axes.items()}}
    return Candidate(source=source, plan=plan, origin=Origin(policy=FAMILY, schedule=schedule))
