"""How a kernel divides its work among threads: the axes of a schedule."""

from typing import Literal

from cudal2_agent.contract.base import Record

MAX_HELD = 64  # elements that a thread keeps of a row between passes


class LibraryChoice(Record):
    """A product by a library's call. `search`: of a convolution; see `LibraryCall`."""

    search: bool = False

    def text(self) -> str:
        """As a value of a schedule."""
        return "library search" if self.search else "library"

    @classmethod
    def parse(cls, text: str) -> "LibraryChoice":
        """Raises: ValueError."""
        found = next((each for each in (cls(), cls(search=True)) if each.text() == text), None)
        if found is None:
            raise ValueError(f"no library's call: {text}")
        return found


class Axes(Record):
    """`flat`: a thread computes `items` times `vector` neighbours of the output. `rows`: `lanes` threads share a row, and
    read `vector` neighbours of it. `columns`: a thread computes `vector` neighbouring rows, and `lanes` threads share them.

    `threads`: of a CTA. `held`: a thread keeps what it read of its row for later passes.
    """

    layout: Literal["flat", "rows", "columns"]
    vector: int = 1
    threads: int = 256
    items: int = 1
    lanes: int = 1
    held: bool = False

    def text(self) -> str:
        """As a value of a schedule."""
        return f"{self.layout} v{self.vector} t{self.threads} i{self.items} l{self.lanes}" + (" held" if self.held else "")

    @classmethod
    def parse(cls, text: str) -> "Axes":
        """Raises: ValueError."""
        layout, *words = text.split()
        held = words[-1:] == ["held"]
        names = {"v": "vector", "t": "threads", "i": "items", "l": "lanes"}
        numbers = {names.get(word[0], word[0]): int(word[1:]) for word in words[: len(words) - held]}
        return cls.model_validate({"layout": layout, "held": held, **numbers})
