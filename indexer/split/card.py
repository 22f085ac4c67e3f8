"""The card of a piece: words for its location, its name, its comments and its instructions."""

import re
from collections.abc import Iterable, Iterator

from cudal2_agent.indexer.split.spans import Span

WORDS = 60
_PART = re.compile(
    r"sm\d+"
    r"|(?:[tT]?[fF]|[bB][fF]|[fF][pP]|[sSuU]|[uU]?[iI]nt|[eE]\d[mM]|[mMnNkK](?=\d+(?![a-z])))\d+"
    r"|\d+(?:x\d+)+"
    r"|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+(?:[a-z](?![a-z]))?"
)
_ARCH = re.compile(r"(?:(?<![A-Za-z])(?:sm|SM)|Sm)_?(\d{2,3})")
_COMPOUND_PARTS = {
    "warpspecialized": "warp specialized",
    "multistage": "multi stage",
    "blockscaled": "block scaled",
    "blockwise": "block wise",
    "groupwise": "group wise",
}
_COMPOUNDS = re.compile("|".join(_COMPOUND_PARTS))
_HASH = r"#(?!\s*(?:define|undef|if|ifdef|ifndef|elif|else|endif|include|pragma|error)\b)"
_COMMENT = re.compile(rf"/\*((?:[^*]|\*(?!/))*)\*/|((?:^[ \t]*(?://|{_HASH})[^\n]*\n?)+)|//([^\n]*)", re.MULTILINE)
_MARK = re.compile(r"^[ \t]*(?:[/*#]+[!<]*|!)", re.MULTILINE)
_DOCSTRING = re.compile(r'^\s*[rf]?(?:"""|\'{3})\s*(.+?)(?:"""|\'{3}|\n\s*\n|\Z)', re.DOTALL | re.MULTILINE)
_TAG = re.compile(r"[@\\][a-z]+(?:\[\w+\])?(?=\s|$)|[`*/=\-_#]{3,}|[`*]")
_SCOPE = re.compile(r"::(?![^<]*>)")
_SHORT_TEXT = 400  # characters; the card of a shorter text also names its neighbours
_COMMENT_RANGE = 3000  # characters of text that are searched for a comment
_SENTENCE = re.compile(r"(?<=[.!?:;])\s")
_MESSAGE = re.compile(
    r"(?:static_assert|STATIC_ASSERT(?:_V)?|CUTLASS_ASSERT|TRACE_HOST|INVALID_CONTROL_PATH|RUNTIME_ASSERT|runtime_error|printf"
    r"|Error|Exception)\s*\([^;\"]{0,600}\"((?:[^\"\\\n]|\\.){6,})\""
)
_PTX = re.compile(
    r"(?<![\w.])((?:wgmma|cp\.async|cp\.reduce|mbarrier|tcgen05|ldmatrix|stmatrix|mma\.sync|mma\.sp|fence|griddepcontrol"
    r"|setmaxnreg|barrier|bar\.sync|elect\.sync|mapa|red\.async|multimem|prefetch|createpolicy|discard|ld\.global|st\.global)"
    r"(?:\.[a-z0-9_:]+)+)"
)


def split_words(name: str) -> str:
    """`MainloopSm90TmaGmma` and `sm90_mma_tma_gmma_ss_warpspecialized` as words in lower case."""
    words = _PART.findall(_ARCH.sub(r" sm\1 ", name))
    return _COMPOUNDS.sub(lambda m: _COMPOUND_PARTS[m[0]], " ".join(words).lower())


def area(path: str) -> str:
    """The folders and the name of a file as words."""
    return split_words(path.rpartition(".")[0] or path)


def card(span: Span, area_words: str, text: str, neighbours: Iterable[str]) -> str:
    """At most 60 words that describe a span."""
    if span.kind == "section":
        return _first_words((area_words, span.symbol.replace(" > ", " ")))
    return _first_words(_said(span, area_words, text, neighbours))


def _said(span: Span, area_words: str, text: str, neighbours: Iterable[str]) -> Iterator[str]:
    yield area_words
    *owners, own = symbol_parts(span.symbol)
    yield f"{span.kind} {split_words(own)}"
    yield split_words(bare(owners[-1])) if owners else ""
    yield doc_sentence(text)
    yield " ".join(instructions(text))
    yield " ".join(dict.fromkeys(_MESSAGE.findall(text)))
    yield " ".join(_named((*span.names[1:], *span.members)))
    if len(text) < _SHORT_TEXT:
        yield " ".join(_named(name for name in neighbours if name != span.symbol))


def instructions(text: str) -> list[str]:
    """The PTX instructions in the inline assembly of a text, each in its longest form."""
    if "asm" not in text:
        return []
    found = list(dict.fromkeys(_PTX.findall(text)))
    return [one for one in found if not any(other != one and other.startswith(one) for other in found)]


def _first_words(parts: Iterable[str]) -> str:
    words: list[str] = []
    for part in parts:
        words.extend(part.split())
        if len(words) >= WORDS:
            break
    return " ".join(words[:WORDS])


def _named(symbols: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(split_words(bare(symbol_parts(symbol)[-1])) for symbol in symbols)


def symbol_parts(symbol: str) -> list[str]:
    """The parts of a symbol: three names for `cute::Tensor<A, b::C>::size`."""
    return _SCOPE.split(symbol.replace("<…>", "")) if "::" in symbol else symbol.split(".")


def bare(name: str) -> str:
    """A name without its template arguments."""
    return name.partition("<")[0] or name


def doc_sentence(text: str, max_words: int = 28) -> str:
    """The first words of the docstring, or of the first comment that has words."""
    if docstring := _DOCSTRING.search(text):
        return " ".join(docstring[1].split()[:max_words])
    said = (_TAG.sub(" ", _MARK.sub("", match[0])) for match in _COMMENT.finditer(text[:_COMMENT_RANGE]))
    joined = next((words for words in said if any(character.isalpha() for character in words)), "")
    joined = " ".join(joined.removesuffix("*/").split())
    sentence = _SENTENCE.split(joined, maxsplit=2)
    kept = " ".join(sentence[:2]) if len(sentence[0].split()) < 10 else sentence[0]
    return " ".join(kept.split()[:max_words])
