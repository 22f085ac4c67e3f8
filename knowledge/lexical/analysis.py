"""From a piece of source to the words it is searched by and the text its vector is made of."""

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from contract.knowledge import Piece, SplitFile
from knowledge.lexical.signatures import packed
from knowledge.lexical.words import words_of

ANALYSIS = "words-3"  # part of every file version's key: another analysis means another version
FIELDS = ("names", "card", "body")
SIGNATURE = "signature"

# A generated wrapper repeats its operands by the hundred; past a few times a word says nothing more.
_MOST_REPEATS = 4
_BODY_LINES = 160
_NAMED = frozenset({"alias", "variable", "macro", "enum"})

Terms = dict[str, str]


def analyse(path: str, piece: Piece, text: str) -> Terms:
    """Search words of a piece by field, joined by spaces: its names, its card, its body; and the signature of its body."""
    stem = PurePosixPath(path).stem
    body = _often(words_of("\n".join(text.split("\n", _BODY_LINES)[:_BODY_LINES])))
    return {
        "names": " ".join(_often(words_of(f"{piece.symbol} {stem}"))),
        "card": " ".join(_often(words_of(f"{piece.card} {path}"))),
        "body": " ".join(body),
        SIGNATURE: packed(body),
    }


def analysed(split: SplitFile) -> SplitFile:
    """The file with the search words of its pieces; runs where the file was split, so that the processes share the work."""
    lines = split.text.split("\n")
    terms = tuple(analyse(split.path, piece, "\n".join(lines[piece.start_line - 1 : piece.end_line])) for piece in split.pieces)
    return split.model_copy(update={"terms": terms})


def embedded_text(piece: Piece) -> str:
    """What the vector of a piece is made of; empty for those that are found by their names alone.

    Those are generated siblings, which differ in nothing else, and aliases, variables, macros and enumerations.
    """
    return "" if piece.family or piece.kind in _NAMED else piece.card


def _often(words: Iterable[str]) -> list[str]:
    """The words without what repeats past the limit."""
    counts: Counter[str] = Counter()
    kept = []
    for word in words:
        counts[word] += 1
        if counts[word] <= _MOST_REPEATS:
            kept.append(word)
    return kept
