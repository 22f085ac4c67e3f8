"""The search of one worker: a sandbox that stays open from task to task of its arch, and one run for each task."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cudal2_agent.agent.campaign.module_search import search_module
from cudal2_agent.agent.campaign.winners import shape_result
from cudal2_agent.agent.index.default_index import EmptyRetriever
from cudal2_agent.agent.run.lifecycle import name_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.wiring.parts import joined
from cudal2_agent.agent.wiring.policy import open_policy, with_policy_of
from cudal2_agent.agent.wiring.run_workbench import RunWorkbench
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.agent.wiring.schedule_prior import with_budget
from cudal2_agent.contract.events import Emit
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.module_campaign import AskedModule, CampaignResult, CampaignTask, ModuleResult
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.modules.tracing.tracer import open_tracer
from cudal2_agent.store.store import Store


class Interrupted(KeyboardInterrupt):
    """The search was interrupted; its task has no result yet."""


class ShapeSearch:
    """Finds the best kernel of one task after another. Its steps are recorded; the knowledge base and counters are not used."""

    def __init__(self, settings: Settings, store: Store, emit: Emit, commit: str = "") -> None:
        self._settings, self._store, self._emit, self._commit = settings, store, emit, commit
        self._open: tuple[Arch, Sandbox] | None = None
        self._stack = ExitStack()

    def open(self, arch: Arch) -> None:
        """Open the sandbox before the first task. Raises: CompilerMissing, MachineError, WorkerError."""
        self._sandbox(arch)

    def search(self, task: CampaignTask) -> CampaignResult:
        """Raises: Interrupted; UsageError where the task is impossible; MachineError, WorkerError, StoreError."""
        if isinstance(task, AskedModule):
            return self._module(task)
        result = self._run(task)
        if result.run.status == "interrupted":
            raise Interrupted
        return shape_result(result, self._commit)

    def close(self) -> None:
        """Close the sandbox; the next search opens it again."""
        self._open = None
        self._stack.close()

    def _module(self, asked: AskedModule) -> ModuleResult:
        self._sandbox(asked.arch)
        found = search_module(asked, self._tracer, self._tracer.soundness, self._settings.seed, self._run, self._commit)
        if found is None:
            raise Interrupted
        return found

    def _run(self, task: Task) -> RunResult:
        sandbox, run_id, retriever = self._sandbox(task.arch), name_run(task), EmptyRetriever()
        settings = with_policy_of(self._settings, task)
        if isinstance(task, ModuleTask):
            settings = with_budget(settings, task, sandbox.chip, measures=sandbox.can_measure)
        workbench = RunWorkbench(task)
        workbench.connect(sandbox, retriever)
        with open_policy(task, settings, self._store, run_id, self._emit, workbench) as policy:
            parts = joined(sandbox, policy, retriever, self._store)
            # A shape takes seconds, so that a killed one starts anew: no checkpoint, no folder.
            return start_run(run_id, task, settings, parts, self._emit, resumable=False)

    def _sandbox(self, arch: Arch) -> Sandbox:
        if self._open is None or self._open[0] is not arch:
            self.close()
            self._tracer = self._stack.enter_context(open_tracer())
            sandbox = open_sandbox_of(arch, self._settings, self._emit, baselines=self._store, tracer=self._tracer)
            self._open = arch, self._stack.enter_context(sandbox)
        return self._open[1]


@contextmanager
def open_search(settings: Settings, store: Store, emit: Emit, commit: str = "") -> Iterator[ShapeSearch]:
    search = ShapeSearch(settings, store, emit, commit)
    try:
        yield search
    finally:
        search.close()
