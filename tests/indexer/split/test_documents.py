"""Documents are cut at their headings, code stays whole, and an invalid file is reported in one line."""

import io
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.split.split import split_file
from tests.indexer.split.coverage import covered, lost


def pdf(pages: list[str], outline: dict[str, int], *, title: str = "", password: str = "") -> bytes:
    """One page per text; `outline`: page number from 0 by heading."""
    writer = PdfWriter()
    for text in pages:
        page = writer.add_blank_page(300, 300)
        font = DictionaryObject(
            {
                NameObject("/Type"): NameObject("/Font"),
                NameObject("/Subtype"): NameObject("/Type1"),
                NameObject("/BaseFont"): NameObject("/Helvetica"),
            }
        )
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})})
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode() if text else b"")
        page[NameObject("/Contents")] = writer._add_object(content)
    for heading, number in outline.items():
        writer.add_outline_item(heading, number)
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


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


def split(text: str, name: str = "notes/note.md") -> SplitFile:
    return split_file(name, text.encode())


def sections(found: SplitFile) -> list[tuple[str, str]]:
    lines = found.text.split("\n")
    return [(piece.symbol, "\n".join(lines[piece.start_line - 1 : piece.end_line])) for piece in found.pieces]


def symbols(found: SplitFile) -> list[str]:
    return [piece.symbol for piece in found.pieces]


def test_one_piece_a_heading_under_its_headings() -> None:
    found = split(NOTE)
    assert symbols(found) == [
        "A note",
        "A note > First",
        "A note > First > Below",
        "A note > Second",
        "A note > Empty > Filled",
    ]
    assert {(piece.kind, piece.archs) for piece in found.pieces} == {("section", ("sm_80", "sm_90"))}


def test_code_is_never_split() -> None:
    texts = [text for _, text in sections(split(NOTE))]
    assert "## not a heading" in texts[1]
    assert texts[1].endswith("After the code.")
    assert "# not one either" in texts[3]


def test_sources_are_kept_in_the_text_and_out_of_the_pieces() -> None:
    found = split(NOTE)
    assert "A document" in found.text
    assert all("A document" not in text for _, text in sections(found))


def test_pieces_begin_at_their_headings() -> None:
    lines = NOTE.split("\n")
    assert [lines[piece.start_line - 1] for piece in split(NOTE).pieces] == [
        "# A note",
        "## First",
        "### Below",
        "## Second ##",
        "### Filled",
    ]


def test_bytes_that_are_no_text_cost_themselves_alone() -> None:
    found = split_file("a.md", b"# One\nf\xff\n## Two\ny\n")
    assert symbols(found) == ["One", "One > Two"]
    assert not lost(found)


def test_text_before_the_first_heading_carries_the_title() -> None:
    assert sections(split("---\ntitle: T\n---\nfree text\n# One\nx\n")) == [("T", "free text"), ("One", "# One\nx")]


def test_without_a_title_the_file_names_it() -> None:
    assert symbols(split("free text\n")) == ["note"]


def test_underlined_headings() -> None:
    found = split("Title\n=====\nwords\n\nPart\n---\nmore\n\nnot a\nheading\n---\n- item\n---\n| a |\n|---|\n")
    assert symbols(found) == ["Title", "Title > Part"]


def test_a_rule_at_the_top_is_not_front_matter() -> None:
    found = split("---\njust words\n---\n# One\nx\n")
    assert sections(found)[-1] == ("One", "# One\nx")


def test_front_matter_that_is_never_closed_is_text() -> None:
    assert not lost(split("---\ntitle: x\nwords\n"))


def test_an_unknown_architecture_is_one_line_with_the_document() -> None:
    with pytest.raises(SourceError, match=r"notes/note\.md: archs 'all'") as caught:
        split("---\narchs: all\n---\nx\n")
    assert "\n" not in str(caught.value)


def test_an_unclosed_fence_runs_to_the_end() -> None:
    assert symbols(split("# One\n```\n# two\n# three")) == ["One"]


def test_a_longer_fence_is_closed_only_by_one_as_long() -> None:
    assert symbols(split("# One\n````\n```\n# two\n````\n# Three\nx")) == ["One", "Three"]


@pytest.mark.parametrize("text", ["# One\r\nx\r\n## Two\r\ny\r\n", "\ufeff# One\nx\n## Two\ny\n"])
def test_line_ends_and_byte_order_marks(text: str) -> None:
    assert sections(split(text)) == [("One", "# One\nx"), ("One > Two", "## Two\ny")]


@pytest.mark.parametrize("text", ["", "\n\n", "# Only a heading", "---\ntitle: x\n---\n", "# A\n## B\n### C\n"])
def test_a_document_without_a_body_has_no_pieces(text: str) -> None:
    assert split(text).pieces == ()


def test_a_long_section_is_cut_at_paragraphs_and_never_in_code() -> None:
    paragraph = "words\n" * 20 + "\n"
    code = "```\n" + "x;\n\n" * 100 + "```\n\n"
    found = split("# Long\n" + paragraph * 4 + code + paragraph * 4)
    assert [text[:3] for _, text in sections(found)] == ["# L", "```", "wor"]
    assert {(p.symbol, p.definition) for p in found.pieces} == {("Long", (1, found.text.rstrip().count("\n") + 1))}
    assert all(text.count("```") % 2 == 0 for _, text in sections(found))
    assert not lost(found)


