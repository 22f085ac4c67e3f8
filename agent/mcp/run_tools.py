"""The tools over a run: those of the chat policy, and those that hand a kernel in, read its counters and end the run.

`time_kernel`, `profile_kernel` and `submit_kernel` make a kernel a step of the run, once; they differ in what they wait for and
say. The renderers are the chat policy's, so that a verdict has one form.
"""

from collections.abc import Callable, Sequence

from cudal2_agent.agent.mcp.agent_tools import BEST, FINISH, HAND_IN, PROFILE, READ_TASK, SHOW, SUBMIT, TIME
from cudal2_agent.agent.mcp.handed_in import HandedIn
from cudal2_agent.agent.mcp.known_winners import KnownWinner
from cudal2_agent.agent.observe.ranking import Ranked, leader, rank
from cudal2_agent.contract.protocols import Sandbox, TrajectoryStore, Workbench
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.trajectory import RunRecord, Step
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.contract.settings.run_settings import HANDED_IN
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.named_kernels import NamedKernels
from cudal2_agent.policies.chat.offered_tools import IDEA, KERNEL, ReadCall, Tool
from cudal2_agent.policies.chat.prompts.composition import OPENING_TOKENS, ComposedPrompt, Prompts
from cudal2_agent.policies.chat.prompts.primitives import Header
from cudal2_agent.policies.chat.prompts.quoting import inline
from cudal2_agent.policies.chat.prompts.rendering import diagnosis_text, source_text
from cudal2_agent.policies.chat.prompts.schedules import PromptedReplies
from cudal2_agent.policies.chat.toolbox import Toolbox, verdict_text

GOES_ON = "its evaluation goes on; call {tool} with {kernel} again for the outcome."
NOT_MEASURED = (
    "nothing is measured here: no GPU of this machine runs the task. verify_kernel and predict_time say what is known of a "
    "kernel without one; submit_kernel hands it in."
)
SOURCE_TOKENS = 20_000  # of a source that is shown: more than any kernel of the families takes


