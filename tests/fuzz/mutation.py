"""Mutations of PTX text, most of which still parse, and of launches. Equal seeds give equal mutants."""

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tests.fuzz.launches import mutate_launch
from tests.fuzz.seed import Seed

_REGISTER = re.compile(r"%[a-z]+\d+\b")
_NUMBER = re.compile(r"(?<![\w%$.])-?(?:0x[0-9a-fA-F]+|\d+)\b(?!\.)")
_ARRAY = re.compile(r"^(\s*\.(?:shared|local)\b.*)\[(\d+)\];")
_LABEL = re.compile(r"\$L_\w+")
_INSTRUCTION = re.compile(r"^(?P<margin>\s*(?:\{\s*)?)(?P<guard>@!?%?\w+\s+)?(?P<opcode>[a-z][\w.:]*)(?P<operands>\s+[^;]*)?;")
_BETWEEN_OPERANDS = re.compile(r",(?![^{\[]*[}\]])")
_SMALL = (0, 1, 2, 3, 4, 7, 8, 12, 15, 16, 17, 31, 32, 33, 63, 64, 100, 127, 128, 255, 256, 1023, 1024, 4095, 65535, 65536)
_LARGE = (2**20, 2**24 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**47, 2**63 - 1, -1, -16, -128, -(2**31))
_SIZES = (0, 1, 16, 128, 1024, 49152, 2**16, 2**20, 2**32, 2**40)
_SPACES = ("global", "shared", "shared::cluster", "shared::cta", "local", "param", "const")
_PIECES = ("", ";", "{", "}", "[", ",", ".", "%", "-", "\\", '"', "0f3F800000", "/*")
_MOST_CHANGES = 4
_LAUNCH_SHARE = 0.3


@dataclass(frozen=True)
class Vocabulary:
    """Parts for new instructions: whole instructions, and opcodes by their first component."""

    instructions: tuple[str, ...]
    opcodes: dict[str, tuple[str, ...]]


def vocabulary(texts: Iterable[str]) -> Vocabulary:
    found = {line: match["opcode"] for text in texts for line in text.splitlines() if (match := _INSTRUCTION.match(line))}
    opcodes: dict[str, set[str]] = {}
    for opcode in found.values():
        opcodes.setdefault(opcode.partition(".")[0], set()).add(opcode)
    return Vocabulary(tuple(sorted(found)), {base: tuple(sorted(alike)) for base, alike in opcodes.items()})


def mutate(seed: Seed, words: Vocabulary, rng: random.Random) -> Seed:
    """Change the text in one or several places, and sometimes the launches."""
    launches = seed.launches
    if rng.random() < _LAUNCH_SHARE:
        launches = tuple(mutate_launch(launch, rng) for launch in launches)
    return replace(seed, ptx=mutate_text(seed.ptx, words, rng), launches=launches)


def mutate_text(text: str, words: Vocabulary, rng: random.Random) -> str:
    mutation = _Mutation(text.splitlines(), words, rng)
    for _ in range(rng.randint(1, _MOST_CHANGES)):
        mutation.change()
    return "\n".join(mutation.lines) + "\n"


