"""How a kernel divides its work among threads: the axes of a schedule."""

from typing import Literal

from cudal2_agent.contract.base import Record


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
    """`flat`: a thread computes `items` times `vector` neighbours of the output. `lines`: `items` windows of a line of a pool.
    `rows`: `lanes` threads share a row, and read `vector` neighbours of it. `columns`: a thread computes `vector` neighbouring
    rows, and `lanes` threads share them.

    `threads`: of a CTA. `items`: of `rows` and `columns`, groups that a thread reads before it adds them to sums of their own.
    `parts`: CTAs that share a row, with a launch for each stage. `cluster`: CTAs of a cluster that share a row in one launch.
    `held`: a thread keeps what it read of its row for later passes, in registers; `shared`: in shared memory, `kept` groups of
    it or, where that is 0, all.
    """

    layout: Literal["flat", "lines", "rows", "columns"]
    vector: int = 1
    threads: int = 256
    items: int = 1
    lanes: int = 1
    parts: int = 1
    cluster: int = 1
    held: bool = False
    shared: bool = False
    kept: int = 0

    def text(self) -> str:
        """As a value of a schedule."""
        words = [self.layout, f"v{self.vector}", f"t{self.threads}", f"i{self.items}", f"l{self.lanes}"]
        words += [f"p{self.parts}"] * (self.parts > 1) + [f"c{self.cluster}"] * (self.cluster > 1)
        words += [f"k{self.kept}"] * (self.kept > 0)
        return " ".join(words + ["held"] * self.held + ["shared"] * self.shared)

    @classmethod
    def parse(cls, text: str) -> "Axes":
        """Raises: ValueError."""
        layout, *words = text.split()
        flags = {word: True for word in words if word in ("held", "shared")}
        names = {"v": "vector", "t": "threads", "i": "items", "l": "lanes", "p": "parts", "c": "cluster", "k": "kept"}
        numbers = {names.get(word[0], word[0]): int(word[1:]) for word in words if word not in flags}
        return cls.model_validate({"layout": layout, **flags, **numbers})
