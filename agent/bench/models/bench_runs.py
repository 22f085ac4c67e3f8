"""The runs of a bench: one per task, each in the store under the bench's name, so that a killed bench resumes.

Each ends with its first right kernel.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from cudal2_agent.agent.bench.bench_engine import BenchEngine
from cudal2_agent.agent.bench.models.bench_figures import BenchConditions, TaskFigures, figures_of
from cudal2_agent.agent.bench.models.bench_tasks import BenchTask, bench_tasks
from cudal2_agent.agent.bench.models.yardstick import yardstick
from cudal2_agent.agent.index.default_index import open_retriever
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import resume_run, start_run
from cudal2_agent.agent.run.versions import installed_version
from cudal2_agent.agent.wiring.gpus import default_arch
from cudal2_agent.agent.wiring.parts import joined
from cudal2_agent.agent.wiring.policy import open_policy
from cudal2_agent.agent.wiring.run_workbench import RunWorkbench
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.protocols import Policy, Sandbox
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.knowledge import Retriever
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.records.trajectory import Observation, RunRecord
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.store import Store


class OneKernel:
    """`contract.protocols.Policy` over another one. A round without a candidate uses up a repair."""

    reads_code = True

    def __init__(self, policy: Policy, repairs: int) -> None:
        self._policy, self._repairs = policy, repairs
        self.name = policy.name
        self.exhausted = ""

    def propose(self, observation: Observation, count: int) -> list[Candidate]:  # noqa: ARG002 (one at a time)
        if observation.best is not None:
            self.exhausted = "a kernel is right"
        elif observation.round > 1 + self._repairs:
            self.exhausted = f"the {self._repairs} repairs are used up"
        if self.exhausted:
            return []
        candidates = self._policy.propose(observation, 1)
        self.exhausted = self._policy.exhausted
        return candidates


@dataclass(frozen=True)
class BenchPlan:
    """A bench to run. `name`: its runs are `name-TASK`. `replay`: the bench whose recorded replies stand in for a server."""

    name: str
    tasks: tuple[BenchTask, ...]
    repairs: int
    replay: str | None = None

    def run_id(self, task: BenchTask) -> str:
        return f"{self.name}-{task.name}"


def bench_settings(settings: Settings, repairs: int) -> Settings:
    """The settings of the runs: one reply at a time, and a budget of the first kernel and its repairs.

    Raises: UsageError without a model.
    """
    if not settings.chat.model:
        raise UsageError("model-bench needs a model; name it with --model, and a server with --base-url")
    chat = settings.chat.model_copy(update={"samples": 1, "parallel": 1, "repairs": repairs})
    return settings.model_copy(
        update={"policy": "chat", "budget": 1 + repairs, "round_size": 1, "profile": "off", "finalists": 1, "chat": chat}
    )


def conditions_of(settings: Settings, repairs: int) -> BenchConditions:
    chat = settings.chat
    return BenchConditions(
        tasks=bench_tasks().date,
        repairs=repairs,
        temperature=chat.temperature,
        tools=chat.tools,
        prompt_tokens=chat.prompt_tokens,
        reply_tokens=chat.reply_tokens,
        knowledge=settings.use_knowledge,
        seed=settings.seed,
        version=installed_version("cudal2-agent") or "",
    )


def bench_name(settings: Settings, conditions: BenchConditions, replay: str | None, finished: Sequence[str]) -> str:
    """The name of a bench: equal for the same command until it has finished. `finished`: names of benches that have."""
    key = digest([settings.chat.model, settings.chat.base_url, settings.device, replay, conditions.model_dump(mode="json")])
    stem = f"bench-{key[:10]}-"
    return f"{stem}{sum(name.startswith(stem) for name in finished) + 1}"


class BenchRuns:
    """Runs the tasks of a bench, one after the other. `settings`: those of `bench_settings`."""

    def __init__(self, plan: BenchPlan, settings: Settings, store: Store, emit: Emit) -> None:
        self._plan, self._settings, self._store, self._emit = plan, settings, store, emit
        self._known = {run.run_id: run for run in store.runs() if run.run_id.startswith(plan.name)}
        self._tokens, self._cost = 0, 0.0

    def figures(self) -> Iterator[TaskFigures]:
        """The figures of each task as its run ends; fewer where a cap leaves no room for the next task.

        Raises: KeyboardInterrupt; EndpointError, UsageError, MachineError, WorkerError, StoreError.
        """
        return BenchEngine(self._emit, spent=self._capped).rows(self._jobs(), len(self._plan.tasks))

    def _jobs(self) -> Generator["ModelTask", None, None]:
        """Each in the open sandbox of its architecture."""
        with open_retriever(self._settings, self._emit) as retriever:
            for arch, tasks in groupby(self._plan.tasks, key=lambda one: one.task.arch):
                with open_sandbox_of(arch, self._on(arch), self._emit, baselines=self._store) as sandbox:
                    for one in tasks:
                        yield ModelTask(f"{one.name}: {one.task.shape}", partial(self._task, one, sandbox, retriever))

    def _task(self, one: BenchTask, sandbox: Sandbox, retriever: Retriever) -> TaskFigures:
        run_id = self._plan.run_id(one)
        known = self._known.get(run_id)
        if known is None or known.status != "finished":
            self._run(one, known, sandbox, retriever)
        device = sandbox.environment.gpu if sandbox.environment else f"emulator ({sandbox.chip.name})"
        found = figures_of(one.name, self._store.trajectory(run_id), device, yardstick(one.task, sandbox, self._store))
        self._tokens, self._cost = self._tokens + found.prompt_tokens + found.reply_tokens, self._cost + found.cost
        return found

    def _run(self, one: BenchTask, known: RunRecord | None, sandbox: Sandbox, retriever: Retriever) -> None:
        """Run a task, or what a killed bench left of it."""
        run_id, settings = self._plan.run_id(one), self._left(one)
        workbench = RunWorkbench(one.task)
        workbench.connect(sandbox, retriever)
        with open_policy(one.task, settings, self._store, run_id, self._emit, workbench) as policy:
            parts: Dependencies = joined(sandbox, OneKernel(policy, self._plan.repairs), retriever, self._store)
            if known is None:
                result = start_run(run_id, one.task, settings, parts, self._emit)
            else:
                result = resume_run(known, settings, parts, self._emit)
        if result.run.status == "interrupted":
            raise KeyboardInterrupt

    def _left(self, one: BenchTask) -> Settings:
        """The settings of a run, with what the caps on the bench leave for it."""
        chat: ChatOptions = self._settings.chat
        caps = {
            "tokens": chat.tokens - self._tokens if chat.tokens is not None else None,
            "money": chat.money - self._cost if chat.money is not None else None,
        }
        replay = f"{self._plan.replay}-{one.name}" if self._plan.replay else None
        return self._settings.model_copy(update={"chat": chat.model_copy(update=caps), "replay": replay})

    def _capped(self) -> str:
        """The cap that leaves no room for another task; empty where there is room for a prompt and a reply."""
        chat = self._settings.chat
        if chat.tokens is not None and chat.tokens - self._tokens < chat.prompt_tokens + chat.reply_tokens:
            return f"the cap of {chat.tokens} tokens leaves no room for another task"
        if chat.money is not None and chat.money <= self._cost:
            return f"the cap of {chat.money:g} in money is reached"
        return ""

    def _on(self, arch: Arch) -> Settings:
        """The settings with the emulator in place of a chosen GPU that does not run this architecture."""
        chosen = self._settings.device
        if not chosen.startswith("cuda:") or default_arch(chosen) is arch:
            return self._settings
        self._emit(Notice(message=f"{chosen} does not run {arch}; its tasks run on the emulator"))
        return self._settings.model_copy(update={"device": "emulator"})


@dataclass(frozen=True)
class ModelTask:
    """`agent.bench.bench_engine.BenchJob`. Nothing of it is prepared: a model is asked for one kernel at a time."""

    title: str
    run: Callable[[], TaskFigures]

    def prepare(self) -> None: ...

    def stop(self) -> None: ...


def recorded_settings(replay: str, tasks: Sequence[BenchTask], store: Store) -> RunSettings:
    """The settings of a recorded bench. Raises: UsageError where a task has no run in it."""
    known = {run.run_id: run for run in store.runs()}
    for one in tasks:
        if f"{replay}-{one.name}" not in known:
            raise UsageError(f"bench {replay!r} has no run of task {one.name}; `cudal2-agent runs list` shows those there are")
    return known[f"{replay}-{tasks[0].name}"].settings
