"""The words of a text for lexical search. Identifiers are kept whole and also split into parts."""

import re
from functools import lru_cache

SPELLINGS = {"fp16": "f16", "float16": "f16", "fp32": "f32", "float32": "f32", "bfloat16": "bf16"}

# A run of letters, digits and underscores, joined by dots or double colons: cp.async.bulk, cute::Layout, sm_90a, 4096x1024.
_COMPOUND = re.compile(r"\w+(?:(?:\.|::)\w+)*")
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
    `cp.async.bulk` gives `cp.async.bulk`, `cp.async`, `cp`, `async`, `bulk`; `stageCount` gives `stagecount`, `stage`, `count`.
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
    return (whole, *(prefix for prefix in prefixes if prefix not in parts), *parts)


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
