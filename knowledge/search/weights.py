"""What each part of the search counts."""

from typing import Literal

from contract.base import Record


class SearchWeights(Record):
    """What each sign counts, found on the development questions (docs/knowledge.md); 0 switches it off."""

    names: float = 0.5
    card: float = 0.5
    body: float = 1.0
    lexical: float = 1.0
    dense: float = 0.15
    concepts: float = 1.5
    concept_words: float = 0.3  # words of a concept's code, against the places it names
    meaning: float = 1.0  # of a concept's sentences, against their words
    variant: float = 0.85  # each special variant that was not asked for
    other_arch: float = 0.6  # code for a target other than the query's
    older: float = 0.9  # a version of a path that a later release has replaced
    fusion: Literal["score", "rank"] = "rank"
    smoothing: float = 30.0  # of the fusion by rank
    distinct: int = 5  # the first hits are of as many files
    per_file: int = 3
    alike: float = 0.8  # likeness from which pieces of one name are folded; above 1: never
