"""The question sets are complete, and the scorer counts what it states."""

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.retrieval.score import (
    KINDS,
    MAX_LINES,
    PARAPHRASE,
    AnswerSpan,
    ScoredQuestion,
    by_kind,
    file_hit,
    line_hit,
    read_questions,
    read_results,
    score,
    table,
)
from cudal2_agent.knowledge.glossary import load_glossary
from cudal2_agent.knowledge.search.concepts import Concepts, ConceptWeights
from tests.knowledge.indexes import Meanings

FOLDER = Path(__file__).parents[2] / "benchmarks/retrieval"
ASKED = ScoredQuestion(id="q", kind="concept", query="?", answers=(AnswerSpan(path="a.hpp", start_line=10, end_line=20),))


def results(*spans: tuple[str, int, int]) -> list[AnswerSpan]:
    return [AnswerSpan(path=path, start_line=start, end_line=end) for path, start, end in spans]


@pytest.mark.parametrize(("name", "least"), [("dev", 60), ("heldout", 60), ("final", 48)])
def test_a_question_set_is_whole(name: str, least: int) -> None:
    questions = read_questions(FOLDER / f"questions_{name}.jsonl")
    assert len(questions) >= least
    assert len({question.id for question in questions}) == len({question.query for question in questions}) == len(questions)
    assert {question.kind for question in questions} == set(KINDS)
    for question in questions:
        assert question.answers
        assert all(1 <= span.start_line <= span.end_line < span.start_line + MAX_LINES for span in question.answers)


def test_the_paraphrases_have_answers_of_the_sets_and_no_name_of_the_glossary() -> None:
    sets = [question for name in ("dev", "heldout", "final") for question in read_questions(FOLDER / f"questions_{name}.jsonl")]
    known = {question.answers for question in sets}
    questions = read_questions(FOLDER / "questions_paraphrased.jsonl")
    assert len({question.query for question in questions}) == len(questions) == 100
    assert all(question.kind == PARAPHRASE and question.answers in known for question in questions)
    concepts = Concepts(load_glossary(), Meanings({}).embed)
    names_alone = ConceptWeights(meaning=0, words=0, names=1, min_score=0)
    assert [question.query for question in questions if concepts.match(question.query, names_alone)] == []


def test_the_sets_share_nothing_but_an_identifier() -> None:
    sets = [read_questions(FOLDER / f"questions_{name}.jsonl") for name in ("dev", "heldout", "final")]
    asked = Counter(question.query for questions in sets for question in questions)
    shared = [question for question in sets[0] + sets[1] if asked[question.query] > 1]
    assert all(question.kind == "identifier" for question in shared)
    assert sum(count - 1 for count in asked.values()) <= 1


@pytest.mark.parametrize(("place", "hit"), [(1, True), (5, True), (6, False)])
def test_a_file_counts_among_the_first_five(place: int, hit: bool) -> None:
    found = results(*[("other.hpp", 1, 2)] * (place - 1), ("a.hpp", 900, 901))
    assert file_hit(ASKED, found) is hit


@pytest.mark.parametrize(
    ("start", "end", "hit"), [(20, 30, True), (1, 10, True), (21, 30, False), (1, 9, False), (1, 150, True), (1, 151, False)]
)
def test_lines_count_where_they_overlap_and_are_not_too_many(start: int, end: int, hit: bool) -> None:
    assert line_hit(ASKED, results(("a.hpp", start, end))) is hit


@pytest.mark.parametrize(("place", "hit"), [(10, True), (11, False)])
def test_lines_count_among_the_first_ten(place: int, hit: bool) -> None:
    assert line_hit(ASKED, results(*[("other.hpp", 10, 20)] * (place - 1), ("a.hpp", 10, 20))) is hit


def test_the_right_lines_of_another_file_are_no_answer() -> None:
    assert not line_hit(ASKED, results(("b.hpp", 10, 20)))


def test_a_question_without_results_is_missed() -> None:
    other = ASKED.model_copy(update={"id": "r", "kind": "error"})
    scores = by_kind([ASKED, other], {"q": results(("a.hpp", 12, 13))})
    assert (scores["concept"].file_hit_5, scores["error"].line_hit_10, scores["all"].file_hit_5) == (1.0, 0.0, 0.5)
    assert scores["all"].missed == ("r",)
    with pytest.raises(ValueError, match="no questions"):
        score([], {})


def test_it_reads_what_the_command_prints(tmp_path: Path) -> None:
    printed = {"path": "a.hpp", "symbol": "f", "start_line": 12, "end_line": 13, "score": 0.5, "release": "cutlass-4.2.0"}
    file = tmp_path / "found.jsonl"
    file.write_text(json.dumps({"id": "q", "results": [printed]}) + "\n\n", encoding="utf-8")
    everyone = [ASKED.model_copy(update={"kind": kind}) for kind in KINDS]
    assert "| 1.00 / 1.00 |" in table([("found", by_kind(everyone, read_results(file)))])
