"""The card of a piece: in plain words where it lies, what it is called, says and does."""

import re
from collections.abc import Iterable, Iterator

from indexer.split.spans import Span

WORDS = 60
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+(?:[a-z](?![a-z]))?")
_COMPOUNDS = re.compile(r"warpspecialized|multistage|blockscaled|threadblock|blockwise|groupwise|swizzled")
_COMPOUND_PARTS = {
    "warpspecialized": "warp specialized",
    "multistage": "multi stage",
    "blockscaled": "block scaled",
    "blockwise": "block wise",
    "groupwise": "group wise",
}
_COMMENT = re.compile(r"^\s*(?:///?<?|/\*\*?|\*(?!/))[ \t]?(.*?)(?:\*/)?\s*$")
_TAG = re.compile(r"[@\\](?:brief|details?|param(?:\[\w+\])?|tparam|return|note|class|struct)\b|[`*/=\-_#]{3,}|[`*]")
_SENTENCE = re.compile(r"(?<=[.!?:;])\s")
_MESSAGE = re.compile(
    r"(?:static_assert|CUTE_STATIC_ASSERT\w*|CUTLASS_ASSERT|CUTLASS_TRACE_HOST|CUTE_INVALID_CONTROL_PATH|CUTE_RUNTIME_ASSERT"
    r"|runtime_error|printf|raise \w+|\w*Error)\s*\([^;\"]*\"((?:[^\"\\\n]|\\.){6,})\""
)
_PTX = re.compile(
    r"(?<![\w.])((?:wgmma|cp\.async|cp\.reduce|mbarrier|tcgen05|ldmatrix|stmatrix|mma\.sync|mma\.sp|fence|griddepcontrol"
    r"|setmaxnreg|barrier|bar\.sync|elect\.sync|mapa|red\.async|multimem|prefetch|createpolicy|discard|ld\.global|st\.global)"
    r"(?:\.[a-z0-9_:]+)+)"
)


def split_words(name: str) -> str:
    """`MainloopSm90TmaGmma` and `sm90_mma_tma_gmma_ss_warpspecialized` as words in lower case."""
    joined = re.sub(r"(?<![A-Za-z])(sm|SM|Sm)_?(\d+)", lambda m: f"sm{m[2]} ", name)
    words: list[str] = []
    for chunk in re.split(r"[^A-Za-z0-9]+", joined):
        if re.fullmatch(r"[a-zA-Z]{1,4}\d+[a-z]?|\d+x[\dx]+[a-z]?", chunk):
            words.append(chunk.lower())
        else:
            words.extend(part.lower() for part in _PART.findall(chunk))
    return _COMPOUNDS.sub(lambda m: _COMPOUND_PARTS.get(m[0], m[0]), " ".join(words))


def area(path: str) -> str:
    """The folders and the name of a file as words."""
    return split_words(path.rpartition(".")[0] or path)


def card(span: Span, area_words: str, text: str, neighbours: Iterable[str]) -> str:
    """At most 60 words about a span."""
    return _first_words(_said(span, area_words, text, neighbours))


def _said(span: Span, area_words: str, text: str, neighbours: Iterable[str]) -> Iterator[str]:
    yield area_words
    owner, _, own = span.symbol.rpartition("::")
    yield f"{span.kind} {split_words(own)}"
    yield split_words(owner.rpartition("::")[2])
    yield doc_sentence(text)
    yield " ".join(dict.fromkeys(_PTX.findall(text)))
    yield " ".join(dict.fromkeys(_MESSAGE.findall(text)))
    yield " ".join(split_words(_last(name)) for name in span.names[1:])
    if len(text) < 400:
        yield " ".join(split_words(_last(name)) for name in neighbours)


def _first_words(parts: Iterable[str]) -> str:
    words: list[str] = []
    for part in parts:
        words.extend(part.split())
        if len(words) >= WORDS:
            break
    return " ".join(words[:WORDS])


def _last(symbol: str) -> str:
    return symbol.partition("<")[0].rpartition("::")[2]


def doc_sentence(text: str, most: int = 28) -> str:
    """The first words of the first comment with words in it."""
    said: list[str] = []
    for line in text.split("\n", 40)[:40]:
        match = _COMMENT.match(line)
        content = _TAG.sub(" ", match[1]).strip() if match else ""
        if content and any(c.isalpha() for c in content):
            said.append(content)
        elif said:
            break
    joined = " ".join(said)
    sentence = _SENTENCE.split(joined, maxsplit=2)
    kept = " ".join(sentence[:2]) if len(sentence[0].split()) < 10 else sentence[0]
    return " ".join(kept.split()[:most])
