"""What each part of the search contributes: the question sets, answered with single parts turned off.

Run from the repository's root, with CUTLASS 4.2.0 indexed:
  python -m benchmarks.retrieval.ablation --out benchmarks/results/NAME.json
Uses the index of the settings. Writes JSON with command, commit, date and scores, and prints Markdown tables. The times per
question are noisy.
"""

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import execute, script, stamp, write_json
from benchmarks.retrieval.score import LINES, AnswerSpan, RetrievalScore, ScoredQuestion, by_kind, read_questions, table
from cudal2_agent.agent.index.knowledge_base import open_library
from cudal2_agent.contract.records.knowledge import Query
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.knowledge.embedding.embedder import Embedder
from cudal2_agent.knowledge.embedding.minilm import MiniLm
from cudal2_agent.knowledge.lexical.word_index import WordIndex
from cudal2_agent.knowledge.search import open_search
from cudal2_agent.knowledge.search.weights import SearchWeights
from cudal2_agent.knowledge.store import KnowledgeBase

FOLDER = Path(__file__).parent
SETS = ("dev", "heldout", "final", "paraphrased")
WINDOW_LINES = 60

OFF: dict[str, SearchWeights] = {
    "everything": SearchWeights(),
    "fused by score instead of rank": SearchWeights(fusion="score"),
    "without dense": SearchWeights(dense=0),
    "without names": SearchWeights(named=0),
    "without glossary": SearchWeights(concepts=0),
    "glossary by names and words only": SearchWeights(meaning=0),
    "glossary without its code's words": SearchWeights(concept_words=0),
    "without cards": SearchWeights(card=0),
    "without folding": SearchWeights(alike=2),
    "without stepping back of variants": SearchWeights(variant=1),
    "without distinct files first": SearchWeights(distinct=0),
    "lexical only": SearchWeights(concepts=0, dense=0),
    "dense only": SearchWeights(concepts=0, lexical=0),
    "dense and lexical": SearchWeights(concepts=0),
}
Find = Callable[[str], Sequence[AnswerSpan]]


def searcher(store: KnowledgeBase, release: str, weights: SearchWeights, asker: Embedder | None = None) -> Find:
    retriever = open_search(store, weights, asker=asker)

    def find(words: str) -> list[AnswerSpan]:
        hits = retriever.search(Query(words=words, releases=(release,), count=LINES))
        return [AnswerSpan(path=hit.chunk.path, start_line=hit.chunk.start_line, end_line=hit.chunk.end_line) for hit in hits]

    return find


def windows(store: KnowledgeBase, release: str) -> Find:
    """The baseline: BM25 over windows of 60 lines, with identifiers as single words."""
    spans, texts = [], []
    for path, key in store.manifest(release).items():
        lines = store.text(key)
        for start in range(0, len(lines), WINDOW_LINES):
            spans.append(AnswerSpan(path=path, start_line=start + 1, end_line=min(start + WINDOW_LINES, len(lines))))
            texts.append(_words("\n".join(lines[start : start + WINDOW_LINES])))
    index = WordIndex.build(texts)
    return lambda words: [spans[place] for place in np.argsort(-index.scores(_words(words)), kind="stable")[:LINES]]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def answer(questions: Sequence[ScoredQuestion], find: Find) -> tuple[dict[str, RetrievalScore], float]:
    """Scores by kind, and the median time per question in milliseconds."""
    find(questions[0].query)
    results, spent = {}, []
    for question in questions:
        begin = time.perf_counter()
        results[question.id] = list(find(question.query))
        spent.append(1000 * (time.perf_counter() - begin))
    return by_kind(questions, results), statistics.median(spent)


@contextmanager
def ways(release: str) -> Iterator[dict[str, Find]]:
    with open_library(load_settings()) as store:
        found = {name: searcher(store, release, weights) for name, weights in OFF.items()}
        found["glossary compared by MiniLM int8"] = searcher(store, release, SearchWeights(), MiniLm())
        yield {**found, f"BM25 over windows of {WINDOW_LINES} lines": windows(store, release)}


def main() -> None:
    parser = script(__file__, __doc__, measures=True)
    parser.add_argument("--release", default="cutlass-4.2.0")
    given = parser.parse_args()
    sets: dict[str, dict[str, Any]] = {}
    with ways(given.release) as found:
        for name in SETS:
            questions = read_questions(FOLDER / f"questions_{name}.jsonl")
            answers = {way: answer(questions, find) for way, find in found.items()}
            print(f"\n{name}: {len(questions)} questions, file hit@5 / line hit@10\n")
            print(table((way, scores) for way, (scores, _) in answers.items()))
            sets[name] = {
                way: {"median_ms": round(ms, 1), **{kind: each.model_dump() for kind, each in scores.items()}}
                for way, (scores, ms) in answers.items()
            }
    write_json(given.out, {**stamp(__file__, given.commit), "release": given.release, "sets": sets})


if __name__ == "__main__":
    execute(main)
