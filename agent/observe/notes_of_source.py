"""Sections of the shipped notes about what a failed source uses: its instructions and primitives, not the words of a message.

A section is about the identifiers that it shares with the source. Both are split at underscores, dots and capitals, and a
part that few sections have counts more. Of the source, what the failure points at counts: the lines of a finding or of a
barrier, and for exchanged elements the names that place elements. Pure, but for reading the notes.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cudal2_agent.knowledge
from cudal2_agent.contract.records.evaluation import Evaluation, Rejected, TimedOut, Wrong
from cudal2_agent.contract.records.knowledge import NOTES, Chunk, Hit
from cudal2_agent.contract.records.symptoms import Symptoms
from cudal2_agent.contract.records.task import Arch

SECTIONS, TOKENS = 3, 1500
_FOLDER = Path(cudal2_agent.knowledge.__file__).parent / "notes"
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:(?:::|\.)[A-Za-z][A-Za-z0-9_]*)*")
_PART = re.compile(r"[A-Z]?[a-z]+[0-9]*|[A-Z]+(?![a-z])|[0-9]+")
_NAMED_LINE = re.compile(r"\bkernel\.cu:(\d+)")
_SHORTEST = 3
_SATURATION = 2.0  # a part that a section has this often counts half of what it can count
# Parts of the names that place elements in shared memory, and of those that bring results out.
_PLACES = frozenset({"descriptor", "advance", "swizzle", "ldmatrix", "stmatrix", "tran", "box"})
_STORES = frozenset({"store", "stmatrix", "commit", "guard", "atomic", "red"})


@dataclass(frozen=True)
class NoteSection:
    """A section with its heading. `parts`: how often it has each part of an identifier, the note's title counted once."""

    chunk: Chunk
    parts: Counter[str]

    def serves(self, arch: Arch) -> bool:
        return not self.chunk.archs or arch.value in self.chunk.archs


def notes_of_source(source: str, evaluation: Evaluation, arch: Arch) -> list[Hit]:
    """The sections nearest to the lines that a failure points at, best first; none where the two share no name."""
    wanted = frozenset(part for name in _names_at_fault(source, evaluation) for part in parts_of(name))
    sections = [section for section in _sections() if section.serves(arch)]
    held = Counter(part for section in sections for part in section.parts)
    scored = [(_score(section, wanted, held, len(sections)), section) for section in sections]
    hits, left = list[Hit](), TOKENS
    for score, section in sorted(scored, key=lambda each: -each[0]):
        if score > 0 and section.chunk.tokens <= left and len(hits) < SECTIONS:
            hits.append(Hit(chunk=section.chunk, score=score))
            left -= section.chunk.tokens
    return hits


def parts_of(text: str) -> Iterator[str]:
    """The parts of a text's identifiers, in small letters: `wgmma_descriptors` has `wgmma` and `descriptor`."""
    for identifier in _IDENTIFIER.findall(text):
        yield from (_stem(part.lower()) for part in _PART.findall(identifier) if len(part) >= _SHORTEST)


def _stem(part: str) -> str:
    """Without the ending of a plural or a participle: `swizzles` and `swizzled` are `swizzle`."""
    return part.removesuffix("d") if part.endswith("ed") else part.removesuffix("s")


def _score(section: NoteSection, wanted: Iterable[str], held: Counter[str], sections: int) -> float:
    """A sum over shared parts, by how rare each is among the sections and how often this section has it."""
    total = 0.0
    for part in wanted:
        if count := section.parts[part]:
            total += math.log(sections / held[part]) * count / (count + _SATURATION)
    return total


def _names_at_fault(source: str, evaluation: Evaluation) -> Sequence[str]:
    """The identifiers of the lines that the failure names; else those whose names do what went wrong; else all."""
    lines = source.split("\n")
    named = [lines[number - 1] for number in _numbers(evaluation) if 1 <= number <= len(lines)]
    names: list[str] = _IDENTIFIER.findall("\n".join(named) or source)
    doing = frozenset() if named else _of_symptoms(_symptoms_of(evaluation))
    return [name for name in names if not doing.isdisjoint(parts_of(name))] or names


def _numbers(evaluation: Evaluation) -> Iterator[int]:
    """Lines of the source by place: of a broken rule, of a finding, of the barriers that are waited at."""
    match evaluation:
        case Rejected():
            yield from (evaluation.line,) if evaluation.line else ()
        case Wrong():
            yield from map(int, _NAMED_LINE.findall(evaluation.test.message))
    symptoms = _symptoms_of(evaluation)
    for wait in symptoms.waits if symptoms else ():
        for text in (wait.at, *wait.history):
            yield from map(int, _NAMED_LINE.findall(text))


def _symptoms_of(evaluation: Evaluation) -> Symptoms | None:
    match evaluation:
        case Wrong():
            return evaluation.test.symptoms
        case TimedOut():
            return evaluation.symptoms
        case _:
            return None


def _of_symptoms(symptoms: Symptoms | None) -> frozenset[str]:
    if symptoms is None:
        return frozenset()
    return _PLACES if symptoms.sources else _STORES


@cache
def _sections() -> tuple[NoteSection, ...]:
    return tuple(section for path in sorted(_FOLDER.glob("*.md")) for section in _of_note(path))


def _of_note(path: Path) -> Iterator[NoteSection]:
    """The sections of a note, without its list of sources."""
    lines = path.read_text(encoding="utf-8").splitlines()
    archs = next((line.partition(":")[2].replace(",", " ").split() for line in lines[:12] if line.startswith("archs:")), [])
    title = next((line for line in lines if line.startswith("# ")), "")
    starts = [number for number, line in enumerate(lines) if line.startswith("## ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        heading = lines[start].removeprefix("## ")
        if heading == "Sources":
            continue
        text = "\n".join(lines[start:end]).strip()
        chunk = Chunk(
            release=NOTES,
            path=path.name,
            start_line=start + 1,
            end_line=end,
            symbol=heading,
            kind="section",
            archs=tuple(archs),
            text=text,
        )
        yield NoteSection(chunk, Counter(parts_of(f"{title}\n{text}")))
