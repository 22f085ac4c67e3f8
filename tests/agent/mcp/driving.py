"""A run that a test drives by calls: graph, store and server are real, sandbox and knowledge are scripted."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cudal2_agent.agent.mcp.agent_calls import AgentCalls, Said
from cudal2_agent.agent.mcp.agent_tools import AGENT_TOOLS
from cudal2_agent.agent.mcp.handed_in import HandedIn
from cudal2_agent.agent.mcp.known_winners import KnownWinner
from cudal2_agent.agent.mcp.run_tools import RunTools
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import new_run, resume_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.wiring.run_workbench import RunWorkbench
from cudal2_agent.contract.events import Event
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.settings.options import Effort
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.chat.named_kernels import NamedKernels
from cudal2_agent.store.store import Store, open_store
from tests.doubles import TASK, ScriptedRetriever, ScriptedSandbox, diagnose, explain

CLIENT = "test 1.0"
PLAN = (
    '/* cudal2: {"arch": "sm_90a", "launches": [{"entry": "gemm", "grid": [1, 1, 1], "block": [128, 1, 1], '
    '"args": [{"tensor": "D", "access": "write"}]}]} */ // candidate '
)


def kernel(number: int, body: str = "__global__ void gemm() {}") -> str:
    """A file whose candidate the scripted sandbox knows by its number."""
    return f"{PLAN}{number}\n{body}\n"


class Driven:
    """A run in a thread of its own, and the session by which a test drives it."""

    def __init__(self, home: Path, sandbox: ScriptedSandbox, found: Sequence[KnownWinner] = (), **changes: Any) -> None:
        self.settings = Settings(
            home=home, policy="mcp", stop_near_roofline=False, **{"chat_tool_s": 10.0, "chat_tool_calls": 100, **changes}
        )
        self.sandbox, self.found, self.events = sandbox, found, list[Event]()
        self.session = AgentCalls(HandedIn())
        self.result: RunResult | BaseException | None = None

    @contextmanager
    def running(self, run_id: str = "driven", *, resumed: bool = False) -> Iterator[AgentCalls]:
        with open_store(self.settings.store_url) as store:
            thread = threading.Thread(target=self._run, args=(store, run_id, resumed), daemon=True)
            thread.start()
            try:
                yield self.session
            finally:
                self.session.desk.leave()
                thread.join(30)
                assert not thread.is_alive()

    def _run(self, store: Store, run_id: str, resumed: bool) -> None:
        try:
            self.result = self._driven(store, run_id, resumed)
        except BaseException as exc:  # noqa: BLE001 (shown by the test that asks for the result)
            self.result = exc
        self.session.close(f"over: {getattr(self.result, 'reason', self.result)}")

    def _driven(self, store: Store, run_id: str, resumed: bool) -> RunResult:
        workbench, retriever = RunWorkbench(TASK), ScriptedRetriever()
        workbench.connect(self.sandbox, retriever)
        desk = self.session.desk
        parts = Dependencies(self.sandbox, desk, retriever, store, diagnose, explain)
        run = store.run(run_id) if resumed else new_run(run_id, TASK, self.settings, parts)
        kernels = NamedKernels(AGENT_TOOLS)
        tools = RunTools(run, store, self.sandbox, workbench, desk, kernels, lambda: self.found, ())
        self.session.open(run, store, tools, kernels, self._emit)
        if resumed:
            return resume_run(run, self.settings, parts, self._emit)
        return start_run(run_id, TASK, self.settings, parts, self._emit)

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        self.session.desk.see(event)

    def call(self, name: str, **arguments: Any) -> Said:
        return self.session.call(name, arguments, CLIENT)


def stored(at: Driven, run_id: str = "driven") -> tuple[list[Step], list[Exchange]]:
    with open_store(at.settings.store_url) as store:
        return store.steps(run_id), store.exchanges(run_id)


class SlowSandbox(ScriptedSandbox):
    """Its first evaluation waits until it is let go."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.go, self.begun = threading.Event(), threading.Event()

    def evaluate(self, built: Any, task: Any, effort: Effort) -> Evaluation:
        self.begun.set()
        assert self.go.wait(20)
        return super().evaluate(built, task, effort)
