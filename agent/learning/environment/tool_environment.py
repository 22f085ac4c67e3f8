"""Environments for TRL's `environment_factory`: the public methods of an instance are the tools of a model.

TRL calls `reset` with the columns of a row, the tools while a rollout is generated, and `get_reward` once at its end.
What is no tool is private. The docstrings of the tools have the form that transformers turns into descriptions for a model.
"""

import re
from collections import deque
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from cudal2_agent.agent.learning.environment.answers import Answer
from cudal2_agent.agent.learning.environment.kernel_environment import (
    TURNS,
    UNSCORED,
    KernelEnvironment,
    StepInfo,
    StepResult,
    step_together,
)
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.score import Score
from cudal2_agent.policies.chat.prompts.modules import required_sections
from cudal2_agent.policies.chat.prompts.quoting import fenced, inline
from cudal2_agent.policies.chat.prompts.schedules import schedule_values
from cudal2_agent.policies.chat.replies.named_axes import TaskAxes
from cudal2_agent.policies.fusion.fused_source import FAMILY

PROMPT = "Write fast kernels for the task. Submit them by calling tools, and read what becomes of them.\n\n"
_TASK: TypeAdapter[Task] = TypeAdapter(Task)
TASK_TOKENS = 4000  # of the text that describes a task
RECEIVED = "received; it is scored when the conversation ends"


