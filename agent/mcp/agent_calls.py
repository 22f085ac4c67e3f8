"""The calls of an agent in order. Each is an exchange of the run, durable before its tool runs, and again with its result.

What a prompt holds is what the agent was told: the instructions, the task as it was read last, and the latest calls with their
results. What else the agent's own model saw is not known here.
"""

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cudal2_agent.agent.mcp.agent_tools import AGENT_TOOLS, BEST, FINISH, HAND_IN, READ_TASK
from cudal2_agent.agent.mcp.handed_in import OPENING, HandedIn, NotNow, RunEnded
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.events import Emit, ToolUsed
from cudal2_agent.contract.protocols import TrajectoryStore
from cudal2_agent.contract.records.exchange import Exchange, Message, Prompt, ToolCall, ToolResult, Usage
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.trajectory import Observation, RunRecord
from cudal2_agent.contract.settings.run_settings import AGENT_CALL_S
from cudal2_agent.policies.chat.named_kernels import MAX_SOURCE_CHARS, NamedKernels
from cudal2_agent.policies.chat.offered_tools import IDEA, KERNEL, MalformedCall, ReadCall
from cudal2_agent.policies.chat.prompts.quoting import cited_chunks, inline
from cudal2_agent.policies.chat.tokens import CHARS_PER_TOKEN, estimate_tokens, shorten

if TYPE_CHECKING:  # a server answers before the parts of its run are imported
    from cudal2_agent.agent.mcp.run_tools import RunTools

MAX_ARGUMENT_CHARS = 2 * MAX_SOURCE_CHARS  # a patch beside a kernel; longer arguments are not read
_KEPT_TOKENS = 1000  # of arguments that are not read
LAST_CALL = "the cap on calls is reached"
INSTRUCTIONS = """\
These tools write one CUDA kernel file for one task and prove, time and record it. Call read_task first: it has the task, the \
rules of a kernel file and what limits the best kernel so far. compile_kernel, verify_kernel and predict_time try a kernel. \
time_kernel, profile_kernel and submit_kernel hand it in: it becomes a step of the run. search_knowledge and best_known answer \
questions. Each answer ends with what is left of the run's limits. A call that would take too long says so; repeat it with the \
kernel's name. finish ends the run and measures its best kernels once more."""


def headline(task: Task) -> str:
    """The task in a line, for a prompt of an agent that has not read it."""
    if isinstance(task, ModuleTask):
        return f"The PyTorch module {inline(task.name)} in {task.arithmetic} on {task.arch}."
    sums = f"{task.element}, accumulated in {task.accumulate}, layout {task.layout}"
    return f"D = {task.formula} at {task.shape}, {sums}, on {task.arch}."


@dataclass(frozen=True)
class Said:
    """The answer to a call. `wrong`: whether the call itself could not be run."""

    text: str
    wrong: bool = False


class AgentCalls:
    """Runs calls one after the other, from any thread. The run and its parts are known once they are open."""

    def __init__(self, desk: HandedIn) -> None:
        self.desk = desk
        self._turn, self._opened = threading.Lock(), threading.Event()
        self._calls: _Conversation | None = None

    def open(self, run: RunRecord, store: TrajectoryStore, tools: "RunTools", kernels: NamedKernels, emit: Emit) -> None:
        """From now on calls are run. A resumed run knows its earlier calls."""
        self._calls = _Conversation(run, store, tools, kernels, self.desk, emit)
        self._opened.set()

    def call(self, name: str, arguments: object, client: str) -> Said:
        """`arguments`: what the client sent, of any form. `client`: the name by which it introduced itself."""
        with self._turn:
            self._opened.wait(AGENT_CALL_S)
            if self.desk.ended is not None:
                return Said(self.desk.ended, wrong=name != FINISH.name)
            if self._calls is None:
                return Said(f"{OPENING}; call again", wrong=True)
            try:
                return self._calls.call(name, arguments, client)
            except RunEnded as exc:
                return Said(str(exc), wrong=True)
            except Cudal2Error as exc:
                return Said(f"the call was not run: {inline(str(exc))}", wrong=True)

    def close(self, outcome: str) -> None:
        """The run has ended. Waits for a call that is running, so that its result is recorded while the store is open."""
        self.desk.close(outcome)
        self._opened.set()
        if self._turn.acquire(timeout=5.0):
            self._turn.release()


@dataclass(frozen=True)
class Door:
    """The calls of a run with the thread that serves them to a client."""

    calls: AgentCalls
    thread: threading.Thread


