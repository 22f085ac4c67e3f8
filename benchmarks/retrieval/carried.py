"""Carries questions with verified answers from one release to another, to ask them of the other.

Run from the repository's root:
  python -m benchmarks.retrieval.carried QUESTIONS OLD_INCLUDE NEW_INCLUDE > carried.jsonl

The folders are those that contain `cute` and `cutlass`. An answer moves with its lines, as a comparison of the two files pairs
them. A file that is not where it was is looked for by its name. An answer none of whose lines is left is dropped, and so is a
question without answers; stderr names it.
"""

import argparse
import sys
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

from benchmarks.retrieval.score import AnswerSpan, ScoredQuestion, read_questions


def carry(question: ScoredQuestion, old: Path, new: Path) -> ScoredQuestion | None:
    """The question with the answers that the new release has; None where it has none."""
    answers = tuple(moved for answer in question.answers if (moved := _moved(answer, old, new)) is not None)
    return question.model_copy(update={"answers": answers}) if answers else None


def _moved(answer: AnswerSpan, old: Path, new: Path) -> AnswerSpan | None:
    for path in _places(answer.path, new):
        pairs = _paired(old / answer.path, new / path)
        lines = [pairs[line] for line in range(answer.start_line, answer.end_line + 1) if line in pairs]
        if lines:
            return AnswerSpan(path=path, start_line=lines[0], end_line=lines[-1])
    return None


def _places(path: str, new: Path) -> list[str]:
    """The path, or the files of that name where it is gone."""
    if (new / path).exists():
        return [path]
    return [found.relative_to(new).as_posix() for found in sorted(new.rglob(Path(path).name))]


@cache
def _paired(old: Path, new: Path) -> dict[int, int]:
    """Line numbers of the new file by those of the old one."""
    before, after = (file.read_text("utf-8", errors="replace").splitlines() for file in (old, new))
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return {
        start + offset + 1: there + offset + 1
        for start, there, size in blocks
        for offset in range(size)
        if before[start + offset].strip()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("questions", "old", "new"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args(arguments)
    for question in read_questions(given.questions):
        carried = carry(question, given.old, given.new)
        if carried is None:
            print(f"{question.id}: no answer is left in {given.new}", file=sys.stderr)
        else:
            print(carried.model_dump_json())


if __name__ == "__main__":
    main()
