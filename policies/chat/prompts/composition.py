"""Composes prompts: which sections a prompt has, in which order, and how its tokens are shared between them.

Required sections: rules, task, form, the current source, its result and its diagnosis. Sources and logs are shortened to
fair shares if they do not fit. Optional sections take whole pieces of the remaining tokens, in this order: exemplars (up to
0.5 of the rest), device primitives (up to 0.6 of the rest), attempts (up to 0.35 of the rest), chunks (all of the rest).
Sections that seldom change come first, so that servers can cache prefixes. A prompt depends on neither time nor chance.
Stored runs contain the words of the templates, and a replay matches prompts by hash: keep the words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from contract.candidate import Candidate
from contract.chip import LIMITS
from contract.exchange import Message, Prompt
from contract.roofline import arithmetic_us, memory_us, roofline_us
from contract.task import Arch, ElementType
from contract.trajectory import Failure, Observation
from policies.chat.assignment import Assignment
from policies.chat.prompts.failures import failure_text, proven_text
from policies.chat.prompts.fitting import fair_shares, shorten, take
from policies.chat.prompts.primitives import Header, primitives_for
from policies.chat.prompts.quoting import fenced, plain
from policies.chat.prompts.rendering import (
    chunk_text,
    diagnosis_text,
    exemplar_text,
    result_text,
    source_text,
    tried_text,
)
from policies.chat.tokens import estimate_tokens

MIN_TOKENS = 400  # for the required sections, however small the budget
_UNBOUNDED = 10**9
_EXEMPLARS, _PRIMITIVES, _TRIED, _CHUNKS = 0.5, 0.6, 0.35, 1.0  # maximum shares of the tokens that are left
# Other sections (the failure, the diagnosis) follow these in the order in which they are made.
_ORDER = ("Device primitives", "Knowledge", "What was tried", "The best kernel so far", "How it did", "Exemplars")
_OVERHEAD = 24  # tokens for the heading and the fences of a section
_ELEMENTS = {ElementType.F16: "__half", ElementType.BF16: "__nv_bfloat16"}


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

    def fill(self, heading: str, pieces: Sequence[str], share: float, join: Callable[[list[str]], str]) -> list[int]:
        """Add a section of the pieces that fit in its share. Returns their positions."""
        taken = take(pieces, int(self.tokens * share) - _OVERHEAD)
        if taken:
            text = join([pieces[position] for position in taken])
            self.sections[heading] = text
            self.tokens -= estimate_tokens(text) + _OVERHEAD
        return taken


class Prompts:
    """Makes prompts of at most `tokens`, unless the required sections need more. `headers`: the device primitives."""

    def __init__(self, tokens: int, headers: Sequence[Header]) -> None:
        self._tokens = tokens
        self._headers = tuple(headers)
        self._digests: dict[Arch, list[str]] = {}

    def first(self, observation: Observation, assignment: Assignment) -> ComposedPrompt:
        """The prompt that opens a conversation."""
        values = _values(observation)
        best = observation.best if isinstance(observation.best, Candidate) else None
        name = "repair" if assignment.failure else "improve" if best else "write"
        system, task, turn = (_render(f"{part}.md", values) for part in ("system", "task", name))
        example = _render("example.md", values) if name == "write" else ""
        used = sum(estimate_tokens(text) for text in (system, task, example, turn)) + _OVERHEAD
        left = max(self._tokens - used, MIN_TOKENS)
        fixed = _shortened(_required(observation, best, assignment.failure), left)
        rest = _Rest(left - sum(estimate_tokens(text) + _OVERHEAD for text in fixed.values()))
        exemplar_ids, chunk_ids = self._fill(rest, observation, best, assignment)
        sections = {**rest.sections, **fixed}
        ordered = sorted(sections, key=lambda heading: _ORDER.index(heading) if heading in _ORDER else len(_ORDER))
        shown = [f"# {heading}\n\n{sections[heading]}" for heading in ordered]
        body = "\n\n".join(part.strip("\n") for part in (task, example, *shown, turn) if part)
        messages = Message(role="system", content=system), Message(role="user", content=body)
        parent = assignment.failure.candidate if assignment.failure else best
        return ComposedPrompt(Prompt(messages=messages), (parent.id,) if parent else (), exemplar_ids, chunk_ids)

    def again(self, prompt: Prompt, reply: str, problem: str, *, cut: bool) -> Prompt:
        """The prompt that continues a conversation: the malformed reply, the reason, and the required form."""
        said = plain(shorten(reply, self._tokens // 2)).strip() or "(nothing)"
        asked = _render("again.md", {"problem": fenced(problem), "cut": cut})
        more = Message(role="assistant", content=said), Message(role="user", content=asked)
        return Prompt(messages=(*prompt.messages, *more))

    def _fill(
        self, rest: _Rest, observation: Observation, best: Candidate | None, assignment: Assignment
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Fill the remaining tokens with optional sections. Returns the ids of the exemplars and chunks taken."""
        shown = [("the best kernel", best.source)] if best and not assignment.failure else []
        exemplars = []
        for exemplar in assignment.exemplars:
            exemplars.append(exemplar_text(exemplar, shown))
            shown.append((f"candidate {exemplar.candidate.id[:8]}", exemplar.candidate.source))
        contrast = rest.fill("Exemplars", exemplars, _EXEMPLARS, "\n\n".join)
        rest.fill("Device primitives", self._primitives(observation.task.arch), _PRIMITIVES, _primitives)
        rest.fill("What was tried", tried_text(observation.attempts), _TRIED, lambda lines: fenced("\n".join(lines)))
        taken = rest.fill("Knowledge", [chunk_text(hit) for hit in observation.hits], _CHUNKS, "\n\n".join)
        return (
            tuple(assignment.exemplars[position].candidate.id for position in contrast),
            tuple(observation.hits[position].chunk.id for position in taken),
        )

    def _primitives(self, arch: Arch) -> list[str]:
        if arch not in self._digests:
            self._digests[arch] = [f"// <{name}>\n{digest}" for name, digest in primitives_for(arch, self._headers)]
        return self._digests[arch]


