"""The notes that ship: whole, sourced, and in agreement with the limits that the validator enforces."""

import re
from pathlib import Path

import pytest

from contract.chip import LIMITS
from contract.task import Arch
from knowledge.bm25 import BUILTIN_FOLDER
from knowledge.documents import Document, read_documents

DOCUMENTS = read_documents(BUILTIN_FOLDER)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|usr|opt)/")


@pytest.mark.parametrize("arch", list(Arch))
def test_an_architecture_note_states_the_limits_of_the_chip(arch: Arch) -> None:
    note = next(document for document in DOCUMENTS if document.path == f"{arch}.md")
    stated = {key.removeprefix("limit."): value for key, value in note.front_matter.items() if key.startswith("limit.")}
    assert stated == {name: str(value) for name, value in LIMITS[arch].model_dump().items()}
    assert note.archs == (arch,)


@pytest.mark.parametrize("arch", list(Arch))
def test_the_table_for_readers_agrees_with_the_limits(arch: Arch) -> None:
    limits = LIMITS[arch]
    text = (BUILTIN_FOLDER / f"{arch}.md").read_text("utf-8")
    assert f"| {limits.smem_per_sm_bytes // 1024} KiB / {limits.max_smem_per_block_bytes // 1024} KiB" in text
    assert f"| {limits.max_threads_per_sm:,} / {limits.max_blocks_per_sm} |" in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.path)
def test_a_note_is_whole(document: Document) -> None:
    text = (BUILTIN_FOLDER / document.path).read_text("utf-8")
    assert document.sections[-1].headings[-1] == "Sources"
    assert document.sections[-1].text.count("\n- ") >= 2
    assert text.count("```") % 2 == 0
    assert f"# {document.title}\n" in text
    assert 30 <= text.count("\n") <= 120
    assert not MACHINE_PATH.search(text)
    assert "TODO" not in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.path)
def test_a_chunk_fits_into_a_prompt(document: Document) -> None:
    assert all(100 <= len(chunk.text) <= 4000 for chunk in document.chunks())


def test_the_notes_belong_to_the_package() -> None:
    """They lie inside the package and end in a suffix that the distribution ships."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    assert '"*.md"' in project
    assert BUILTIN_FOLDER.parent.name == "knowledge"


def test_the_example_in_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "knowledge.md").read_text("utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    exec(compile(example, "docs/knowledge.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert any(line.startswith("wgmma.md ") for line in lines)
