"""The weights of the parts of the search."""

from typing import Literal

from cudal2_agent.contract.base import Record


class SearchWeights(Record):
    """Weights, chosen on the development questions (docs/internals/knowledge.md); 0 turns a signal off."""

    names: float = 0.5
    card: float = 0.5
    body: float = 1.0
    lexical: float = 1.0
    dense: float = 0.15
    named: float = 3.0  # names in few files; above the sum of the others, so that such a name comes first
    concepts: float = 1.8
    concept_words: float = 0.3  # words of a concept's code, relative to the definitions that it names
    meaning: float = 1.0  # meaning of a concept's sentences, relative to their words
    variant: float = 0.85  # factor for each special variant that the question does not name
    other_arch: float = 0.6  # factor for code for another target
    older: float = 0.9  # factor for a version that a later release replaces
    fusion: Literal["score", "rank"] = "rank"
    smoothing: float = 30.0  # constant of the fusion by rank
    distinct: int = 5  # first hits that come from distinct files
    per_file: int = 3
    alike: float = 0.8  # minimum similarity for folding pieces with one name; above 1: never