def _required(observation: Observation, best: Candidate | None, failure: Failure | None) -> dict[str, Callable[[int], str]]:
    """The required sections, each as a function of its maximum number of tokens."""
    required: dict[str, Callable[[int], str]] = {}
    if failure:
        source, evaluation = failure.candidate.source, failure.evaluation
        required = {
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
            diagnosis, observation.profile, observation.differences, tokens
        )
    return required


def _whose(observation: Observation, best: Candidate | None) -> str:
    diagnosed = observation.diagnosed
    if best and diagnosed in (None, best.id):
        return "the best kernel"
    return f"candidate {diagnosed[:8]}" if diagnosed else "the candidate in hand"


def _shortened(required: dict[str, Callable[[int], str]], tokens: int) -> dict[str, str]:
    """The required sections, each shortened to its fair share of the tokens."""
    wanted = [estimate_tokens(text(_UNBOUNDED)) + _OVERHEAD for text in required.values()]
    shares = fair_shares(wanted, tokens)
    return {heading: text(max(share - _OVERHEAD, 0)) for (heading, text), share in zip(required.items(), shares, strict=True)}


def _primitives(digests: list[str]) -> str:
    said = "In namespace cudal2, all `__device__ __forceinline__`. Included by the name in the first line of each."
    return f"{said}\n\n{fenced(chr(10).join(digests), 'cuda')}"


def _values(observation: Observation) -> dict[str, Any]:
    """The values that the templates may name."""
    task, chip = observation.task, observation.chip
    floor_us = roofline_us(task, chip)
    return {
        "task": task,
        "chip": chip,
        "limits": LIMITS[task.arch],
        "element": _ELEMENTS[task.element],
        "arithmetic_us": arithmetic_us(task, chip),
        "memory_us": memory_us(task, chip),
        "floor_us": floor_us,
        "launch_share": chip.launch_us / floor_us,
    }


def _render(name: str, values: dict[str, Any]) -> str:
    return _environment().get_template(name).render(values)


@cache
def _environment() -> SandboxedEnvironment:
    """The templates of `templates/`. Values are inserted as text and never evaluated as templates."""
    return SandboxedEnvironment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
