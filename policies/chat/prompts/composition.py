"""Composes prompts: which sections a prompt has, in which order, and how its tokens are shared between them.

Required sections: rules, task, form, the current source, its result and its diagnosis; of a module its buffers and operations.
Sources and logs are shortened to fair shares if they do not fit. Declarations have their tokens put aside: of the headers that
the kernel in hand includes, of all for a matrix product without one. Optional sections take whole pieces of the remaining
tokens, in this order: the newest kernel's diagnosis (up to 0.5 of the rest), attempts (up to 0.4), exemplars (up to 0.3),
device primitives (up to 0.85, 0.6 beside a kernel), the latest right kernels as differences (up to 0.35), chunks (all of the
rest). Of a module, executed examples and the problem's file come before the primitives.
Sections that seldom change come first, so that servers can cache prefixes. A prompt depends on neither time nor chance.
A prompt of a matrix product takes fewer tokens than the settings allow: what nobody used is not worth its price.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import FileSystemLoader, StrictUndefined, TemplateNotFound
from jinja2.sandbox import SandboxedEnvironment

from cudal2_agent.contract.plan.chip import FIGURES, LIMITS
from cudal2_agent.contract.plan.expression import holds
from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.exchange import Message, Prompt
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask, Task
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask
from cudal2_agent.contract.records.trajectory import Failure, Observation
from cudal2_agent.contract.reward.roofline import arithmetic_us, bound_of, memory_us, roofline_us
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.failures import failure_text, proven_text
from cudal2_agent.policies.chat.prompts.history import (
    exemplar_text,
    left_text,
    recent_text,
    time_text,
    tried_text,
    yardstick_text,
)
from cudal2_agent.policies.chat.prompts.modules import (
    BUFFERS,
    EXAMPLES_HEADING,
    OPERATIONS,
    PROBLEM,
    example_pieces,
    module_values,
    problem_text,
    required_sections,
)
from cudal2_agent.policies.chat.prompts.primitives import Digest, Header, primitives_for
from cudal2_agent.policies.chat.prompts.quoting import fenced, mark_of, plain
from cudal2_agent.policies.chat.prompts.rendering import chunk_text, diagnosis_text, newest_text, result_text, source_text
from cudal2_agent.policies.chat.prompts.schedules import PromptedReplies, ScheduleAdvice, families_section, schedule_values
from cudal2_agent.policies.chat.tokens import estimate_tokens, fair_shares, shorten, take

CUTE = "A skeleton with CuTe"
MIN_TOKENS = 400  # for the required sections, however small the budget
_UNBOUNDED = 10**9
OPENING_TOKENS = 8_250  # for the first prompt of a run: 26,400 characters
LATER_TOKENS = 10_000  # for later ones, unless the required sections leave less than `OPTIONAL_TOKENS` of it: 32,000 characters
OPTIONAL_TOKENS = 3_000
_TRIED, _EXEMPLARS, _PRIMITIVES, _RECENT, _CHUNKS = 0.4, 0.3, 0.85, 0.35, 1.0  # maximum shares of the tokens that are left
_DECLARED = 0.6  # the same for declarations that always have room; where they need more, none is put aside
_NEWEST = 0.5  # the same for the diagnosis of the newest kernel
_KNOWN_PRIMITIVES = 0.6  # the same for primitives where a kernel shows some of them
_CUTE = 0.5  # the same for the skeleton of CuTe in a later prompt, which comes first
_EXAMPLES, _PROBLEM, _MODULE_PRIMITIVES = 0.5, 0.4, 0.25  # the same for a module
# Other sections (the failure, the diagnosis) follow these in the order in which they are made.
_ORDER = (
    BUFFERS,
    OPERATIONS,
    PROBLEM,
    EXAMPLES_HEADING,
    CUTE,
    "Device primitives",
    "Knowledge",
    "What was tried",
    "The best kernel so far",
    "How it did",
    "Diagnosis of the newest kernel",
    "Exemplars",
    "Earlier right kernels",
)
_CLUSTERS = (1, 2, 3, 4, 5, 6, 8, 16)  # whose number that fits a prompt tells
_OVERHEAD = 24  # tokens for the heading and the fences of a section
_ELEMENTS = {ElementType.F16: "__half", ElementType.BF16: "__nv_bfloat16"}
# Primitives that multiply or move 16-bit numbers, which no task in f32 may use.
_OF_HALVES = frozenset(f"cudal2/{name}.cuh" for name in ("mma", "wgmma", "ldmatrix", "stmatrix"))


@dataclass(frozen=True)
class ComposedPrompt:
    """A prompt and its contents: `parents`, whose source it shows, and the ids of its exemplars and chunks."""

    prompt: Prompt
    parents: tuple[str, ...]
    exemplar_ids: tuple[str, ...]
    chunk_ids: tuple[str, ...]


@dataclass
class _Rest:
    """The tokens that are left for optional sections, and the sections taken so far."""

    tokens: int
    sections: dict[str, str] = field(default_factory=dict)

    def add(self, heading: str, text: str) -> None:
        """A sentence at the end of a section, if the section has begun and the sentence fits."""
        if heading in self.sections and estimate_tokens(text) <= self.tokens:
            self.sections[heading] += f"\n\n{text}"
            self.tokens -= estimate_tokens(text)

    def fill(self, heading: str, pieces: Sequence[str], share: float, join: Callable[[list[str]], str]) -> list[int]:
        """Add a section of the pieces that fit in its share. Returns their positions."""
        taken = take(pieces, int(self.tokens * share) - _OVERHEAD)
        if taken:
            text = join([pieces[position] for position in taken])
            self.sections[heading] = text
            self.tokens -= estimate_tokens(text) + _OVERHEAD
        return taken


class Prompts:
    """Makes prompts of at most `tokens`, unless the required sections need more. `headers`: the device primitives.

    `replies`: the forms of a reply that they teach; None teaches whole files alone. `advice`: what is known of schedules, the
    analytic prior if None.
    """

    def __init__(
        self,
        tokens: int,
        headers: Sequence[Header],
        replies: PromptedReplies | None = None,
        *,
        advice: ScheduleAdvice | None = None,
    ) -> None:
        self.tokens = tokens  # of a prompt; lowered by `shorten`
        self._replies = replies
        self._advice = advice or ScheduleAdvice()
        self._headers = tuple(headers)

    def shorten(self, tokens: int) -> None:
        """Make all later prompts of at most so many tokens."""
        self.tokens = min(self.tokens, tokens)

    def first(self, observation: Observation, assignment: Assignment, room: int | None = None) -> ComposedPrompt:
        """The prompt that opens a conversation. `room`: for how many candidates the round has room; None for any number."""
        replies = self._replies
        if replies and room is not None:
            replies = replace(replies, max_schedules=min(replies.max_schedules, room))
        values = _values(observation, assignment) | {"form": replies}
        if replies and replies.kind == "schedule":
            return self._of_schedules(observation, values)
        best = observation.best if isinstance(observation.best, Candidate) else None
        name = "repair" if assignment.failure else "improve" if best else "write"
        values["kernel_shown"] = name != "write"  # a patch needs one
        module = observation.task if isinstance(observation.task, ModuleTask) else None
        system, task, turn = (_render(f"{part}.md", values) for part in ("system", "module_task" if module else "task", name))
        # Every other reply is offered the way of CuTe, so that a round has both.
        offered = observation.cutlass and (observation.round + assignment.sample) % 2 == 0
        cute = _skeleton(values, "cute_") if offered else ""
        skeleton = cute or _skeleton(values) if name == "write" else ""
        example = skeleton or (_render("example.md", values) if name == "write" and not module else "")
        families = families_section(observation, replies, self._advice) if replies and not assignment.failure else ""
        used = sum(estimate_tokens(text) for text in (system, task, families, example, turn)) + _OVERHEAD
        required = _required(observation, best, assignment.failure)
        beside = cute.removeprefix(f"# {CUTE}\n\n") if name == "improve" else ""
        hand = assignment.failure.candidate if assignment.failure else best
        digests = self._digests(observation.task, hand.source if hand else "", example)
        declared = _declared_tokens(digests)
        needed = used + sum(_wanted(required)) + estimate_tokens(beside)
        left = max(self._budget(observation, needed) - used, MIN_TOKENS)
        declared = declared if declared <= _DECLARED * left else 0
        fixed = _shortened(required, left - declared)
        rest = _Rest(left - declared - sum(estimate_tokens(text) + _OVERHEAD for text in fixed.values()))
        if observation.newest and best and not assignment.failure:
            told = newest_text(observation.newest, time_text(observation, observation.newest.candidate_id))
            rest.fill("Diagnosis of the newest kernel", [told], _NEWEST, "".join)
        if beside:
            rest.fill(CUTE, [beside], _CUTE, "".join)
        rest.fill("What was tried", tried_text(observation), _TRIED, lambda rows: fenced("\n".join(rows)))
        exemplar_ids = self._exemplars(rest, best, assignment, observation.task)
        if module:
            if name == "write":
                rest.fill(EXAMPLES_HEADING, example_pieces(module), _EXAMPLES, _examples)
            rest.fill(PROBLEM, problem_text(module), _PROBLEM, "".join)
        share = _MODULE_PRIMITIVES if module else _KNOWN_PRIMITIVES if hand else _PRIMITIVES
        _add_primitives(rest, digests, declared, share)
        if not assignment.failure:
            rest.fill("Earlier right kernels", recent_text(observation, exemplar_ids), _RECENT, "\n\n".join)
        chunk_ids = _knowledge(rest, observation)
        sections = {**rest.sections, **fixed}
        ordered = sorted(sections, key=lambda heading: _ORDER.index(heading) if heading in _ORDER else len(_ORDER))
        shown = [f"# {heading}\n\n{sections[heading]}" for heading in ordered]
        body = "\n\n".join(part.strip("\n") for part in (task, families, example, *shown, turn) if part)
        messages = Message(role="system", content=system), Message(role="user", content=body)
        parent = assignment.failure.candidate if assignment.failure else best
        return ComposedPrompt(Prompt(messages=messages), (parent.id,) if parent else (), exemplar_ids, chunk_ids)

    def _of_schedules(self, observation: Observation, values: dict[str, Any]) -> ComposedPrompt:
        """The short prompt for replies that hold schedules only: no primitives, no sources, no chunks."""
        system = _render("schedule_system.md", values)
        left = max(self.tokens - estimate_tokens(system), MIN_TOKENS)
        task = _render("schedule_task.md", values | schedule_values(observation, left, self._advice))
        messages = Message(role="system", content=system), Message(role="user", content=task.strip("\n"))
        return ComposedPrompt(Prompt(messages=messages), (), (), ())

    def again(self, prompt: Prompt, reply: str, problem: str, *, cut: bool) -> Prompt:
        """The prompt that continues a conversation: the malformed reply, the reason, and the required form."""
        said = plain(shorten(reply, self.tokens // 2)).strip() or "(nothing)"
        asked = _render("again.md", {"problem": fenced(problem), "cut": cut, "form": self._replies})
        more = Message(role="assistant", content=said), Message(role="user", content=asked)
        return Prompt(messages=(*prompt.messages, *more))

    def _budget(self, observation: Observation, needed: int) -> int:
        """Tokens of a prompt whose required sections need so many."""
        if not observation.attempts:
            return min(self.tokens, OPENING_TOKENS)
        if isinstance(observation.task, ModuleTask):
            return self.tokens
        return min(self.tokens, max(LATER_TOKENS, needed + OPTIONAL_TOKENS))

    def _digests(self, task: Task, hand: str, example: str) -> list[Digest]:
        """The device primitives that fit the task. `hand`, `example`: sources that the prompt shows."""
        module = task if isinstance(task, ModuleTask) else None
        halves = module is None or module.arithmetic in (Arithmetic.F16, Arithmetic.BF16)
        headers = [header for header in self._headers if halves or header[0] not in _OF_HALVES]
        digests = primitives_for(task.arch, headers, hand=hand, skeleton=example)
        return digests if hand or module else [replace(one, kept=True) for one in digests]

    def _exemplars(self, rest: _Rest, best: Candidate | None, assignment: Assignment, task: Task) -> tuple[str, ...]:
        """The ids of the exemplars that fit. Each is a diff against a source that is shown before it, if it is close to one."""
        shown = [("the best kernel", best.source)] if best and not assignment.failure else []
        exemplars = []
        for exemplar in assignment.exemplars:
            exemplars.append(exemplar_text(exemplar, shown, task))
            shown.append((f"candidate {exemplar.candidate.id[:8]}", exemplar.candidate.source))
        taken = rest.fill("Exemplars", exemplars, _EXEMPLARS, "\n\n".join)
        return tuple(assignment.exemplars[position].candidate.id for position in taken)


def _knowledge(rest: _Rest, observation: Observation) -> tuple[str, ...]:
    """The ids of the chunks that fit."""
    pieces = [chunk_text(hit, mark_of(hit.chunk.id)) for hit in observation.hits]
    taken = rest.fill("Knowledge", pieces, _CHUNKS, "\n\n".join)
    return tuple(observation.hits[position].chunk.id for position in taken)


def _required(observation: Observation, best: Candidate | None, failure: Failure | None) -> dict[str, Callable[[int], str]]:
    """The required sections, each as a function of its maximum number of tokens."""
    required = required_sections(observation.task) if isinstance(observation.task, ModuleTask) else {}
    if failure:
        source, evaluation = failure.candidate.source, failure.evaluation
        required |= {
            "The kernel that failed": lambda tokens: source_text(source, tokens),
            "What became of it": lambda tokens: failure_text(evaluation, source, tokens),
        }
        if (proven := failure.proven) is not None:
            required["A kernel that was proven"] = lambda tokens: proven_text(source, proven, tokens)
        return required
    if best:
        required["The best kernel so far"] = lambda tokens: source_text(best.source, tokens)
    if best and (result := observation.best_evaluation):
        required["How it did"] = lambda tokens: result_text(result, tokens)
    if diagnosis := observation.diagnosis:
        required[f"Diagnosis of {_whose(observation, best)}"] = lambda tokens: diagnosis_text(
            diagnosis, observation.profile, observation.differences, tokens, _diagnosed(observation, best)
        )
    return required


def _diagnosed(observation: Observation, best: Candidate | None) -> Evaluation | None:
    """The evaluation of the candidate that the diagnosis is of, where it is the best one."""
    return observation.best_evaluation if best and observation.diagnosed in (None, best.id) else None


def _whose(observation: Observation, best: Candidate | None) -> str:
    diagnosed = observation.diagnosed
    if best and diagnosed in (None, best.id):
        return "the best kernel"
    return f"candidate {diagnosed[:8]}" if diagnosed else "the candidate in hand"


def _wanted(required: dict[str, Callable[[int], str]]) -> list[int]:
    """Tokens of the required sections in full."""
    return [estimate_tokens(text(_UNBOUNDED)) + _OVERHEAD for text in required.values()]


def _shortened(required: dict[str, Callable[[int], str]], tokens: int) -> dict[str, str]:
    """The required sections, each shortened to its fair share of the tokens."""
    shares = fair_shares(_wanted(required), tokens)
    return {heading: text(max(share - _OVERHEAD, 0)) for (heading, text), share in zip(required.items(), shares, strict=True)}


def _add_primitives(rest: _Rest, digests: Sequence[Digest], declared: int, share: float) -> None:
    """The device primitives that fit in a share of the rest; of its tokens so many `declared` were put aside for them."""
    rest.tokens += declared
    tokens = max(declared, int(rest.tokens * share))
    pieces = _commented(digests, tokens - _OVERHEAD, first=declared > 0)
    taken = rest.fill("Device primitives", pieces, tokens / max(rest.tokens, 1), _primitives)
    if left_out := [one.name for position, one in enumerate(digests) if position not in taken]:
        rest.add("Device primitives", f"There was no room for {', '.join(f'`<{name}>`' for name in left_out)}.")


def _declared_tokens(digests: Sequence[Digest]) -> int:
    """Tokens of the declarations that always have room."""
    briefs = [_tokens_of(_headed(one.name, one.brief)) for one in digests if one.kept]
    return sum(briefs) + 2 * _OVERHEAD if briefs else 0


def _tokens_of(piece: str) -> int:
    return estimate_tokens(piece) + 1


def _commented(digests: Sequence[Digest], tokens: int, *, first: bool) -> list[str]:
    """The headers in their order, each with its comments where they fit, else by its declarations alone.

    `first`: whether the declarations that always have room come before any comments.
    """
    kept = [_tokens_of(_headed(one.name, one.brief)) if first and one.kept else 0 for one in digests]
    left, pieces = tokens - sum(kept), list[str]()
    for one, own in zip(digests, kept, strict=True):
        left += own
        piece = _headed(one.name, one.text)
        if _tokens_of(piece) > left:
            piece = _headed(one.name, one.brief)
        left -= _tokens_of(piece) if _tokens_of(piece) <= left else 0
        pieces.append(piece)
    return pieces


def _headed(name: str, digest: str) -> str:
    return f"// <{name}>\n{digest}"


def _primitives(digests: list[str]) -> str:
    said = "In namespace cudal2, all `__device__ __forceinline__`. Included by the name in the first line of each."
    return f"{said}\n\n{fenced(chr(10).join(digests), 'cuda')}"


def _examples(pieces: list[str]) -> str:
    said = "Right for all sizes, as an emulator proved. Each is a module of its own, in f32, and shows a plan and one way."
    return "\n\n".join([said, *pieces])


def _values(observation: Observation, assignment: Assignment) -> dict[str, Any]:
    """The values that the templates may name."""
    task, chip = observation.task, observation.chip
    return {
        "form": None,
        "cutlass": observation.cutlass,
        "kernel_shown": False,
        "task": task,
        "module": isinstance(task, ModuleTask),
        "chip": chip,
        "limits": LIMITS[task.arch],
        "figures": (figures := FIGURES.get(task.arch)),
        "clusters": {size: figures.clusters_of(size) for size in _CLUSTERS} if figures else {},
        "arithmetic_us": arithmetic_us(task, chip),
        "memory_us": memory_us(task, chip),
        "floor_us": roofline_us(task, chip),
        "bound": bound_of(task, chip),
        "tried": bool(observation.attempts),
        "diagnosed": bool(observation.diagnosis),
        "exemplars": bool(assignment.exemplars),
        "yardstick": yardstick_text(observation),
        "left": left_text(observation),
        **(module_values(task, chip) if isinstance(task, ModuleTask) else {"element": _ELEMENTS[task.element]}),
    }


def _skeleton(values: dict[str, Any], kind: Literal["", "cute_"] = "") -> str:
    """The executed skeleton of the target with its heading; empty where there is none or the task is not among its shapes."""
    task = values["task"]
    if not isinstance(task, GemmTask):
        return ""
    arch = Arch.SM_80 if kind and task.arch is not Arch.SM_90A else task.arch
    try:
        source = _render(f"{kind}{arch.value}.cu", values)
    except TemplateNotFound:
        return ""
    names = {"M": task.m, "N": task.n, "K": task.k, "SMS": values["chip"].sms}
    served = all(holds(condition, names) for condition in parse_plan(source).requires)
    return _render("skeleton.md", {**values, "source": source, "cute": CUTE if kind else ""}) if served else ""


def _render(name: str, values: dict[str, Any]) -> str:
    return _environment().get_template(name).render(values)


@cache
def _environment() -> SandboxedEnvironment:
    """`templates/` and `skeletons/`. Values are inserted as text and never evaluated as templates."""
    return SandboxedEnvironment(
        loader=FileSystemLoader([Path(__file__).parent / folder for folder in ("templates", "skeletons")]),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
