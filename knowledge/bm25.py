"""Lexical search over the documents that ship with the product."""

from collections.abc import Sequence
from pathlib import Path

import bm25s
import numpy as np

from contract.errors import KnowledgeError
from contract.knowledge import Chunk, Hit, Query, Retriever
from contract.task import Arch
from knowledge.documents import read_documents
from knowledge.tokens import words_of

BUILTIN_FOLDER = Path(__file__).parent / "notes"

# A word in the headings says what a section is about; one in the body only that it is mentioned.
HEADING_WEIGHT = 3


class Bm25Retriever:
    """BM25 over chunks held in memory; equal queries give equal hits."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        """Raises: KnowledgeError where no chunk has a word to search for."""
        self._chunks = tuple(chunks)
        corpus = [words_of(chunk.symbol) * HEADING_WEIGHT + words_of(chunk.text) for chunk in self._chunks]
        if not any(corpus):
            raise KnowledgeError("the knowledge documents have no searchable text; every section is empty")
        self._index = bm25s.BM25()
        self._index.index(corpus, show_progress=False)

    def search(self, query: Query) -> list[Hit]:
        """Best chunks first; chunks that share no word with the query are left out, those for another arch come last."""
        words = words_of(query.words)
        if not words or query.count < 1:
            return []
        scores = np.asarray(self._index.get_scores(words), dtype=np.float64)
        found = [(index, float(scores[index])) for index in np.flatnonzero(scores > 0)]
        found.sort(key=lambda item: (not _fits(self._chunks[item[0]], query.arch), -item[1], item[0]))
        return [Hit(chunk=self._chunks[index], score=score) for index, score in found[: query.count]]


def open_knowledge(folder: Path | None = None) -> Retriever:
    """A retriever over a folder of markdown documents, by default those that ship with the product.

    Raises: KnowledgeError where the folder or a document in it cannot be read.
    """
    documents = read_documents(folder or BUILTIN_FOLDER)
    return Bm25Retriever([chunk for document in documents for chunk in document.chunks()])


def _fits(chunk: Chunk, arch: Arch | None) -> bool:
    return arch is None or not chunk.archs or arch in chunk.archs
