"""Prompts: which sections a model is shown, in which order, and how the tokens are dealt out between them.

Always in: rules, task, form, the source in hand, what became of it, its diagnosis; sources and logs are shortened to fair
shares where they do not fit whole. The rest is filled whole piece by whole piece, in this order: exemplars (up to half of
what is left), device primitives (up to 0.6 of what is left then), the table of what was tried (0.35), chunks (all of it).
What seldom changes stands first, so that servers that cache prefixes can. Nothing in a prompt depends on time or chance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from contract.candidate import Candidate
from contract.chip import LIMITS, roofline_us
from contract.exchange import Message, Prompt
from contract.task import Arch, ElementType
from contract.trajectory import Failure, Observation
from policies.chat.assignment import Assignment
from policies.chat.prompts.allotment import fair_shares, take
from policies.chat.prompts.primitives import Header, primitives_for
from policies.chat.prompts.quoting import fenced, plain
from policies.chat.prompts.rendering import (
    chunk_text,
    diagnosis_text,
    exemplar_text,
    failure_text,
    result_text,
    source_text,
    tried_text,
)
from policies.chat.prompts.shortening import shorten
from policies.chat.tokens import estimate_tokens

LEAST_TOKENS = 400  # for what must be in, however small the budget
_UNBOUNDED = 10**9
_EXEMPLARS, _PRIMITIVES, _TRIED, _CHUNKS = 0.5, 0.6, 0.35, 1.0  # at most, of what is left when their turn comes
# Others (what failed, the diagnosis) follow these in the order they are made.
_ORDER = ("Device primitives", "Knowledge", "What was tried", "The best kernel so far", "How it did", "Exemplars")
_OVERHEAD = 24  # tokens of a section's heading and fences
_ELEMENTS = {ElementType.F16: "__half", ElementType.BF16: "__nv_bfloat16"}


@dataclass(frozen=True)
class Request:
    """A prompt and what it holds: `parents` whose source it shows, ids of the exemplars in it and of the chunks it quotes."""

    prompt: Prompt
    parents: tuple[str, ...]
    exemplar_ids: tuple[str, ...]
    chunk_ids: tuple[str, ...]


@dataclass
class _Rest:
    """What is left of the budget for sections that may be in, and those that are."""

    tokens: int
    sections: dict[str, str] = field(default_factory=dict)

    def fill(self, heading: str, pieces: Sequence[str], share: float, join: Callable[[list[str]], str]) -> list[int]:
        """Add a section of the pieces that fit in its share; their positions."""
        taken = take(pieces, int(self.tokens * share) - _OVERHEAD)
        if taken:
            text = join([pieces[position] for position in taken])
            self.sections[heading] = text
            self.tokens -= estimate_tokens(text) + _OVERHEAD
        return taken


class Prompts:
    """Makes prompts of at most `tokens`, as far as the parts that must be in let it. `headers`: the device primitives."""

    def __init__(self, tokens: int, headers: Sequence[Header]) -> None:
        self._tokens = tokens
        self._headers = tuple(headers)
        self._digests: dict[Arch, list[str]] = {}

    def first(self, observation: Observation, assignment: Assignment) -> Request:
        """The prompt that opens a conversation."""
        values = _values(observation)
        best = observation.best if isinstance(observation.best, Candidate) else None
        name = "repair" if assignment.failure else "improve" if best else "write"
        system, task, turn = (_render(f"{part}.md", values) for part in ("system", "task", name))
        example = _render("example.md", values) if name == "write" else ""
        used = sum(estimate_tokens(text) for text in (system, task, example, turn)) + _OVERHEAD
        left = max(self._tokens - used, LEAST_TOKENS)
        fixed = _shortened(_must(observation, best, assignment.failure), left)
        rest = _Rest(left - sum(estimate_tokens(text) + _OVERHEAD for text in fixed.values()))
        exemplar_ids, chunk_ids = self._fill(rest, observation, best, assignment)
        sections = {**rest.sections, **fixed}
        ordered = sorted(sections, key=lambda heading: _ORDER.index(heading) if heading in _ORDER else len(_ORDER))
        shown = [f"# {heading}\n\n{sections[heading]}" for heading in ordered]
        body = "\n\n".join(part.strip("\n") for part in (task, example, *shown, turn) if part)
        messages = Message(role="system", content=system), Message(role="user", content=body)
        parent = assignment.failure.candidate if assignment.failure else best
        return Request(Prompt(messages=messages), (parent.id,) if parent else (), exemplar_ids, chunk_ids)

    def again(self, prompt: Prompt, reply: str, problem: str, *, cut: bool) -> Prompt:
        """The conversation continued: what could not be read, why, and the form again."""
        said = plain(shorten(reply, self._tokens // 2)).strip() or "(nothing)"
        asked = _render("again.md", {"problem": fenced(problem), "cut": cut})
        more = Message(role="assistant", content=said), Message(role="user", content=asked)
        return Prompt(messages=(*prompt.messages, *more))

    def _fill(
        self, rest: _Rest, observation: Observation, best: Candidate | None, assignment: Assignment
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Fill what is left with what may be in; the ids of the exemplars and of the chunks that are."""
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


