"""Names that one file of a release has, and whether a question with such a name finds this file first.

Run from the repository's root, with the releases indexed:
  python -m benchmarks.retrieval.symbols cutlass-4.2.0 [RELEASE ...] --out FILE

Questions are drawn from the index by a rule, without a person's choice. A name has at least five characters and is
- a symbol: the last part of a definition's name, where all definitions of that name are in one file;
- a path: the name of a file that no other file has;
- a mention: a compound identifier (`MAX_STAGES`, `stageCount`) that stands in one file and names no definition and no file.

Names are equal if they differ only in case and in underscores around them. Of each kind the first 200 by their SHA-256 are
asked, each in one of four forms. A hit: the first result is of the name's file.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from benchmarks.harness import execute, script, stamp, table, write_json
from cudal2_agent.agent.index.knowledge_base import open_library
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.knowledge import Query, Retriever
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.knowledge.lexical.symbols import parts_of
from cudal2_agent.knowledge.search import open_search
from cudal2_agent.knowledge.search.weights import SearchWeights
from cudal2_agent.knowledge.store import KnowledgeBase

KINDS = ("symbol", "path", "mention")
PER_KIND, MIN_CHARS = 200, 5
FORMS = (
    "{}",
    "where is {} defined?",
    "How does {} work, and who uses it?",
    "I need to change {} in my kernel, show me its code.",
)
WAYS = {"everything": SearchWeights(), "without glossary": SearchWeights(concepts=0), "without names": SearchWeights(named=0)}

_WORD = re.compile(r"[A-Za-z_]\w*")
_COMPOUND = re.compile(r"[a-z][A-Z]|[A-Za-z0-9]_[A-Za-z0-9]")


class Name(Record):
    kind: str
    name: str
    path: str

    @property
    def question(self) -> str:
        return FORMS[_hash(self.name) % len(FORMS)].format(self.name)


def draw(symbols: Iterable[tuple[str, str]], texts: Mapping[str, str], per_kind: int = PER_KIND) -> list[Name]:
    """The names that are asked for. `symbols`: (symbol, path) of each definition. `texts`: by path."""
    found: dict[str, list[tuple[str, str]]] = {kind: [] for kind in KINDS}
    found["symbol"] = [(parts_of(symbol)[-1], path) for symbol, path in symbols if parts_of(symbol)]
    found["path"] = [(PurePosixPath(path).name, path) for path in texts]
    known = {_plain(name) for name, _ in found["symbol"]} | {_plain(PurePosixPath(path).stem) for path in texts}
    words = ((word, path) for path, text in texts.items() for word in dict.fromkeys(_WORD.findall(text)))
    found["mention"] = [(word, path) for word, path in words if _COMPOUND.search(word) and _plain(word) not in known]
    return [name for kind in KINDS for name in _drawn(kind, found[kind], per_kind)]


def _drawn(kind: str, found: Iterable[tuple[str, str]], count: int) -> Iterator[Name]:
    owners: dict[str, set[str]] = defaultdict(set)
    spelled: dict[str, str] = {}
    for name, path in found:
        owners[_plain(name)].add(path)
        spelled.setdefault(_plain(name), name)
    alone = [spelled[name] for name, paths in owners.items() if len(paths) == 1 and len(name) >= MIN_CHARS and name.isascii()]
    for name in sorted(alone, key=_hash)[:count]:
        yield Name(kind=kind, name=name, path=next(iter(owners[_plain(name)])))


def _plain(name: str) -> str:
    return name.strip("_").lower()


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest())


def of_release(store: KnowledgeBase, release: str) -> list[Name]:
    definitions = ((piece.symbol, path) for path, piece, _ in store.pieces(release) if piece.kind not in ("section", "text"))
    texts = {path: "\n".join(store.text(key)) for path, key in store.manifest(release).items()}
    return draw(definitions, texts)


def missed(retriever: Retriever, release: str, names: Iterable[Name]) -> Iterator[tuple[Name, str]]:
    """The names whose file is not first, with the path of the first result."""
    for name in names:
        hits = retriever.search(Query(words=name.question, releases=(release,), count=1))
        first = hits[0].chunk.path if hits else ""
        if first != name.path:
            yield name, first


def main() -> None:
    parser = script(__file__, __doc__, measures=True)
    parser.add_argument("releases", nargs="+")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with open_library(load_settings()) as store:
        names = {release: of_release(store, release) for release in given.releases}
        for way, weights in WAYS.items():
            retriever = open_search(store, weights)
            for release, asked in names.items():
                for kind in KINDS:
                    own = [name for name in asked if name.kind == kind]
                    wrong = [[name.name, name.question, first] for name, first in missed(retriever, release, own)]
                    rows.append({"way": way, "release": release, "kind": kind, "asked": len(own), "missed": wrong})
    write_json(given.out, {**stamp(__file__, given.commit), "rows": rows})
    print("\n".join(table(("file hit@1", *(f"{release} {kind}" for release in names for kind in KINDS)), _cells(rows))))


def _cells(rows: Iterable[dict[str, Any]]) -> Iterator[list[str]]:
    by_way: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        share = 1 - len(row["missed"]) / row["asked"] if row["asked"] else None
        by_way[row["way"]].append("—" if share is None else f"{share:.2f} of {row['asked']}")
    yield from ([way, *cells] for way, cells in by_way.items())


if __name__ == "__main__":
    execute(main)
