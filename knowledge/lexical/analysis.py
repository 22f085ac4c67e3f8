"""The search words of a piece of source, and the text that is embedded for it."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePosixPath

from cudal2_agent.contract.records.knowledge import Piece, SplitFile
from cudal2_agent.knowledge.lexical.signatures import packed

SPELLINGS = {"fp16": "f16", "float16": "f16", "fp32": "f32", "float32": "f32", "bfloat16": "bf16"}

# A run of letters, digits and underscores, joined by dots or double colons: cp.async.bulk, cute::Layout, sm_90a, 4096x1024.
_COMPOUND = re.compile(r"\w+(?:(?:\.|::)\w+)*")
_MEMBER = re.compile(r"\.|::")
_SEPARATOR = re.compile(r"\.|::|_")
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+[a-z]*")

_STOP_TEXT = (
    "a an and are as at be been but by can do does for from had has have how i if in into is it its me my no not of on or our"
    " should so some than that the their them then there these they this to too was we what when where which while who why"
    " will with would you your"
)
STOP_WORDS = frozenset(_STOP_TEXT.split())


def words_of(text: str) -> list[str]:
    """Lower-case search words in order. An identifier yields itself and all forms that a question may use.
    `cp.async.bulk` gives `cp.async.bulk`, `cp.async`, `cp`, `async`, `bulk`; `stageCount` gives `stagecount`, `stage`, `count`;
    `std::to_string` gives `std::to_string`, `to_string`, `std`, `to`, `string`.
    """
    return [word for match in _COMPOUND.finditer(text) for word in _words_of_compound(match.group()) if word not in STOP_WORDS]


@lru_cache(maxsize=1 << 17)
def _words_of_compound(compound: str) -> tuple[str, ...]:
    names = [name for name in _SEPARATOR.split(compound) if name]
    parts = [_normal(part.lower()) for name in names for part in (_CAMEL.findall(name) if _is_camel(name) else [name])]
    whole = compound.strip("_").lower()
    if not parts or parts == [_normal(whole)]:
        return tuple(parts)
    prefixes = [whole[: dot.start()] for dot in re.finditer(r"\.", whole)]
    members = [member.strip("_").lower() for member in _MEMBER.split(compound)]
    inner = [*prefixes, *(member for member in members if member != whole and _normal(member) not in parts)]
    return (whole, *dict.fromkeys(name for name in inner if name and name not in parts), *parts)


def _is_camel(name: str) -> bool:
    """True for `stageCount` and `TensorMap`; False for `f16`, `B200`, `CTAs` and `m16n8k16`, which are single words."""
    return not re.fullmatch(r"[A-Z]+s", name) and bool(re.search(r"[a-z][A-Z]|[A-Z]{2}[a-z]|[A-Z][a-z]+\d*[A-Z]", name))


def _normal(word: str) -> str:
    """The word in the spelling of the index: one name per type, British -ise, no plural."""
    return _singular(re.sub(r"iz(?=e|ing|ation)", "is", SPELLINGS.get(word, word)))


def _singular(word: str) -> str:
    """The word without an English plural ending. Source: the S-stemmer of Harman, How effective is suffixing? (1991)."""
    if len(word) < 3 or not word.endswith("s") or word.endswith(("ss", "us")):
        return word
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    return word[:-1]


ANALYSIS = "words-5"  # part of every file version's key; change it when the analysis changes
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


def embedded_text(piece: Piece, text: str) -> str:
    """The text that is embedded for a piece: a section itself under its headings, and of code the card.

    It is empty if the piece is found by its name alone: generated siblings, which differ only in their names, and aliases,
    variables, macros and enumerations.
    """
    if piece.kind == "section":
        return f"{piece.symbol}\n{text}"
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
