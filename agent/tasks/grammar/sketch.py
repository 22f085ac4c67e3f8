"""A problem while it is drawn: sizes, layers, inputs and the lines of `forward`; and its text as a file."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cudal2_agent.agent.tasks.grammar.choices import Choices
from cudal2_agent.agent.tasks.grammar.sizes import Size, written

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_KEPT = re.compile(r"\w+ = \w+", re.ASCII)
_WORDS = 4  # of the operations in a name


class DrawnTensor(NamedTuple):
    """A tensor of `forward`. `channel`: the dimension that parameters belong to. `maps`: whether places follow it."""

    name: str
    shape: tuple[Size, ...]
    channel: int

    @property
    def maps(self) -> bool:
        return self.channel < len(self.shape) - 1

    @property
    def channels(self) -> Size:
        return self.shape[self.channel]

    @property
    def last(self) -> int:
        return len(self.shape) - 1

    @property
    def elements(self) -> int:
        found = 1
        for size in self.shape:
            found *= size.value
        return found

    @property
    def along_channel(self) -> tuple[Size, ...]:
        """The shape of a parameter with an element for each channel."""
        return (self.channels, *(Size("1", 1) for _ in range(self.last - self.channel)))

    def resized(self, dim: int, size: Size) -> "DrawnTensor":
        return self._replace(shape=(*self.shape[:dim], size, *self.shape[dim + 1 :]))


@dataclass
class Sketch:
    """`words`: what its operations are called, in order. `results`: names that `forward` returns; the last value for none."""

    choices: Choices
    sizes: list[tuple[str, int]] = field(default_factory=list)
    layers: list[tuple[str, str]] = field(default_factory=list)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def dim(self, name: str, value: int) -> Size:
        """A size at the top of the file; one of the same name and value is shared."""
        taken = {other for other, held in self.dims.items() if held != value} | {
            held for held, _ in (*self.layers, *self.inputs)
        }
        name = self._free(name, taken)
        if name not in self.dims:
            self.sizes.append((name, value))
        return Size(name, value)

    def layer(self, name: str, text: str) -> str:
        """An attribute of the module, as `forward` writes it."""
        name = self._free(name, {held for held, _ in self.layers} | set(self.dims))
        self.layers.append((name, text))
        return f"self.{name}"

    def parameter(self, name: str, shape: tuple[Size, ...], scale: str = "") -> str:
        comma = "," if len(shape) == 1 else ""
        return self.layer(name, f"nn.Parameter({scale}torch.randn(({written(shape)}{comma})))")

    def input(self, name: str, shape: tuple[Size, ...], make: str = "torch.randn({})") -> str:
        """An input of `forward`. `make`: of its sizes."""
        name = self._free(name, {held for held, _ in self.inputs} | {"skip", "keep"} | set(self.dims))
        self.inputs.append((name, make.format(written(shape))))
        return name

    def step(self, word: str, value: DrawnTensor, text: str) -> DrawnTensor:
        """A line of `forward` that changes a value. `word`: what it is called; empty for none."""
        self.steps.append(f"{value.name} = {text}")
        if word:
            self.words.append(word)
        return value

    def keep(self, value: DrawnTensor, name: str) -> DrawnTensor:
        """The value as it is now, under another name."""
        name = self._free(name, {line.partition(" = ")[0] for line in self.steps} | {held for held, _ in self.inputs})
        self.steps.append(f"{name} = {value.name}")
        return value._replace(name=name)

    def mark(self) -> tuple[int, ...]:
        """What `undo` goes back to."""
        return tuple(len(part) for part in self._parts)

    def undo(self, mark: tuple[int, ...]) -> None:
        for part, held in zip(self._parts, mark, strict=True):
            del part[held:]

    @property
    def _parts(self) -> tuple[list[Any], ...]:
        return self.sizes, self.layers, self.inputs, self.steps, self.words

    @property
    def dims(self) -> dict[str, int]:
        return dict(self.sizes)

    @property
    def name(self) -> str:
        return "_".join(self.words[:_WORDS]) or "module"

    def text(self, value: DrawnTensor) -> str:
        """The problem file. `value`: what `forward` returns, where no results are named."""
        lines = _needed(self.steps, self.results or [value.name])
        in_layers = _names(text for _, text in self.layers)
        in_forward = [name for name in self.dims if name in _names(lines)]
        arguments = [name for name in self.dims if name in in_layers or name in in_forward]
        steps = [_over_self(line, in_forward) for line in lines]
        results = ", ".join(self.results or [value.name])
        top = [f"{name} = {size}" for name, size in self.dims.items()]
        given = ", ".join(["self", *arguments])
        made = [f"        self.{name} = {text}" for name, text in self.layers]
        held = [f"        self.{name} = {name}" for name in in_forward]
        functional = ["import torch.nn.functional as F"] if any("F." in line for line in lines) else []
        return "\n".join(
            [
                *("import torch", "import torch.nn as nn", *functional, "", *top, "", ""),
                *("class Model(nn.Module):", f"    def __init__({given}):", "        super().__init__()", *held, *made, ""),
                f"    def forward({', '.join(['self', *(name for name, _ in self.inputs)])}):",
                *(f"        {line}" for line in steps),
                *(f"        return {results}", "", ""),
                *("def get_inputs():", "    return [", *(f"        {text}," for _, text in self.inputs), "    ]", "", ""),
                *("def get_init_inputs():", f"    return [{', '.join(arguments)}]", ""),
            ]
        )

    def _free(self, name: str, taken: set[str]) -> str:
        number, wanted = 2, name
        while name in taken:
            name, number = f"{wanted}{number}", number + 1
        return name


def _names(texts: Iterable[str]) -> set[str]:
    return {name for text in texts for name in _NAME.findall(text)}


def _needed(lines: list[str], results: list[str]) -> list[str]:
    """Without values that were kept and that nothing reads."""
    return [
        line
        for place, line in enumerate(lines)
        if not _KEPT.fullmatch(line) or line.partition(" ")[0] in _names([*lines[place + 1 :], *results])
    ]


def _over_self(line: str, names: list[str]) -> str:
    return _NAME.sub(lambda found: f"self.{found[0]}" if found[0] in names else found[0], line)
