"""The names in a question that stand in few files: symbols, paths, and identifiers that few files mention."""

import re
from collections.abc import Iterator

import numpy as np

from cudal2_agent.knowledge.lexical.analysis import STOP_WORDS
from cudal2_agent.knowledge.lexical.lexical_index import LexicalIndex, Mask
from cudal2_agent.knowledge.lexical.symbols import SymbolPositions
from cudal2_agent.knowledge.lexical.word_index import Scores

_MOST_FILES = 3  # a name in more files than this names none of them
_MENTION = 0.5  # weight of a file that mentions a name, relative to one that defines it
_MIN_CHARS = 5  # a shorter one is seldom a name: fp16, H100, SMs
_FEW_WORDS = 3  # beside so many other words, a name is all that is asked about

# Identifiers and paths: a::b, cp.async.bulk, gemm/kernel/tile.hpp. A final dot ends a sentence.
_NAME = re.compile(r"(?<!\w)~?[A-Za-z_]\w*(?:(?:::~?|\.|/)\w+)*")
_CODE = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2,}[a-z]|\w_\w|\w(?:::|[./])\w|[A-Za-z]\d|\d[A-Za-z]")


def names_of(question: str) -> list[str]:
    """What a question writes as code is written, without repeats; of a single word, the word."""
    found = _NAME.findall(question)
    return list(dict.fromkeys(name for name in found if len(found) == 1 or (len(name) >= _MIN_CHARS and _CODE.search(name))))


def emphasis(question: str) -> float:
    """How much the names of a question count, up to 1: less the more it says beside them, as a pasted message does."""
    names = set(names_of(question))
    others = sum(word not in names and word.lower() not in STOP_WORDS for word in _NAME.findall(question))
    return min(1.0, _FEW_WORDS / max(others, 1))


def named_places(index: LexicalIndex, question: str, mask: Mask) -> Scores:
    """Scores of pieces by the names of a question. A name in one file scores most, and its definition more than a mention.

    What is defined in many files, or names many, is not looked for among mentions.
    """
    total = np.zeros(len(index), np.float32)
    for name in names_of(question):
        for places, weight in _ways(index.symbols, name):
            kept = [place for place in places if mask[place]]
            if not kept:
                continue
            files = len(np.unique(index.column("path")[kept]))
            if files <= _MOST_FILES:
                total[kept] += np.float32(weight / files)
            break
    return total


def _ways(symbols: SymbolPositions, name: str) -> Iterator[tuple[list[int], float]]:
    """The positions that a name may mean, with their weight, the most likely first."""
    yield symbols.defined(name), 1.0
    yield symbols.in_file(name), 1.0
    yield symbols.mentioned(name), _MENTION