class RunTools(Toolbox):
    """The tools of one run. `kernels`: by their names; `winners`: reads what is known of near tasks.

    `primitives`: what a candidate may include here.
    """

    def __init__(
        self,
        run: RunRecord,
        store: TrajectoryStore,
        sandbox: Sandbox,
        workbench: Workbench,
        desk: HandedIn,
        kernels: NamedKernels,
        winners: Callable[[], Sequence[KnownWinner]],
        primitives: Sequence[Header],
    ) -> None:
        options: ChatOptions = run.settings.chat
        super().__init__(workbench, options.tool_s, options.tool_tokens)
        self._run, self._store, self._sandbox, self._desk = run, store, sandbox, desk
        self._kernels, self._winners = kernels, winners
        tokens = min(options.prompt_tokens, OPENING_TOKENS)
        self._prompts = Prompts(tokens, primitives, PromptedReplies("call", 1))
        self.told: ComposedPrompt | None = None
        """The task as it was read last."""
        self.tried = len(self._steps())
        self._read: Candidate | str = ""
        self._going_on = frozenset[str]()  # handed in, and perhaps no step yet
        self.handed = False
        """Whether the last call handed its kernel in."""

    def handed_in(self, read: ReadCall, prompt_id: str) -> Candidate | None:
        """The candidate that a call is about to hand in; None where it hands none in. `prompt_id`: what the agent was told."""
        if read.tool not in HAND_IN or not (read.tool is SUBMIT or self._sandbox.can_measure):
            return None
        told = self.told
        origin = Origin(
            policy=HANDED_IN,
            parents=self._parents(read),
            chunk_ids=told.chunk_ids if told else (),
            exemplar_ids=told.exemplar_ids if told else (),
            prompt_hash=prompt_id,
            note=inline(read.others.get(IDEA, "")),
        )
        self._read = self._candidate(read, origin)
        return self._read if isinstance(self._read, Candidate) and self._step(self._read) is None else None

    def _said(self, read: ReadCall, kernel: str, seconds: float) -> str:
        self.handed = False
        match read.tool.name:
            case READ_TASK.name:
                return self._task(seconds)
            case BEST.name:
                return self._best()
            case SHOW.name:
                return f"{kernel}:\n{source_text(read.text, SOURCE_TOKENS)}"
            case FINISH.name:
                return self._finish(seconds)
            case TIME.name | PROFILE.name | SUBMIT.name:
                return f"{kernel}: {self._evaluated(read, kernel, seconds)}"
        if read.tool.argument != KERNEL:
            return self._search(read.text, seconds)
        with self._desk.turn(seconds):
            return super()._said(read, kernel, seconds)

    def _task(self, seconds: float) -> str:
        observation = self._desk.observed(seconds)
        self.told = self._prompts.first(observation, Assignment(0, None, observation.exemplars))
        return "\n\n".join(message.content.strip() for message in self.told.prompt.messages)

    def _evaluated(self, read: ReadCall, kernel: str, seconds: float) -> str:
        """Make a kernel a step, unless it is one, and say what became of it."""
        candidate = self._read
        if read.tool is not SUBMIT and not self._sandbox.can_measure:
            return NOT_MEASURED
        if isinstance(candidate, str):
            return candidate
        fresh = self._step(candidate) is None and candidate.id not in self._going_on
        wait = self._desk.evaluate if fresh else self._desk.over
        over = wait(candidate, seconds, whole=read.tool is not TIME)
        self.handed = fresh
        self._going_on = frozenset() if over else frozenset({candidate.id})
        step = self._step(candidate)
        return self._outcome(step, read.tool) if step and over else GOES_ON.format(tool=read.tool.name, kernel=kernel)

    def _parents(self, read: ReadCall) -> tuple[str, ...]:
        """The kernel that was patched, else the one that was shown with the task: its author started from it."""
        if not read.base:
            return self.told.parents if self.told else ()
        base = self._candidate(ReadCall(read.tool, read.base), Origin(policy=HANDED_IN))
        return (base.id,) if isinstance(base, Candidate) else ()

    def _outcome(self, step: Step, tool: Tool) -> str:
        parts = [verdict_text(step.evaluation, step.candidate, self._tokens)]
        if tool is not TIME and step.diagnosis is not None:
            parts.append(diagnosis_text(step.diagnosis, step.profile, (), self._tokens, step.evaluation))
        if tool is PROFILE and step.profile is None:
            parts.append("no hardware counters were read: this machine or this kernel cannot be profiled.")
        return "\n".join([*parts, self._place(step, self._leader())])

    def _place(self, step: Step, best: Ranked | None) -> str:
        if best is None:
            return "No kernel of the run is right yet."
        if best.step.candidate.id == step.candidate.id:
            waits = ", once the emulator has proved it" if best.attempt.unproved else ""
            return f"It is the best kernel of the run{waits}."
        return f"The best kernel of the run is {self._name(best.step.candidate)}: {_time_of(best)}."

    def _best(self) -> str:
        """This run's leader, then what is known elsewhere."""
        best = self._leader()
        said = [f"{self._name(best.step.candidate)}: the best kernel of this run, {_time_of(best)}."] if best else []
        said += self.name_winners()
        return "\n".join(said) or "no kernel is known for this task or near ones"

    def name_winners(self) -> list[str]:
        """A line for each of what is known elsewhere, with the name that it has here."""
        return [f"{self._kernels.name(one.source, 'b')}: {inline(one.said, 400)}." for one in self._winners()]

    def _finish(self, seconds: float) -> str:
        over = self._desk.finish("the agent finished", seconds)
        return (self._desk.ended or "") if over else "the run is being finished; call finish again for its result."

    def _name(self, candidate: object) -> str:
        return self._kernels.name(candidate.source) if isinstance(candidate, Candidate) else "another kernel"

    def _leader(self) -> Ranked | None:
        return leader([rank(one, self._run.task, self._run.chip) for one in self._steps()])

    def _step(self, candidate: Candidate) -> Step | None:
        """The latest step of a candidate."""
        return next((one for one in reversed(self._steps()) if one.candidate.id == candidate.id), None)

    def _steps(self) -> list[Step]:
        steps = self._store.steps(self._run.run_id)
        self.tried = len(steps)
        return steps


def _time_of(best: Ranked) -> str:
    evaluation = best.step.evaluation
    if isinstance(evaluation, Measured):
        return f"{best.time_us:.2f} us measured"
    return f"{best.predicted_us:.2f} us predicted" if best.estimated else "no time is known"