class _Conversation:
    """The calls of one run."""

    def __init__(
        self, run: RunRecord, store: TrajectoryStore, tools: "RunTools", kernels: NamedKernels, desk: HandedIn, emit: Emit
    ) -> None:
        self._run, self._store, self._tools, self._kernels = run, store, tools, kernels
        self._desk, self._emit = desk, emit
        self._options = run.settings.chat
        self._system = Message(role="system", content=INSTRUCTIONS)
        self._pairs: list[tuple[Message, Message]] = []
        self._calls = 0
        self._turns: dict[int, int] = {}
        self._task_text = headline(run.task)
        self._answered_s = time.monotonic()
        for exchange in store.exchanges(run.run_id):
            self._remember(exchange)

    def call(self, name: str, arguments: object, client: str) -> Said:
        if self._calls >= self._options.tool_calls:
            self._desk.finish(LAST_CALL, self._options.tool_s if name == FINISH.name else 0.0)
            return Said(self._desk.ended or f"{LAST_CALL}; the run is being finished", wrong=True)
        until = time.monotonic() + self._options.tool_s
        call = ToolCall(id=f"call_{self._calls + 1}", name=inline(name, 40), arguments=_written(arguments))
        read, kernel = self._kernels.read(call)
        if isinstance(read, ReadCall) and read.tool in HAND_IN:
            with suppress(NotNow):  # the tool says so: what is handed in belongs to the next round
                self._desk.rest(self._options.tool_s)
        observation = self._desk.observed(until - time.monotonic())
        begun = self._exchange(observation, call, read, client)
        self._store.record_exchange(self._run.run_id, begun)
        self._calls += 1
        self._turns[begun.round] = begun.turn + 1
        said = self._result(call, read, kernel, until - time.monotonic())
        result = said.model_copy(update={"text": "\n\n".join(part for part in (said.text, self._left()) if part)})
        handed = begun.candidate_ids if self._tools.handed else ()
        self._store.record_exchange(self._run.run_id, begun.model_copy(update=_with(begun, result, handed)))
        self._remember_pair(call, result, read)
        self._answered_s = time.monotonic()
        first = inline(result.text.partition("\n")[0])
        self._emit(ToolUsed(round=begun.round, sample=0, tool=inline(name, 40), said=first, seconds=result.seconds))
        if self._calls >= self._options.tool_calls:
            self._desk.finish(LAST_CALL, 0.0)
        return Said(result.text, wrong=isinstance(read, MalformedCall))

    def _result(self, call: ToolCall, read: ReadCall | MalformedCall, kernel: str, seconds: float) -> ToolResult:
        if isinstance(read, MalformedCall):
            return ToolResult(call_id=call.id, text=f"It was not run: {read.problem}.", seconds=0.0)
        return self._tools.run(call, read, kernel, seconds)

    def _exchange(self, observation: Observation, call: ToolCall, read: ReadCall | MalformedCall, client: str) -> Exchange:
        """The exchange of a call that is about to run. Its seconds are the agent's: since the answer before."""
        prompt = self._prompt()
        shown = self._tools.told.chunk_ids if self._tools.told else ()
        handed = self._tools.handed_in(read, prompt.id) if isinstance(read, ReadCall) else None
        idea = read.others.get(IDEA, "") if isinstance(read, ReadCall) else ""
        return Exchange(
            round=observation.round,
            sample=0,
            turn=self._turns.get(observation.round, 0),
            observation_id=observation.id,
            prompt=prompt,
            model=client,
            parameters={"tool_calls": max(self._options.tool_calls - self._calls, 0)},
            status="complete",
            reply="",
            calls=(call,),
            problem="" if handed else _called(call),
            candidate_ids=(handed.id,) if handed else (),
            shown=shown,
            cited=cited_chunks(idea, shown),
            usage=Usage(prompt_tokens=0, completion_tokens=estimate_tokens(call.arguments), counted="estimate"),
            cost=0.0,
            seconds=time.monotonic() - self._answered_s,
            created_at=datetime.now(UTC),
        )

    def _prompt(self) -> Prompt:
        """What the agent was told, within the limit of a prompt: the latest calls with their results."""
        room = self._options.prompt_tokens * CHARS_PER_TOKEN - len(self._system.content) - len(self._task_text)
        kept: list[Message] = []
        for asked, answered in reversed(self._pairs):
            room -= len(answered.content) + sum(len(call.arguments) for call in asked.calls)
            if room < 0:
                break
            kept[:0] = (asked, answered)
        return Prompt(messages=(self._system, Message(role="user", content=self._task_text), *kept))

    def _remember(self, exchange: Exchange) -> None:
        """A call of this run before it was resumed. One without a result was cut off by a kill."""
        self._turns[exchange.round] = max(self._turns.get(exchange.round, 0), exchange.turn + 1)
        for call, result in zip(exchange.calls, exchange.results, strict=False):
            read = self._kernels.restore(call, result.text.partition(":")[0] if _of_kernel(call) else "")
            if isinstance(read, ReadCall) and read.tool is BEST:
                self._tools.name_winners()
            self._remember_pair(call, result, read)
        self._calls += len(exchange.calls)

    def _remember_pair(self, call: ToolCall, result: ToolResult, read: ReadCall | MalformedCall) -> None:
        if isinstance(read, ReadCall) and read.tool is READ_TASK:
            self._task_text = result.text
            return
        asked = Message(role="assistant", content="", calls=(call,))
        self._pairs.append((asked, Message(role="tool", content=result.text, call_id=call.id)))

    def _left(self) -> str:
        """What is left of the run's limits."""
        settings = self._run.settings
        calls = max(settings.chat.tool_calls - self._calls, 0)
        if self._desk.ended is not None:
            return ""
        left_s = self._desk.seconds_left
        kernels = max(settings.budget - self._tools.tried, 0)
        minutes = f"{left_s / 60:.0f} minutes" if left_s is not None else f"{settings.minutes:g} minutes in all"
        return f"Left: {calls} of {settings.chat.tool_calls} calls, {minutes}, {kernels} of {settings.budget} kernels."


def _of_kernel(call: ToolCall) -> bool:
    return any(tool.name == call.name and tool.argument == KERNEL for tool in AGENT_TOOLS)


def _with(begun: Exchange, result: ToolResult, handed: tuple[str, ...]) -> dict[str, object]:
    """What a result changes in its exchange. Of tokens only those that passed through here are counted."""
    usage = begun.usage.model_copy(update={"prompt_tokens": estimate_tokens(result.text)})
    return {"results": (result,), "usage": usage, "candidate_ids": handed, "problem": "" if handed else _called(begun.calls[0])}


def _called(call: ToolCall) -> str:
    return f"tools were called: {call.name}"


def _written(arguments: object) -> str:
    """The arguments as JSON. Those that are too long to be a kernel with a patch are kept shortened, and not read."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    text = text.encode("utf-8", errors="replace").decode("utf-8")
    return text if len(text) <= MAX_ARGUMENT_CHARS else shorten(text, _KEPT_TOKENS)