class ToolEnvironments:
    """Makes environments that share a score: the `environment_factory` of a trainer. `rows` is its data set.

    `turns`: submissions of a rollout, of which the best one counts. `sources`: whether whole CUDA sources may be submitted too.
    `feedback`: whether a tool returns what became of a kernel. TRL runs one tool after the other; without feedback, the
    submissions of all rollouts are scored together, once the first reward is asked for.
    `timeout_s`: of a scoring; what is not ready by then has no reward.
    """

    def __init__(
        self,
        score: Score,
        tasks: Sequence[Task],
        *,
        turns: int = TURNS,
        sources: bool = False,
        feedback: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        self._score, self._tasks, self._turns = score, tasks, turns
        self._sources, self._feedback, self._timeout_s = sources, feedback, timeout_s
        self._made: list[ScheduleTools] = []

    def __call__(self) -> "ScheduleTools":
        environment = KernelEnvironment(self._score, self._tasks, turns=self._turns)
        made = (KernelTools if self._sources else ScheduleTools)(self, environment)
        self._made.append(made)
        return made

    def rows(self) -> list[dict[str, object]]:
        """A row for each task: a prompt, and the task that `reset` is told. For `datasets.Dataset.from_list`."""
        prompt = [{"role": "user", "content": PROMPT}]
        return [{"prompt": prompt, "task": task.model_dump_json()} for task in self._tasks]

    def _task(self, column: object) -> Task:
        """Raises: UsageError. All rollouts of a group must have the same task, so that none is drawn here."""
        if column is None and len(self._tasks) == 1:
            return self._tasks[0]
        try:
            return _TASK.validate_json(str(column or ""))
        except ValidationError as exc:
            raise UsageError("a row has no task in its column 'task'; make the data set of ToolEnvironments.rows()") from exc

    def _submitted(self) -> None:
        if self._feedback:
            self._settle()

    def _settle(self) -> None:
        """Score all submissions that wait."""
        while waiting := [one for one in self._made if one._waiting]:
            answers = [one._waiting.popleft() for one in waiting]
            steps = step_together([one._environment for one in waiting], answers, self._score, self._timeout_s)
            for one, step in zip(waiting, steps, strict=True):
                one._steps.append(step)


class ScheduleTools:
    """An environment in which a model submits schedules. One rollout at a time."""

    def __init__(self, shared: ToolEnvironments, environment: KernelEnvironment) -> None:
        self._shared, self._environment = shared, environment
        self._waiting: deque[Answer] = deque()
        self._steps: list[StepResult] = []
        self._left = 0
        self._failure: Exception | None = None

    def reset(self, task: object = None, **_: object) -> str:
        """Begin a rollout. The text describes the task; TRL puts it behind the prompt."""
        self._waiting.clear()
        self._steps, self._failure, self._left = [], None, self._shared._turns
        return _described(self._environment.reset(self._shared._task(task)), self._left)

    def submit_schedule(self, axes: dict[str, str | int | bool]) -> str:
        """Submit a kernel by the axes of its schedule. It is built, verified and timed.

        Args:
            axes: The kernel family and some of its axes, such as {"family": "mma_sync", "block_m": 64}. Axes that are left out
                take the values of the fastest predicted schedule that has the others.

        Returns:
            What became of the kernel, and how many submissions are left.
        """
        return self._submit(axes)

    def get_reward(self) -> float | None:
        """The value of the best submission; that of a failure where none is a kernel; None where nothing is known.

        Raises: what a submission raised, which TRL shows to the model alone.
        """
        if self._failure is not None:
            raise self._failure
        self._shared._settle()
        values = [step.value for step in self._steps]
        return max((value for value in values if value is not None), default=None if values else FLOOR)

    def _submit(self, answer: Answer) -> str:
        if not self._left:
            return "no submission is left"
        self._left -= 1
        self._waiting.append(answer)
        try:
            self._shared._submitted()
        except Exception as exc:  # the trainer tells it to the model alone, so that the reward raises it again
            self._failure = exc
            raise
        told = RECEIVED if self._waiting else _told(self._steps[-1])
        return f"{told}; submissions left: {self._left}"


class KernelTools(ScheduleTools):
    """An environment in which a model submits schedules or whole sources."""

    def submit_kernel(self, source: str) -> str:
        """Submit a kernel by its CUDA C++ source. It is built, verified and timed.

        Args:
            source: The whole file. It begins with the launch plan as a comment, /* cudal2: {...} */.

        Returns:
            What became of the kernel, and how many submissions are left.
        """
        fence = "`" * max((len(run) + 1 for run in re.findall("`{3,}", source)), default=3)
        return self._submit(f"{fence}cuda\n{source.rstrip()}\n{fence}\n")


def _described(observation: Observation, turns: int) -> str:
    task, chip = observation.task, observation.chip
    if isinstance(task, ModuleTask):
        return _of_module(task, chip, turns)
    said = (
        f"D = {task.formula} with M = {task.m}, N = {task.n}, K = {task.k}, {task.element}, accumulated in {task.accumulate}, "
        f"layout {task.layout}, on {chip.name} ({task.arch}). Submissions: at most {turns}. The fastest right kernel counts."
    )
    return f"{said}\n\n{schedule_values(observation, TASK_TOKENS)['families']}"


def _of_module(task: ModuleTask, chip: Chip, turns: int) -> str:
    said = (
        f"The module {inline(task.name)} in {task.arithmetic}, on {chip.name} ({task.arch}). Submissions: at most {turns}. "
        "The fastest right plan counts."
    )
    sections = [f"# {title}\n\n{text(TASK_TOKENS)}" for title, text in required_sections(task).items()]
    kernels = fenced("\n".join(TaskAxes(task, chip).lines()))
    family = f'# Kernels and their axes\n\nThe family is "{FAMILY}". Its axes are the kernels, each with one of these texts:'
    return "\n\n".join([said, *sections, family, kernels])


def _yardstick(info: StepInfo) -> str:
    return "PyTorch's fastest" if isinstance(info.task, ModuleTask) else "cuBLASLt-AutoTuning"


def _told(step: StepResult) -> str:
    info = step.info
    doubt = f"; {info.message}" if info.message else ""
    if info.time_us is not None:
        compared = f", {info.speedup:.3f} times as fast as {_yardstick(info)}" if info.speedup else ""
        return f"measured: {info.time_us:.2f} us{compared}{doubt}"
    if info.predicted_us is not None:
        verified = "verified by the emulator: " if info.outcomes[0].evaluation.passed else ""
        return f"{verified}predicted {info.predicted_us:.2f} us{doubt}"
    return f"{'not scored' if info.status == UNSCORED else info.status.replace('_', ' ')}{doubt}"
