"""Words of a text for lexical search: identifiers are kept whole and also taken apart."""

import re

# One run of letters, digits and underscores, joined by dots or double colons: cp.async.bulk, cute::Layout, sm_90a, 4096x1024.
_COMPOUND = re.compile(r"\w+(?:(?:\.|::)\w+)*")
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+[a-z]*")

_STOP_TEXT = (
    "a an and are as at be been but by can do does for from had has have how i if in into is it its me my no not of on or our"
    " should so some than that the their them then there these they this to too was we what when where which while who why"
    " will with would you your"
)
STOP_WORDS = frozenset(_STOP_TEXT.split())


def words_of(text: str) -> list[str]:
    """Lower-case search words in order, e.g. `cp.async.bulk` gives itself, `cp`, `async` and `bulk`."""
    words: list[str] = []
    for match in _COMPOUND.finditer(text):
        words.extend(_words_of_compound(match.group()))
    return [word for word in words if word not in STOP_WORDS]


def _words_of_compound(compound: str) -> list[str]:
    names = [name for name in re.split(r"\.|::|_", compound) if name]
    parts = [part for name in names for part in (_CAMEL.findall(name) if _is_camel(name) else [name])]
    whole = compound.strip("_").lower()
    words = [_singular(part.lower()) for part in parts]
    return words if words == [_singular(whole)] else [whole, *words]


def _is_camel(name: str) -> bool:
    """True for `stageCount` and `TensorMap`; False for `f16`, `B200`, `TMA` and `m16n8k16`, which are words of their own."""
    return bool(re.search(r"[a-z][A-Z]|[A-Z]{2}[a-z]|[A-Z][a-z]+\d*[A-Z]", name))


def _singular(word: str) -> str:
    """The word without an English plural. Source: the S-stemmer of Harman, How effective is suffixing? (1991)."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us")):
        return word
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    return word[:-1]
