"""Scores the results of `cudal2-agent index search --queries` against questions with verified answers.

Run from the repository's root:
  cudal2-agent index search --queries benchmarks/retrieval/questions_dev.jsonl > found.jsonl
  python -m benchmarks.retrieval.score benchmarks/retrieval/questions_dev.jsonl found.jsonl

A question is a line {"id", "kind", "query", "answers": [{"path", "start_line", "end_line"}]}. Any of its answers counts.
File level: one of the first 5 results is in the file of an answer. Line level: one of the first 10 results overlaps an answer
and has at most 150 lines.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks import harness
from cudal2_agent.contract.base import Record

KINDS = ("identifier", "error", "concept", "agent")  # of the three sets
PARAPHRASE = "paraphrase"
FILES, LINES, MAX_LINES = 5, 10, 150


class AnswerSpan(Record):
    path: str
    start_line: int
    end_line: int


class ScoredQuestion(Record):
    id: str
    kind: str
    query: str
    answers: tuple[AnswerSpan, ...]


class RetrievalScore(Record):
    """Shares of answered questions, and the ids of the others."""

    questions: int
    file_hit_5: float
    line_hit_10: float
    missed: tuple[str, ...]


def read_questions(path: Path) -> list[ScoredQuestion]:
    return [ScoredQuestion.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_results(path: Path) -> dict[str, list[AnswerSpan]]:
    """Results by question, best first. Other fields of a result are ignored."""
    found = {}
    for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
        answer = json.loads(line)
        found[answer["id"]] = [
            AnswerSpan(**{name: result[name] for name in ("path", "start_line", "end_line")}) for result in answer["results"]
        ]
    return found


def file_hit(question: ScoredQuestion, results: Sequence[AnswerSpan]) -> bool:
    paths = {answer.path for answer in question.answers}
    return any(result.path in paths for result in results[:FILES])


def line_hit(question: ScoredQuestion, results: Sequence[AnswerSpan]) -> bool:
    return any(_answers(result, answer) for result in results[:LINES] for answer in question.answers)


def _answers(result: AnswerSpan, answer: AnswerSpan) -> bool:
    fits = result.end_line - result.start_line < MAX_LINES
    overlaps = result.start_line <= answer.end_line and answer.start_line <= result.end_line
    return fits and overlaps and result.path == answer.path


def score(questions: Sequence[ScoredQuestion], results: Mapping[str, Sequence[AnswerSpan]]) -> RetrievalScore:
    """The score of a question set. A question without results is missed. Raises: ValueError if there are no questions."""
    if not questions:
        raise ValueError("no questions to score")
    files = [file_hit(question, results.get(question.id, ())) for question in questions]
    lines = [line_hit(question, results.get(question.id, ())) for question in questions]
    missed = [question.id for question, both in zip(questions, zip(files, lines, strict=True), strict=True) if not all(both)]
    return RetrievalScore(
        questions=len(questions),
        file_hit_5=round(sum(files) / len(files), 3),
        line_hit_10=round(sum(lines) / len(lines), 3),
        missed=tuple(missed),
    )


def by_kind(questions: Sequence[ScoredQuestion], results: Mapping[str, Sequence[AnswerSpan]]) -> dict[str, RetrievalScore]:
    kinds = [kind for kind in (*KINDS, PARAPHRASE) if any(question.kind == kind for question in questions)]
    scores = {kind: score([question for question in questions if question.kind == kind], results) for kind in kinds}
    return {**scores, "all": score(questions, results)}


def table(rows: Iterable[tuple[str, Mapping[str, RetrievalScore]]]) -> str:
    """A Markdown table with file level / line level in each cell."""
    rows = list(rows)
    kinds = [kind for kind in (*KINDS, PARAPHRASE, "all") if all(kind in scores for _, scores in rows)]
    cells = (
        (name, *(f"{scores[kind].file_hit_5:.2f} / {scores[kind].line_hit_10:.2f}" for kind in kinds)) for name, scores in rows
    )
    return "\n".join(harness.table(("", *kinds), cells))


def main() -> None:
    parser = harness.script(__file__, __doc__)
    parser.add_argument("questions", type=Path)
    parser.add_argument("results", type=Path)
    given = parser.parse_args()
    questions = read_questions(given.questions)
    scores = by_kind(questions, read_results(given.results))
    print(table([(given.questions.stem, scores)]))
    print(f"missed: {', '.join(scores['all'].missed) or 'none'}")


if __name__ == "__main__":
    harness.execute(main)
