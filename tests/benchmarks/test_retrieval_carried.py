"""Questions carried from one release to another: answers move with their lines, and what is gone is named."""

from pathlib import Path

import pytest

from benchmarks.retrieval.carried import carry, main
from benchmarks.retrieval.score import AnswerSpan, ScoredQuestion

OLD = "// 2025\nint a();\n\nint b();\nint c();\n"


def trees(folder: Path, **new: str) -> tuple[Path, Path]:
    """Both releases; the old one has `cute/a.hpp` alone."""
    for side, files in (("old", {"cute/a.hpp": OLD}), ("new", {name.replace("__", "/"): text for name, text in new.items()})):
        for name, text in files.items():
            file = folder / side / f"{name.removesuffix('.hpp')}.hpp"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (folder / side).mkdir(exist_ok=True)
    return folder / "old", folder / "new"


def question(*lines: tuple[int, int]) -> ScoredQuestion:
    answers = tuple(AnswerSpan(path="cute/a.hpp", start_line=start, end_line=end) for start, end in lines)
    return ScoredQuestion(id="q", kind="concept", query="where is b", answers=answers)


def spans(carried: ScoredQuestion | None) -> list[tuple[str, int, int]]:
    return [(one.path, one.start_line, one.end_line) for one in carried.answers] if carried else []


def test_an_answer_moves_with_its_lines(tmp_path: Path) -> None:
    old, new = trees(tmp_path, cute__a="// 2026\nint z();\nint a();\n\nint b();\nint b(int);\nint c();\n")
    assert spans(carry(question((2, 5)), old, new)) == [("cute/a.hpp", 3, 7)]
    assert spans(carry(question((4, 4)), old, new)) == [("cute/a.hpp", 5, 5)]


def test_a_file_that_moved_is_found_by_its_name(tmp_path: Path) -> None:
    old, new = trees(tmp_path, cute__arch__a=OLD, cute__atom__b=OLD)
    assert spans(carry(question((4, 4)), old, new)) == [("cute/arch/a.hpp", 4, 4)]


def test_an_answer_that_is_gone_is_dropped(tmp_path: Path) -> None:
    old, new = trees(tmp_path, cute__a="// 2026\nint a();\n")
    assert spans(carry(question((1, 2), (4, 5)), old, new)) == [("cute/a.hpp", 2, 2)]
    assert carry(question((3, 5)), old, new) is None, "an empty line is no answer"


def test_questions_without_answers_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = trees(tmp_path, cute__a="int a();\n")
    file = tmp_path / "questions.jsonl"
    kept, gone = question((2, 2)), question((4, 4)).model_copy(update={"id": "gone"})
    file.write_text("".join(f"{one.model_dump_json()}\n" for one in (kept, gone)))
    main([str(file), str(old), str(new)])
    told = capsys.readouterr()
    assert ScoredQuestion.model_validate_json(told.out) == kept.model_copy(
        update={"answers": (AnswerSpan(path="cute/a.hpp", start_line=1, end_line=1),)}
    )
    assert told.err == f"gone: no answer is left in {new}\n"
