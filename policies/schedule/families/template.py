"""A family's CUDA source as a template: a schedule's constants are inserted, and the sections that it does not use are dropped.

Markers stand on lines of their own:

- `//@constants` is replaced by the constants, but for those that the kept text does not mention.
- `//@section NAME ...` opens a section, which is kept if one of its names is used. The next section closes it.
- `//@end` closes a section that no other one follows.
"""

import re
from collections.abc import Collection, Iterable
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple

from cudal2_agent.contract.records.task import AccumulatorType, Activation, ElementType, GemmTask

CONSTANTS, SECTION, END = "//@constants\n", "//@section ", "//@end\n"
_ELEMENTS = {ElementType.F16: "__half", ElementType.BF16: "__nv_bfloat16"}
_ACTIVATIONS = {
    Activation.RELU: "Relu",
    Activation.GELU: "Gelu",
    Activation.GELU_TANH: "GeluTanh",
    Activation.SILU: "Silu",
}
_REGISTERS = {AccumulatorType.F32: "float", AccumulatorType.F16: "unsigned"}


class KernelConstant(NamedTuple):
    """A compile-time constant: a C++ `bool` for True and False, an `int` otherwise."""

    name: str
    value: int
    comment: str = ""

    def line(self) -> str:
        return _declaration(self.name, self.value, self.comment)


@lru_cache(maxsize=4096, typed=True)  # typed, because True equals 1
def _declaration(name: str, value: int, comment: str) -> str:
    boolean = isinstance(value, bool)
    shown = str(value).lower() if boolean else value
    return f"constexpr {'bool' if boolean else 'int'} {name} = {shown};{comment and f'  // {comment}'}"


class TextBlock(NamedTuple):
    """Text between two markers. `names`: of its section, none where it is in no section. `words`: what it mentions."""

    names: frozenset[str]
    text: str
    words: frozenset[str]


class SourceTemplate:
    """`sections`: the names of all sections."""

    def __init__(self, text: str) -> None:
        self._blocks = list(_blocks(text))
        self._kept: dict[frozenset[str], tuple[str, str, frozenset[str]]] = {}
        self.sections = frozenset(name for block in self._blocks for name in block.names)

    def fill(self, task: GemmTask, constants: Iterable[KernelConstant], used: Collection[str] = ()) -> str:
        """The source for a schedule. `used`: names of sections to keep. Raises: ValueError for a name that no section has."""
        before, after, words = self._keep(frozenset(used))
        lines = [*_types(task), *(one.line() for one in constants if one.name in words)]
        return "\n".join((before, *lines, after))

    def _keep(self, used: frozenset[str]) -> tuple[str, str, frozenset[str]]:
        """The kept text before and behind the constants, and the words in it; each combination of sections is joined once."""
        if used not in self._kept:
            if unknown := used - self.sections:
                raise ValueError(f"the template has no section {', '.join(sorted(unknown))}")
            kept = [block for block in self._blocks if not block.names or not block.names.isdisjoint(used)]
            before, _, after = "".join(block.text for block in kept).partition(f"\n{CONSTANTS}")
            self._kept[used] = before, after, frozenset().union(*(block.words for block in kept))
        return self._kept[used]


@cache
def template_of(family: str) -> SourceTemplate:
    """The template of a family: `FAMILY/FAMILY.cu` beside this file."""
    return SourceTemplate(files(__package__).joinpath(family, f"{family}.cu").read_text(encoding="utf-8"))


def _types(task: GemmTask) -> list[str]:
    activation = [f"using Activation = {_ACTIVATIONS[task.activation]};  // of the sums"] if task.activation else []
    return [
        "// ---- schedule " + "-" * 111,
        f"using Element = {_ELEMENTS[task.element]};",
        f"using Register = {_REGISTERS[task.accumulate]};  // of the accumulator: a float, or two packed halves",
        *activation,
    ]


def _blocks(text: str) -> Iterable[TextBlock]:
    """The text divided at its markers."""
    names: frozenset[str] = frozenset()
    lines: list[str] = []
    for line in (*text.splitlines(keepends=True), END):
        if line == END or line.startswith(SECTION):
            block = "".join(lines)
            yield TextBlock(names, block, frozenset(re.findall(r"\w+", block)))
            names, lines = frozenset(line.removeprefix(SECTION).split()) if line != END else frozenset(), []
        else:
            lines.append(line)
