"""A size of a tensor: how the problem file writes it, and its value at the file's own sizes."""

import re
from typing import NamedTuple

_ATOM = re.compile(r"\w+", re.ASCII)


class Size(NamedTuple):
    """`text`: an expression of the names at the top of the file."""

    text: str
    value: int

    def times(self, factor: int) -> "Size":
        return self if factor == 1 else Size(f"{factor} * {self._bound}", factor * self.value)

    def over(self, divisor: int) -> "Size":
        return self if divisor == 1 else Size(f"{self._bound} // {divisor}", self.value // divisor)

    def plus(self, number: int) -> "Size":
        if not number:
            return self
        return Size(f"{self.text} {'+' if number > 0 else '-'} {abs(number)}", self.value + number)

    @property
    def _bound(self) -> str:
        return self.text if _ATOM.fullmatch(self.text) else f"({self.text})"


def written(shape: tuple[Size, ...]) -> str:
    """The sizes as arguments."""
    return ", ".join(size.text for size in shape)


def product(*sizes: Size) -> Size:
    """All of them multiplied."""
    found = sizes[0]
    for size in sizes[1:]:
        found = Size(f"{found._bound} * {size._bound}", found.value * size.value)
    return found
