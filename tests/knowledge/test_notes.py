"""The notes that ship: complete, with sources, and consistent with the limits that are enforced."""

import re
import tomllib
from pathlib import Path

import pytest

from cudal2_agent.agent.index.indexing import NOTES_FOLDER
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.records.knowledge import Query, Retriever
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.indexer.split.split import split_file

PROJECT = Path(__file__).parents[2]
NAMES = sorted(path.name for path in NOTES_FOLDER.glob("*.md"))
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|usr|opt)/")


def text_of(name: str) -> str:
    return (NOTES_FOLDER / name).read_text("utf-8")


def front_matter(name: str) -> dict[str, str]:
    head = text_of(name).split("---\n")[1]
    return dict(line.split(": ", 1) for line in head.splitlines())


@pytest.mark.parametrize("arch", list(Arch))
def test_an_architecture_note_states_the_limits_of_the_chip(arch: Arch) -> None:
    values = front_matter(f"{arch}.md")
    stated = {key.removeprefix("limit."): value for key, value in values.items() if key.startswith("limit.")}
    assert stated == {name: str(value) for name, value in LIMITS[arch].model_dump().items()}
    assert values["archs"] == arch


@pytest.mark.parametrize("arch", list(Arch))
def test_the_table_for_readers_agrees_with_the_limits(arch: Arch) -> None:
    limits, text = LIMITS[arch], text_of(f"{arch}.md")
    assert f"| {limits.smem_per_sm_bytes // 1024} KiB / {limits.max_smem_per_block_bytes // 1024} KiB" in text
    assert f"| {limits.max_threads_per_sm:,} / {limits.max_blocks_per_sm} |" in text


@pytest.mark.parametrize("name", NAMES)
def test_a_note_is_whole(name: str) -> None:
    text = text_of(name)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert headings[0] == front_matter(name)["title"]
    assert headings[-1] == "Sources"
    assert text.partition("\n## Sources\n")[2].count("- ") >= 2
    assert text.count("```") % 2 == 0
    assert 30 <= text.count("\n") <= 120
    assert not MACHINE_PATH.search(text)
    assert "TODO" not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_section_fits_into_a_prompt(name: str) -> None:
    lines = text_of(name).split("\n")
    pieces = split_file(name, (NOTES_FOLDER / name).read_bytes()).pieces
    assert len(pieces) >= 3
    assert all(100 <= len("\n".join(lines[piece.start_line - 1 : piece.end_line])) <= 4000 for piece in pieces)


def test_the_notes_belong_to_the_package() -> None:
    """The notes are inside a package that the distribution ships completely."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    assert "cudal2_agent" in settings["tool"]["scikit-build"]["wheel"]["packages"]
    assert NOTES_FOLDER.resolve().parent == PROJECT / "knowledge"
    assert (PROJECT / "cudal2_agent" / "knowledge").resolve() == PROJECT / "knowledge"


def test_every_note_is_indexed(notes: Retriever) -> None:
    shown = {
        hit.chunk.path for hit in notes.search(Query(words="the warps of a thread block and their shared memory", count=300))
    }
    assert shown == set(NAMES)


def test_the_example_in_the_documentation_runs(
    notes_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(notes_home))
    text = (PROJECT / "docs" / "internals" / "knowledge.md").read_text("utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    exec(compile(example, "docs/internals/knowledge.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("wgmma.md ")
