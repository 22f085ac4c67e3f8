"""Notes are cut at their headings, code stays whole, and a bad file is one line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import KnowledgeError
from contract.task import Arch
from knowledge.documents import RELEASE, Document, read_document, read_documents

NOTE = """---
title: A note
archs: sm_80, sm_90a
limit.answer: 42
---
# A note

Opening words.

## First
Text of the first.

```cuda
## not a heading
# include
~~~
int x;
```
After the code.

### Below
Deep text.

## Second ##
~~~
```
# not one either
~~~

## Empty
### Filled
Words.

## Sources
- A document
"""


@pytest.fixture
def note(tmp_path: Path) -> Document:
    return parse(tmp_path, NOTE)


def parse(folder: Path, text: str) -> Document:
    path = folder / "note.md"
    path.write_bytes(text.encode())
    return read_document(path, "notes/note.md")


def test_front_matter(note: Document) -> None:
    assert note.title == "A note"
    assert note.archs == (Arch.SM_80, Arch.SM_90A)
    assert note.front_matter["limit.answer"] == "42"


def test_one_chunk_a_heading_under_its_headings(note: Document) -> None:
    assert [chunk.symbol for chunk in note.chunks()] == [
        "A note",
        "A note > First",
        "A note > First > Below",
        "A note > Second",
        "A note > Empty > Filled",
    ]
    assert {(chunk.release, chunk.path, chunk.kind, chunk.archs) for chunk in note.chunks()} == {
        (RELEASE, "notes/note.md", "note", (Arch.SM_80, Arch.SM_90A))
    }


def test_code_is_never_split(note: Document) -> None:
    first = note.chunks()[1]
    assert "## not a heading" in first.text
    assert first.text.endswith("After the code.")
    assert "# not one either" in note.chunks()[3].text


def test_lines_address_the_file(note: Document) -> None:
    lines = NOTE.split("\n")
    for chunk in note.chunks():
        assert "\n".join(lines[chunk.start_line - 1 : chunk.end_line]) == chunk.text
        assert lines[chunk.start_line - 1].startswith("#")


def test_sources_are_kept_in_the_document_but_not_searched(note: Document) -> None:
    assert note.sections[-1].headings[-1] == "Sources"
    assert all("A document" not in chunk.text for chunk in note.chunks())


def test_text_before_the_first_heading_carries_the_title(tmp_path: Path) -> None:
    document = parse(tmp_path, "---\ntitle: T\n---\nfree text\n# One\nx\n")
    assert [(chunk.symbol, chunk.text) for chunk in document.chunks()] == [("T", "free text"), ("One", "# One\nx")]


def test_an_unclosed_fence_runs_to_the_end(tmp_path: Path) -> None:
    document = parse(tmp_path, "# One\n```\n# two\n# three")
    assert [chunk.symbol for chunk in document.chunks()] == ["One"]


def test_a_longer_fence_is_closed_only_by_one_as_long(tmp_path: Path) -> None:
    document = parse(tmp_path, "# One\n````\n```\n# two\n````\n# Three\nx")
    assert [chunk.symbol for chunk in document.chunks()] == ["One", "Three"]


@pytest.mark.parametrize("text", ["# One\r\nx\r\n## Two\r\ny\r\n", "\ufeff# One\nx\n## Two\ny\n"])
def test_line_ends_and_byte_order_marks(tmp_path: Path, text: str) -> None:
    assert [(chunk.symbol, chunk.text) for chunk in parse(tmp_path, text).chunks()] == [
        ("One", "# One\nx"),
        ("One > Two", "## Two\ny"),
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "# Only a heading", "---\ntitle: x\n---\n", "# A\n## B\n### C\n"])
def test_a_document_without_a_body_has_no_chunks(tmp_path: Path, text: str) -> None:
    assert parse(tmp_path, text).chunks() == []


@given(
    st.lists(st.sampled_from(["# a", "## b", "### c", "text", "", "```", "~~~", "````", "#no", "####### seven"]), max_size=30)
)
def test_no_line_is_lost_or_told_twice(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    document = parse(tmp_path_factory.mktemp("notes"), "\n".join(lines))
    covered = [line for section in document.sections for line in range(section.start_line, section.end_line + 1)]
    assert covered == sorted(set(covered))
    bodies = {number for number, line in enumerate(lines, start=1) if line == "text"}
    assert bodies <= set(covered)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("---\ntitle: x\n", "not closed"),
        ("---", "not closed"),
        ("---\njust words\n---\n", "line 2"),
        ("---\narchs: sm_75\n---\n", "sm_75"),
        ("---\narchs: all\n---\n", "known are sm_80"),
    ],
)
def test_broken_front_matter_is_one_line_with_the_document(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(KnowledgeError, match=said) as caught:
        parse(tmp_path, text)
    assert "notes/note.md" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_document_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"# One\nf\xff")
    with pytest.raises(KnowledgeError, match=r"a\.md is not UTF-8 at byte 7"):
        read_documents(tmp_path)


def test_a_document_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "loop.md").symlink_to(tmp_path / "loop.md")
    with pytest.raises(KnowledgeError, match=r"loop\.md cannot be read"):
        read_documents(tmp_path)


def test_a_folder_named_like_a_document(tmp_path: Path) -> None:
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(KnowledgeError, match=r"folder\.md cannot be read"):
        read_documents(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match="does not exist"):
        read_documents(tmp_path / "none")


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(KnowledgeError, match="does not exist"):
        read_documents(tmp_path / "file")


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("# not markdown by name")
    with pytest.raises(KnowledgeError, match="no markdown"):
        read_documents(tmp_path)


def test_documents_come_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b.md", "a.md", "sub/c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# x\ny")
    assert [document.path for document in read_documents(tmp_path)] == ["a.md", "b.md", "sub/c.md"]
