"""Axes of a module's kernels that somebody names: a model, a tool, a person. They are completed, checked and written.

A kernel's axes are one text, such as `rows v4 t256 i1 l32`, as schedules of this policy have them. A candidate from here is one
that the policy could have written.
"""

from collections.abc import Mapping

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.policies.fusion.fused_source import FAMILY, written
from cudal2_agent.policies.fusion.grouping import Groups, grouped
from cudal2_agent.policies.fusion.space import choices
from cudal2_agent.policies.fusion.values import Unplanned
from cudal2_agent.policies.schedule.named_schedules import TaskSchedules, Unwritable, schedules_for

_SHOWN = 8  # values in a line
_SHOWN_CHARS = 40


class TaskAxes:
    """The kernels of a module with the axes that each may have, the best expected first. Nothing where it cannot be planned."""

    def __init__(self, task: ModuleTask, chip: Chip) -> None:
        self._task = task
        self._groups: Groups | None = None
        self._why = ""
        self.axes: dict[str, tuple[str, ...]] = {}
        try:
            self._groups = grouped(task)
            self._space = choices(self._groups, chip)
            self.axes = {name: tuple(each.text() for each in space) for name, space in self._space.items()}
        except Unplanned as exc:
            self._why = f"the fuser has no rule for {exc}"

    def expand(self, values: object) -> Candidate | Unwritable:
        """The candidate of `{"family": "fusion", KERNEL: AXES, …}`; kernels that are left out take their first axes."""
        if self._groups is None:
            return Unwritable((self._why,))
        if not isinstance(values, Mapping):
            return Unwritable((f"a schedule is an object, not {_shown(values)}",))
        if reasons := tuple(self._wrong(values)):
            return Unwritable(reasons)
        plan = {
            name: space[self.axes[name].index(str(values.get(name, self.axes[name][0])))] for name, space in self._space.items()
        }
        try:
            return written(self._task, self._groups, plan)
        except Unplanned as exc:
            return Unwritable((f"the fuser has no rule for {exc}",))

    def lines(self) -> list[str]:
        """The kernels with their axes, for a reader."""
        return [f"- {name}: {_listed(texts)}" for name, texts in self.axes.items()] or [self._why]

    def _wrong(self, values: Mapping[str, object]) -> list[str]:
        if values.get("family") != FAMILY:
            said = "family is missing" if "family" not in values else f"family is {_shown(values['family'])}"
            return [f"{said}; allowed for {self._task.name}: {FAMILY}"]
        unknown = [str(name) for name in values if name not in self.axes and name != "family"]
        found = [f"{FAMILY} has no kernel {_shown(name)}; its kernels are {', '.join(self.axes)}" for name in unknown]
        return found + [
            f"{name} is {_shown(values[name])}; allowed here: {_listed(texts)}"
            for name, texts in self.axes.items()
            if name in values and values[name] not in texts
        ]


def named_for(task: Task, chip: Chip) -> TaskSchedules | TaskAxes:
    """What expands a schedule of the task that is named by its axes."""
    return TaskAxes(task, chip) if isinstance(task, ModuleTask) else schedules_for(task, chip)


def _listed(texts: tuple[str, ...]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN_CHARS]
