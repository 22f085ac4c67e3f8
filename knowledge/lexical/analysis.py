"""The search words of a piece of source, and the text that is embedded for it."""

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from cudal2_agent.contract.records.knowledge import Piece, SplitFile
from cudal2_agent.knowledge.lexical.signatures import packed
from cudal2_agent.knowledge.lexical.words import words_of

ANALYSIS = "words-3"  # part of every file version's key; change it when the analysis changes
FIELDS = ("names", "card", "body")
SIGNATURE = "signature"

# A generated wrapper repeats its operands hundreds of times. After a few repeats a word adds no information.
_MAX_REPEATS = 4
_BODY_LINES = 160
_NAMED = frozenset({"alias", "variable", "macro", "enum"})

Terms = dict[str, str]


def analyse(path: str, piece: Piece, text: str) -> Terms:
    """The search words of a piece by field (names, card, body), joined by spaces, and the signature of its body."""
    stem = PurePosixPath(path).stem
    body = _often(words_of("\n".join(text.split("\n", _BODY_LINES)[:_BODY_LINES])))
    return {
        "names": " ".join(_often(words_of(f"{piece.symbol} {stem}"))),
        "card": " ".join(_often(words_of(f"{piece.card} {path}"))),
        "body": " ".join(body),
        SIGNATURE: packed(body),
    }


def analysed(split: SplitFile) -> SplitFile:
    """The file with the search words of its pieces. It runs in the process that split the file, to share the work."""
    lines = split.text.split("\n")
    terms = tuple(analyse(split.path, piece, "\n".join(lines[piece.start_line - 1 : piece.end_line])) for piece in split.pieces)
    return split.model_copy(update={"terms": terms})


def embedded_text(piece: Piece) -> str:
    """The text that is embedded for a piece; empty if the piece is found by its name alone.

    These are generated siblings, which differ only in their names, and aliases, variables, macros and enumerations.
    """
    return "" if piece.family or piece.kind in _NAMED else piece.card


def _often(words: Iterable[str]) -> list[str]:
    """The words without repeats beyond the limit."""
    counts: Counter[str] = Counter()
    kept = []
    for word in words:
        counts[word] += 1
        if counts[word] <= _MAX_REPEATS:
            kept.append(word)
    return kept
