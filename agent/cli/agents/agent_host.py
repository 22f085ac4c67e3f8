"""A run that an agent drives, and the server by which it does. The run has the main thread, where a signal interrupts it."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cudal2_agent.agent.cli.render.progress import Progress
from cudal2_agent.agent.cli.render.run_answer import outcome_text, unsound
from cudal2_agent.agent.cli.session import INTERRUPTED, NO_KERNEL, folder_of, write_outcome
from cudal2_agent.agent.mcp.agent_calls import Door
from cudal2_agent.agent.mcp.agent_tools import AGENT_TOOLS
from cudal2_agent.agent.mcp.known_winners import winners
from cudal2_agent.agent.mcp.run_tools import RunTools
from cudal2_agent.agent.report.output import reserve
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import check_resumable, name_run, new_run, resume_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.wiring.parts import open_dependencies
from cudal2_agent.agent.wiring.policy import primitives
from cudal2_agent.agent.wiring.schedule_prior import with_budget
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.protocols import Policy, Workbench
from cudal2_agent.contract.records.module_task import Task
from cudal2_agent.contract.records.trajectory import RunRecord
from cudal2_agent.contract.settings.run_settings import AGENT_CALL_S, AGENT_CALLS, HANDED_IN
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.policies.chat.named_kernels import NamedKernels
from cudal2_agent.store.store import Store, open_store


def host_new(door: Door, read: Callable[[Settings], Task], settings: Settings, out: Path | None, *, as_json: bool) -> int:
    """Run a new run for the client behind a door, and return the exit code. `read`: the task, which takes a module seconds."""
    settings = _driven(settings)
    with _Host(door) as host:
        task = read(settings)
        run_id = name_run(task)
        folder = out.absolute() if out else settings.runs_dir / run_id
        with open_store(settings.store_url) as store, host.parts(task, settings, store, run_id) as parts:
            settings = with_budget(settings, task, parts.sandbox.chip, measures=parts.sandbox.can_measure)
            reserve(folder)
            for line in unsound(task):
                host.emit(Notice(message=line))
            host.open(new_run(run_id, task, settings, parts, folder), store, parts)
            outcome = start_run(run_id, task, settings, parts, host.emit, folder)
            host.conclude(outcome, parts, as_json)
    return host.code


def host_resumed(door: Door, run_id: str, flags: Mapping[str, Any], *, as_json: bool) -> int:
    """Go on with a run that was interrupted, under its own settings, except what a flag changes. Returns the exit code."""
    given = {name: value for name, value in flags.items() if value is not None}
    with _Host(door) as host, open_store(load_settings().store_url) as store:
        run = store.run(run_id)
        if run.policy != HANDED_IN:
            raise UsageError(f"no agent drove run {run_id}; continue it with `cudal2-agent runs resume {run_id}`")
        check_resumable(run)
        settings = load_settings(**run.settings.replayed() | given)
        reserve(folder_of(run))
        with host.parts(run.task, settings, store, run_id) as parts:
            host.open(run.model_copy(update={"settings": settings.recorded()}), store, parts)
            host.conclude(resume_run(run, settings, parts, host.emit), parts, as_json)
    return host.code


def _driven(settings: Settings) -> Settings:
    """The settings of a run whose kernels are handed in: it ends by its limits and by its agent, not near the roofline."""
    chat = settings.chat
    limits = {"tool_calls": AGENT_CALLS, "tool_s": AGENT_CALL_S}
    unset = {name: value for name, value in limits.items() if name not in chat.model_fields_set}
    changes = {"policy": HANDED_IN, "stop_near_roofline": False, "chat": chat.model_copy(update=unset)}
    return settings.model_copy(update=changes)


class _Host:
    """The run behind a door, until the client is gone."""

    def __init__(self, door: Door) -> None:
        self._calls, self._desk, self._thread = door.calls, door.calls.desk, door.thread
        self._progress = Progress()
        self._workbench: Workbench | None = None
        self.code = 0

    def __enter__(self) -> "_Host":
        self._progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: object) -> None:
        if exc is not None:
            self._calls.close(f"the run has ended: {exc}")
        elif self.code != INTERRUPTED:
            self._thread.join()
        self._progress.__exit__(kind, exc, None)

    def emit(self, event: Event) -> None:
        self._progress.emit(event)
        self._desk.see(event)

    @contextmanager
    def parts(self, task: Task, settings: Settings, store: Store, run_id: str) -> Iterator[Dependencies]:
        """The parts of the run. An error or the end of the run ends the calls before they are closed."""
        with open_dependencies(task, settings, store, run_id, self.emit, self._author) as parts:
            try:
                yield parts
            except BaseException as exc:
                self._calls.close(f"the run has ended: {exc}")
                raise

    def _author(self, workbench: Workbench) -> Policy:
        self._workbench = workbench
        return self._desk

    def open(self, run: RunRecord, store: Store, parts: Dependencies) -> None:
        """Run calls from now on."""
        assert self._workbench is not None
        kernels = NamedKernels(AGENT_TOOLS)

        def known() -> list[Any]:
            return winners(run.task, run.chip, store)

        tools = RunTools(run, store, parts.sandbox, self._workbench, self._desk, kernels, known, primitives())
        self._calls.open(run, store, tools, kernels, self.emit)

    def conclude(self, outcome: RunResult, parts: Dependencies, as_json: bool) -> None:
        """Write the result, and tell it to the agent and to the user."""
        folder = write_outcome(outcome, parts)
        said = outcome_text(outcome, folder, as_json=False)
        self._calls.close(f"The run has ended: {outcome.reason}.\n{said}")
        print(outcome_text(outcome, folder, as_json), file=sys.stderr)
        if outcome.run.status == "interrupted":
            resumed = f"continue with: cudal2-agent mcp --resume {outcome.run.run_id}"
            self.emit(Notice(message=resumed))
            self.code = 0 if self._desk.gone else INTERRUPTED
        else:
            self.code = 0 if outcome.best is not None else NO_KERNEL