MARKS = ["# a", "## b", "### c", "text", "", "```", "~~~", "````", "#no", "####### seven", "===", "---", "- x", "    code"]


@given(st.lists(st.sampled_from(MARKS), max_size=30))
def test_no_text_is_lost_or_told_twice(lines: list[str]) -> None:
    found = split("\n".join(lines))
    held = covered(found) | front_matter(lines) | titles(lines)
    assert {number for number, line in enumerate(lines, start=1) if line in ("text", "- x")} <= held


def titles(lines: list[str]) -> set[int]:
    """Lines that an underline turns into headings. One without text becomes part of the names below it."""
    return {number for number, below in enumerate(lines[1:], start=1) if below in ("===", "---")}


def front_matter(lines: list[str]) -> set[int]:
    """Lines of front matter without values."""
    if lines and lines[0] == "---" and "---" in lines[1:]:
        return set(range(1, lines.index("---", 1) + 2))
    return set()


RST = """
=====
Rings
=====

Opening words.

Stages
======

.. code-block:: c

   x
   ====
   y

How many
--------
Four.

How deep
========
Words.
"""


def test_restructured_text_by_its_adornments() -> None:
    found = split(RST, "docs/rings.rst")
    assert symbols(found) == ["Rings", "Rings > Stages", "Rings > Stages > How many", "Rings > How deep"]
    assert sections(found)[3][1].startswith("How deep\n====")
    assert not lost(found)


HTML = """<!DOCTYPE html>
<html><head><title>The page &amp; more</title>
<style>p { color: red }</style></head>
<body>
<nav>menu</nav>
<p>Before   all.</p>
<h1>Rings<a class="headerlink">¶</a></h1>
<p>A ring has
stages.</p>
<script>var x = "<h1>no</h1>";</script>
<h2>How many</h2>
<pre>
  a  b
    c
</pre><ul><li>one<li>two</ul>
</body></html>
"""


def test_html_without_its_markup() -> None:
    found = split(HTML, "page.html")
    assert symbols(found) == ["The page & more", "Rings", "Rings > How many"]
    texts = [text for _, text in sections(found)]
    assert texts[0] == "Before all."
    assert "stages." in texts[1]
    assert "  a  b\n    c" in texts[2]
    assert not any(word in found.text for word in ("menu", "color", "var x", "<"))


def test_html_lines_are_those_of_the_source() -> None:
    found = split(HTML, "page.html")
    source, text = HTML.split("\n"), found.text.split("\n")
    for word in ("Before", "Rings", "stages.", "How many", "a  b"):
        assert next(n for n, line in enumerate(source) if word in line) == next(
            n for n, line in enumerate(text) if word in line
        )


def test_html_all_on_one_line() -> None:
    found = split("<h1>A</h1><p>one</p><h2>B</h2><p>two<br>three</p>", "x.htm")
    assert sections(found) == [("A", "A\none"), ("A > B", "B\ntwo\nthree")]


@pytest.mark.parametrize(
    "text", ["<h1>open", "<p>" * 20000 + "x", "</h1></p>text<h1>", "<![CDATA[", "<script>never", "<!--", "<head>x<body>y"]
)
def test_broken_html(text: str) -> None:
    assert not lost(split(text, "x.html"))


def test_pdf_pages_under_the_headings_of_the_outline() -> None:
    found = split_file(
        "a/guide.pdf", pdf(["First words", "Second words", "Third words"], {"Rings": 0, "Stages": 2}, title="Guide")
    )
    assert symbols(found) == ["Guide > Rings > page 1", "Guide > Rings > page 2", "Guide > Stages > page 3"]
    assert "Second words" in sections(found)[1][1]
    assert not lost(found)


def test_pdf_without_title_or_outline() -> None:
    assert symbols(split_file("a/guide.pdf", pdf(["Words"], {}))) == ["guide > page 1"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read as PDF"),
        (b"not a pdf at all", "cannot be read as PDF"),
        (pdf(["Words"], {})[:200], "cannot be read as PDF"),
        (pdf(["Words"], {}, password="secret"), "is encrypted"),
        (pdf([""], {}), "contains no text"),
    ],
    ids=["empty", "text", "truncated", "encrypted", "scanned"],
)
def test_a_pdf_that_cannot_be_read_is_one_line(data: bytes, said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        split_file("a/guide.pdf", data)
    assert str(caught.value).startswith("a/guide.pdf")
    assert "\n" not in str(caught.value)


def test_plain_text_is_cut_into_windows_at_blank_lines() -> None:
    text = ("words\n" * 9 + "\n") * 30
    found = split(text, "notes.txt")
    assert {(p.kind, p.symbol) for p in found.pieces} == {("text", "notes.txt")}
    assert all(p.end_line - p.start_line < 60 for p in found.pieces)
    assert all(p.start_line % 10 == 1 for p in found.pieces)
    assert not lost(found)


def test_an_unknown_suffix_is_text() -> None:
    assert split("all: build\n", "Makefile").pieces[0].symbol == PurePosixPath("Makefile").name
