"""Scores what `cudal2-agent index search --queries` found against questions with verified answers.

Run from the repository's root:
  cudal2-agent index search --queries benchmarks/retrieval/questions_dev.jsonl > found.jsonl
  python -m benchmarks.retrieval.score benchmarks/retrieval/questions_dev.jsonl found.jsonl

A question is a line {"id", "kind", "query", "answers": [{"path", "start_line", "end_line"}]}; any of its answers counts.
File level: one of the first 5 results is in an answer's file. Line level: one of the first 10 overlaps an answer and is at
most 150 lines long.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from contract.base import Record

KINDS = ("identifier", "error", "concept", "agent")
FILES, LINES, WIDEST = 5, 10, 150


class Span(Record):
    path: str
    start_line: int
    end_line: int


class Question(Record):
    id: str
    kind: str
    query: str
    answers: tuple[Span, ...]


class Score(Record):
    """Shares of the questions that were answered, and the ids of those that were not."""

    questions: int
    file_hit_5: float
    line_hit_10: float
    missed: tuple[str, ...]


def read_questions(path: Path) -> list[Question]:
    return [Question.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_results(path: Path) -> dict[str, list[Span]]:
    """Results by question, best first; other fields of a result are left aside."""
    found = {}
    for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
        answer = json.loads(line)
        found[answer["id"]] = [
            Span(**{name: result[name] for name in ("path", "start_line", "end_line")}) for result in answer["results"]
        ]
    return found


def file_hit(question: Question, results: Sequence[Span]) -> bool:
    paths = {answer.path for answer in question.answers}
    return any(result.path in paths for result in results[:FILES])


def line_hit(question: Question, results: Sequence[Span]) -> bool:
    return any(_answers(result, answer) for result in results[:LINES] for answer in question.answers)


def _answers(result: Span, answer: Span) -> bool:
    fits = result.end_line - result.start_line < WIDEST
    overlaps = result.start_line <= answer.end_line and answer.start_line <= result.end_line
    return fits and overlaps and result.path == answer.path


def score(questions: Sequence[Question], results: Mapping[str, Sequence[Span]]) -> Score:
    """Raises: ValueError for no questions; a question without results is missed."""
    if not questions:
        raise ValueError("no questions to score")
    files = [file_hit(question, results.get(question.id, ())) for question in questions]
    lines = [line_hit(question, results.get(question.id, ())) for question in questions]
    missed = [question.id for question, both in zip(questions, zip(files, lines, strict=True), strict=True) if not all(both)]
    return Score(
        questions=len(questions),
        file_hit_5=round(sum(files) / len(files), 3),
        line_hit_10=round(sum(lines) / len(lines), 3),
        missed=tuple(missed),
    )


def by_kind(questions: Sequence[Question], results: Mapping[str, Sequence[Span]]) -> dict[str, Score]:
    kinds = [kind for kind in KINDS if any(question.kind == kind for question in questions)]
    scores = {kind: score([question for question in questions if question.kind == kind], results) for kind in kinds}
    return {**scores, "all": score(questions, results)}


def table(rows: Iterable[tuple[str, Mapping[str, Score]]]) -> str:
    """A markdown table, file-level / line-level a cell."""
    lines = [f"| | {' | '.join((*KINDS, 'all'))} |", "|---|" + "---|" * (len(KINDS) + 1)]
    for name, scores in rows:
        cells = (f"{scores[kind].file_hit_5:.2f} / {scores[kind].line_hit_10:.2f}" for kind in (*KINDS, "all"))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("questions", type=Path)
    parser.add_argument("results", type=Path)
    given = parser.parse_args()
    questions = read_questions(given.questions)
    scores = by_kind(questions, read_results(given.results))
    print(table([(given.questions.stem, scores)]))
    print(f"missed: {', '.join(scores['all'].missed) or 'none'}")


if __name__ == "__main__":
    main()
