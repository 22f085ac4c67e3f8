"""Runs a tool call on the workbench and words its result for a model. Everything that others wrote is fenced."""

import time
from collections.abc import Callable, Sequence

from cudal2_agent.contract.errors import Cudal2Error, PlanError
from cudal2_agent.contract.protocols import Workbench
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, Origin
from cudal2_agent.contract.records.evaluation import Evaluation, Measured, Prediction, Unmeasured
from cudal2_agent.contract.records.exchange import ToolCall, ToolResult
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.policies.chat.assignment import POLICY
from cudal2_agent.policies.chat.offered_tools import COMPILE, PREDICT, SEARCH, VERIFY, ReadCall
from cudal2_agent.policies.chat.prompts.failures import failure_text
from cudal2_agent.policies.chat.prompts.quoting import fenced, inline, plain
from cudal2_agent.policies.chat.prompts.rendering import chunk_text, resources_text, result_text
from cudal2_agent.policies.chat.tokens import shorten, take


class Toolbox:
    """Runs calls, from several threads at once. `seconds`: time limit of a call; `tokens`: limit of its result."""

    def __init__(self, workbench: Workbench, seconds: float, tokens: int) -> None:
        self._workbench, self._seconds, self._tokens = workbench, seconds, tokens
        self._kernel_tools: dict[str, Callable[[Candidate, float], str]] = {
            COMPILE.name: self._compile,
            VERIFY.name: self._verify,
            PREDICT.name: self._predict,
        }

    def run(self, call: ToolCall, read: ReadCall, kernel: str, seconds_left: float) -> ToolResult:
        """The result of a call. `kernel`: the name of the kernel in it, if there is one. A tool that fails says why."""
        begin_s, seconds = time.monotonic(), min(self._seconds, seconds_left)
        try:
            said = self._said(read, kernel, seconds)
        except TimeoutError:
            said = f"{read.tool.name} was stopped after {seconds:.0f} s"
        except Cudal2Error as exc:
            said = f"{read.tool.name} cannot be used: {inline(str(exc))}"
        return ToolResult(call_id=call.id, text=said, seconds=time.monotonic() - begin_s)

    def _said(self, read: ReadCall, kernel: str, seconds: float) -> str:
        if read.tool is SEARCH:
            return self._search(read.text, seconds)
        candidate = self._candidate(read, Origin(policy=POLICY))
        said = candidate if isinstance(candidate, str) else self._kernel_tools[read.tool.name](candidate, seconds)
        return f"{kernel}: {said}"

    def _candidate(self, read: ReadCall, origin: Origin) -> Candidate | str:
        """The candidate of a call, or what is wrong with its launch plan."""
        try:
            return Candidate.from_source(read.text, origin)
        except PlanError as exc:
            return f"launch plan, rule {exc.rule}:\n{fenced(shorten(str(exc), self._tokens))}"

    def _compile(self, candidate: Candidate, seconds: float) -> str:
        outcome = self._workbench.compile(candidate, seconds)
        if not isinstance(outcome, Built):
            return fault_text(outcome, candidate, self._tokens)
        return f"it compiles; it was not run.\n{resources_text(outcome.inspection, self._tokens)}"

    def _verify(self, candidate: Candidate, seconds: float) -> str:
        return verdict_text(self._workbench.verify(candidate, seconds), candidate, self._tokens)

    def _predict(self, candidate: Candidate, seconds: float) -> str:
        predicted = self._workbench.predict(candidate, seconds)
        if not isinstance(predicted, Prediction):
            return fault_text(predicted, candidate, self._tokens)
        return _predicted(predicted)

    def _search(self, question: str, seconds: float) -> str:
        hits = self._workbench.search(question, seconds)
        texts = self._fitting(hits)
        return "\n\n".join(texts) if texts else "nothing was found"

    def _fitting(self, hits: Sequence[Hit]) -> list[str]:
        """The hits that fit whole; the first one, shortened, if none does."""
        texts = [chunk_text(hit) for hit in hits]
        taken = [texts[position] for position in take(texts, self._tokens)]
        return taken or [fenced(shorten(plain(hit.chunk.text), self._tokens)) for hit in hits[:1]]


def verdict_text(evaluation: Evaluation, candidate: AnyCandidate, tokens: int) -> str:
    """What became of a kernel that was to be run: on a GPU, on the emulator, or not at all."""
    if evaluation.failed:
        return fault_text(evaluation, candidate, tokens)
    if isinstance(evaluation, Measured):
        said = "it passed all tests on the GPU and was timed."
    else:
        said = "it passed all tests on the emulator." if evaluation.executed else "it compiles; the emulator did not run it."
    return f"{said}\n{result_text(evaluation, tokens)}"


def fault_text(evaluation: Evaluation, candidate: AnyCandidate, tokens: int) -> str:
    """Why a kernel is not right, or was not run."""
    if isinstance(evaluation, Unmeasured):
        return f"it was not run: {inline(evaluation.reason)}"
    return f"it failed.\n{failure_text(evaluation, candidate.source, tokens)}"


def _predicted(prediction: Prediction) -> str:
    """A predicted time with its terms, the largest first."""
    if prediction.is_floor:
        return f"no model knows this kernel; nothing is faster than the roofline, {prediction.floor_us:.2f} us."
    lines = [f"predicted {prediction.predicted_us:.2f} us by {inline(prediction.model)}; not measured."]
    if prediction.terms:
        terms = sorted(prediction.terms.items(), key=lambda term: -term[1])
        lines.append("Each resource alone, in us: " + ", ".join(f"{inline(name)} {us:.2f}" for name, us in terms) + ".")
    lines.append(f"The roofline is {prediction.floor_us:.2f} us.")
    return "\n".join(lines)
