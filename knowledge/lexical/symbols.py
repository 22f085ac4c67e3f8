"""Where names stand in one generation of the index: symbols, files, and words of a body."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from cudal2_agent.knowledge.lexical.analysis import words_of

_MAX_POSITIONS = 400  # a name in more positions carries no information
_RARE = 12  # a word in more pieces than this locates none of them
_FILE_WEIGHT = 0.5  # weight of a whole file, relative to the definition itself
_MENTION_WEIGHT = 0.7  # weight of a piece of the class that mentions the member, if no piece is named after the member
_TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")


class SymbolPositions:
    """Finds positions by a part of their symbol, by the name of their file, or by a word of their body."""

    def __init__(self, symbols: Sequence[str], paths: Sequence[str], holding: Callable[[str], NDArray[np.int32]]) -> None:
        self._symbols, self._paths = symbols, paths
        self._parts = [_lower_parts(symbol) for symbol in symbols]
        self._holding = holding
        self._by_part: dict[str, list[int]] = defaultdict(list)
        self._by_stem: dict[str, list[int]] = defaultdict(list)
        for position, (parts, path) in enumerate(zip(self._parts, paths, strict=True)):
            for part in set(parts):
                self._by_part[part].append(position)
            self._by_stem[_stem(path)].append(position)

    def find(self, name: str) -> tuple[list[int], float]:
        """Positions and their weight: definitions with that name, else files with it, else pieces that mention it."""
        wanted = _lower_parts(name)
        if not wanted:
            return [], 0.0
        last = wanted[-1]
        if exact := self._ending(wanted):
            return exact[:_MAX_POSITIONS], 1.0
        if found := self._by_stem.get(_stem(name)):
            return found[:_MAX_POSITIONS], _FILE_WEIGHT
        inside = self._by_part.get(wanted[-2] if len(wanted) > 1 else last, [])
        mentions = self._holding(last).tolist()
        if len(wanted) > 1:
            inside = sorted(set(inside).intersection(mentions))
        return (inside or mentions[: _RARE if len(mentions) <= _RARE else 0])[:_MAX_POSITIONS], _MENTION_WEIGHT

    def _ending(self, wanted: tuple[str, ...]) -> list[int]:
        return [p for p in self._by_part.get(wanted[-1], ()) if self._parts[p][-len(wanted) :] == wanted]

    def defined(self, name: str) -> list[int]:
        """Definitions of a name: `Ring::take`, `ring.take` of Python. A name without parts is found in any case if need be."""
        wanted = parts_of(name)
        found = self._ending(_lower_parts(name))
        exact = [p for p in found if parts_of(self._symbols[p])[-len(wanted) :] == wanted]
        return exact or (found if len(wanted) == 1 else [])

    def in_file(self, name: str) -> list[int]:
        """Pieces of the files that a name or the end of a path names, with or without the suffix."""
        wanted = f"/{name.lower().lstrip('./')}"
        found = self._by_stem.get(_stem(name), [])
        suffix = "." in wanted.rsplit("/", 1)[1]
        return [p for p in found if _ends(self._paths[p].lower(), wanted, suffix)]

    def mentioned(self, word: str) -> list[int]:
        """Pieces whose body has a name as a whole."""
        words = words_of(word)
        return self._holding(words[0]).tolist() if words else []


def _ends(path: str, wanted: str, suffix: bool) -> bool:
    path = f"/{path}"
    return path.endswith(wanted) if suffix else path.rsplit(".", 1)[0].endswith(wanted)


def _stem(path: str) -> str:
    return PurePosixPath(path).name.split(".", 1)[0].lower()


@lru_cache(maxsize=1 << 16)
def _lower_parts(symbol: str) -> tuple[str, ...]:
    return tuple(part.lower() for part in parts_of(symbol))


@lru_cache(maxsize=1 << 16)
def parts_of(symbol: str) -> tuple[str, ...]:
    """The parts of a symbol: ("a", "b", "d") for `a::B<C>::d`, ("a", "b") for `a.b` of Python."""
    previous = ""
    while previous != symbol:
        previous, symbol = symbol, _TEMPLATE_ARGUMENTS.sub("", symbol)
    return tuple(part.strip() for part in re.split(r"::|\.(?=\w)", symbol) if part.strip())