def _must(observation: Observation, best: Candidate | None, failure: Failure | None) -> dict[str, Callable[[int], str]]:
    """What must be in, each as a function of the tokens it may take."""
    if failure:
        source, evaluation = failure.candidate.source, failure.evaluation
        return {
            "The kernel that failed": lambda tokens: source_text(source, tokens),
            "What became of it": lambda tokens: failure_text(evaluation, source, tokens),
        }
    must: dict[str, Callable[[int], str]] = {}
    if best:
        must["The best kernel so far"] = lambda tokens: source_text(best.source, tokens)
    if best and (result := observation.best_evaluation):
        must["How it did"] = lambda tokens: result_text(result, tokens)
    if diagnosis := observation.diagnosis:
        must[f"Diagnosis of {_whose(observation, best)}"] = lambda tokens: diagnosis_text(
            diagnosis, observation.profile, observation.differences, tokens
        )
    return must


def _whose(observation: Observation, best: Candidate | None) -> str:
    diagnosed = observation.diagnosed
    if best and diagnosed in (None, best.id):
        return "the best kernel"
    return f"candidate {diagnosed[:8]}" if diagnosed else "the candidate in hand"


def _shortened(must: dict[str, Callable[[int], str]], tokens: int) -> dict[str, str]:
    """The sections, each within its fair share of the tokens."""
    wanted = [estimate_tokens(text(_UNBOUNDED)) + _OVERHEAD for text in must.values()]
    shares = fair_shares(wanted, tokens)
    return {heading: text(max(share - _OVERHEAD, 0)) for (heading, text), share in zip(must.items(), shares, strict=True)}


def _primitives(digests: list[str]) -> str:
    said = "In namespace cudal2, all `__device__ __forceinline__`. Included by the name in the first line of each."
    return f"{said}\n\n{fenced(chr(10).join(digests), 'cuda')}"


def _values(observation: Observation) -> dict[str, Any]:
    """What the templates may name."""
    task, chip = observation.task, observation.chip
    floor_us = roofline_us(task.flops, task.operand_bytes, chip)
    return {
        "task": task,
        "chip": chip,
        "limits": LIMITS[task.arch],
        "element": _ELEMENTS[task.element],
        "arithmetic_us": task.flops / (chip.tensor_tflops * 1e6),
        "memory_us": task.operand_bytes / (chip.dram_tbps * 1e6),
        "floor_us": floor_us,
        "launch_share": chip.launch_us / floor_us,
    }


def _render(name: str, values: dict[str, Any]) -> str:
    return _environment().get_template(name).render(values)


@cache
def _environment() -> SandboxedEnvironment:
    """The templates of `templates/`. What is put into them is text, never a template."""
    return SandboxedEnvironment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