@dataclass(frozen=True)
class _Mutation:
    """A text under mutation."""

    lines: list[str]
    words: Vocabulary
    rng: random.Random

    def change(self) -> None:
        within = (self._register, self._register, self._number, self._number, self._immediate, self._opcode, self._modifier)
        within += (self._operands, self._guard)
        if self.rng.random() < 0.55:
            at = self._instruction()
            if at is not None:
                self.lines[at] = self.rng.choice(within)(self.lines[at])
        else:
            among = (
                self._delete,
                self._repeat,
                self._swap,
                self._graft,
                self._graft,
                self._branch,
                self._resize,
                self._scribble,
            )
            self.rng.choice(among)()

    # ---- within an instruction ----------------------------------------------------------------------------------------------
    def _register(self, line: str) -> str:
        return self._replaced(_REGISTER, line, self._like)

    def _number(self, line: str) -> str:
        return self._replaced(_NUMBER, line, lambda old: str(self._drawn(old)))

    def _immediate(self, line: str) -> str:
        return self._replaced(_REGISTER, line, lambda _: str(self._drawn("0")))

    def _opcode(self, line: str) -> str:
        match = _matched(line)
        return line[: match.start("opcode")] + self.rng.choice(self._kin(match["opcode"])) + line[match.end("opcode") :]

    def _modifier(self, line: str) -> str:
        match, rng = _matched(line), self.rng
        parts, donor = match["opcode"].split("."), rng.choice(self._kin(match["opcode"])).split(".")
        at = rng.randrange(len(parts))
        match rng.randrange(4):
            case 0 if at:
                parts[at] = rng.choice(donor)
            case 1 if at:
                del parts[at]
            case 2:
                parts.insert(at + 1, rng.choice(donor))
            case _:
                parts = [rng.choice(_SPACES) if part in _SPACES else part for part in parts]
        found = _matched(line)
        return line[: found.start("opcode")] + ".".join(parts) + line[found.end("opcode") :]

    def _operands(self, line: str) -> str:
        match, rng = _matched(line), self.rng
        operands = _BETWEEN_OPERANDS.split(match["operands"] or "")
        kind = rng.random()
        if kind < 0.7:
            rng.shuffle(operands)
        elif kind < 0.85:
            operands.pop(rng.randrange(len(operands)))
        else:
            operands.insert(rng.randrange(len(operands) + 1), rng.choice(operands))
        return f"{line[: match.end('opcode')]} {','.join(operands)};"

    def _guard(self, line: str) -> str:
        match, rng = _matched(line), self.rng
        guard = "" if match["guard"] and rng.random() < 0.5 else f"@{rng.choice(('', '!'))}%p{rng.randint(1, 9)} "
        return match["margin"] + guard + line[match.start("opcode") :]

    # ---- among instructions -------------------------------------------------------------------------------------------------
    def _delete(self) -> None:
        at = self._instruction()
        if at is not None:
            del self.lines[at]

    def _repeat(self) -> None:
        at, to = self._instruction(), self._instruction()
        if at is not None and to is not None:
            self.lines[to:to] = [self.lines[at]] * self.rng.choice((1, 1, 1, 2, 40))

    def _swap(self) -> None:
        at, to = self._instruction(), self._instruction()
        if at is not None and to is not None:
            self.lines[at], self.lines[to] = self.lines[to], self.lines[at]

    def _graft(self) -> None:
        """An instruction from elsewhere, with registers of this text."""
        at = self._instruction()
        if at is not None:
            line = self.rng.choice(self.words.instructions)
            self.lines.insert(at, _REGISTER.sub(lambda match: self._like(match[0]), line))

    def _branch(self) -> None:
        labels = sorted({label for line in self.lines for label in _LABEL.findall(line)})
        jumps = [at for at, line in enumerate(self.lines) if "bra" in line and _LABEL.search(line)]
        if jumps and self.rng.random() < 0.7:
            at, label = self.rng.choice(jumps), self.rng.choice(labels)
            self.lines[at] = _LABEL.sub(lambda _: label, self.lines[at], count=1)
        elif labels and (place := self._instruction()) is not None:
            self.lines.insert(place, f"@%p{self.rng.randint(1, 5)} bra {self.rng.choice(labels)};")

    def _resize(self) -> None:
        places = [at for at, line in enumerate(self.lines) if _ARRAY.match(line)]
        if places:
            at, size = self.rng.choice(places), self.rng.choice(_SIZES)
            self.lines[at] = _ARRAY.sub(lambda match: f"{match[1]}[{size}];", self.lines[at])

    def _scribble(self) -> None:
        if self.lines:
            at = self.rng.randrange(len(self.lines))
            line, cut = self.lines[at], self.rng.randint(0, len(self.lines[at]))
            self.lines[at] = line[:cut] + self.rng.choice(_PIECES) + line[cut + 1 :]

    # ---- draws --------------------------------------------------------------------------------------------------------------
    def _instruction(self) -> int | None:
        """The line of a random instruction; None if a few draws find none."""
        for _ in range(30 if self.lines else 0):
            at = self.rng.randrange(len(self.lines))
            if _INSTRUCTION.match(self.lines[at]):
                return at
        return None

    def _like(self, name: str) -> str:
        """A register of the text with the same name prefix."""
        alike = re.compile(rf"{name.rstrip('0123456789')}\d+\b")
        for _ in range(20):
            if found := alike.findall(self.rng.choice(self.lines)):
                return self.rng.choice(found)
        return name

    def _drawn(self, old: str) -> int:
        value = int(old, 16 if "x" in old else 10)
        near = (value + self.rng.choice((-16, -1, 1, 16)), value ^ 1 << self.rng.randrange(32))
        return self.rng.choice((self.rng.choice(_SMALL), self.rng.choice(_LARGE), *near))

    def _kin(self, opcode: str) -> tuple[str, ...]:
        return self.words.opcodes.get(opcode.partition(".")[0], (opcode,))

    def _replaced(self, pattern: re.Pattern[str], line: str, new: Callable[[str], str]) -> str:
        found = list(pattern.finditer(line))
        if not found:
            return line
        match = self.rng.choice(found)
        return line[: match.start()] + new(match[0]) + line[match.end() :]


def _matched(line: str) -> re.Match[str]:
    match = _INSTRUCTION.match(line)
    assert match is not None
    return match
