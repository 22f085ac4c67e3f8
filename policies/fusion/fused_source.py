"""A candidate from a task's groups and the axes of their kernels."""

from collections.abc import Mapping

from cudal2_agent.contract.plan.library_call import LibraryCall
from cudal2_agent.contract.plan.plan import Launch, LaunchPlan, render_plan
from cudal2_agent.contract.records.candidate import Candidate, Origin, ScheduleValue
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.contraction import contraction
from cudal2_agent.policies.fusion.grouping import Groups, ProductStep, ScanStep, Step
from cudal2_agent.policies.fusion.kernel_text import KernelText, kernel_text
from cudal2_agent.policies.fusion.preamble import HEADERS, PREAMBLE
from cudal2_agent.policies.fusion.programs import KernelProgram
from cudal2_agent.policies.fusion.scan_text import scan_text
from cudal2_agent.policies.fusion.tile_text import SumTile, tile_text
from cudal2_agent.policies.fusion.values import Unplanned

FAMILY = "fusion"
LIBRARY = "library"
Choice = Axes | SumTile | None  # of a kernel; None: a product is a library's call


def written(task: ModuleTask, groups: Groups, choices: Mapping[str, Choice]) -> Candidate:
    """The source with its plan; equal groups and choices give equal text. Raises: Unplanned."""
    launches: list[Launch | LibraryCall] = []
    kernels: list[str] = []
    for step in groups.steps:
        if isinstance(step, ProductStep) and choices[step.name] is None:
            launches.append(step.call)
            continue
        text = _text(step, choices[step.name], groups)
        launches.append(text.launch)
        kernels.append(text.source)
    plan = LaunchPlan(arch=task.arch, launches=tuple(launches), scratch=groups.scratch)
    headers = "".join(f"#include <{HEADERS[each]}>\n" for each in HEADERS if each in groups.elements.values())
    source = render_plan(plan) + headers + PREAMBLE + "\n" + "\n".join(kernels)
    schedule: dict[str, ScheduleValue] = {"family": FAMILY, **{name: shown(each) for name, each in choices.items()}}
    return Candidate(source=source, plan=plan, origin=Origin(policy=FAMILY, schedule=schedule))


def shown(choice: Choice) -> str:
    """As a value of a schedule."""
    return LIBRARY if choice is None else choice.text()


def parsed(text: str) -> Choice:
    """Raises: ValueError."""
    if text == LIBRARY:
        return None
    return SumTile.parse(text) if text.startswith("tile") else Axes.parse(text)


def _text(step: Step, choice: Choice, groups: Groups) -> KernelText:
    match step, choice:
        case ProductStep(), SumTile():
            out = groups.buffers[id(step.product)]
            return tile_text(step.name, contraction(step.product), choice, out, groups.buffers, groups.elements)
        case KernelProgram(), Axes():
            return kernel_text(step, choice, groups.buffers, groups.elements)
        case ScanStep(), Axes():
            return scan_text(step, choice, groups.buffers, groups.elements)
    raise Unplanned(step.name, f"a kernel by {choice}")
