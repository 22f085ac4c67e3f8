"""Special variants of code: which ones a question names, and the factor for paths of other variants."""

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FILE = Path(__file__).parent / "variants.toml"


@cache
def _table() -> dict[str, tuple[str, ...]]:
    with _FILE.open("rb") as file:
        return {name: tuple(words) for name, words in tomllib.load(file).items()}


@cache
def variants_of(path: str) -> frozenset[str]:
    """The special variants in a path: `sm100` and `array` for `.../sm100_mma_array_warpspecialized.hpp`."""
    flat = re.sub(r"[/.]", "_", path.lower())
    return frozenset(name for name in _table() if re.search(rf"(?<![a-z]){name}", flat))


@cache
def _words() -> dict[str, re.Pattern[str]]:
    """Patterns by variant: its name or one of its words, at the start of a word."""
    asking = {name: "|".join(re.escape(word) for word in (name, *words)) for name, words in _table().items()}
    return {name: re.compile(rf"(?<![a-z0-9])(?:{words})") for name, words in asking.items()}


def asked_variants(question: str) -> frozenset[str]:
    low = question.lower()
    return frozenset(name for name, words in _words().items() if words.search(low))


def factors(paths: Sequence[str], question: str, each: float) -> NDArray[np.float32]:
    """`each` to the power of the number of variants in a path that the question does not name. Shape: (paths,)."""
    asked = asked_variants(question)
    named = ((place, variants_of(path)) for place, path in enumerate(paths))
    factor = np.ones(len(paths), np.float32)
    for place, variants in named:
        if variants:
            factor[place] = each ** len(variants - asked)
    return factor
