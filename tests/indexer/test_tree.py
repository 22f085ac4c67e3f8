"""The root of a tree, its files, and the name of its release."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.records.knowledge import Release
from cudal2_agent.indexer.listing import CODE_SUFFIXES, DOCUMENT_SUFFIXES, Skips, is_wanted, list_files
from cudal2_agent.indexer.tree import ReleaseLabel, Tree, plant

VERSION_HEADER = "#pragma once\n#define CUTLASS_MAJOR 4\n#  define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 1 // patch\n"


def planted(folder: Path, *paths: str, name: str | None = None, title: str = "lib", version: str = "") -> Tree:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(VERSION_HEADER if path.endswith("cutlass/version.h") else "int a;\n")
    return plant(folder, list_files(folder, Skips()), ReleaseLabel(name=name, title=title, version=version, origin="here"))


def test_the_include_folder_of_cutlass_is_the_root(tmp_path: Path) -> None:
    tree = planted(tmp_path, "README.md", "include/cutlass/version.h", "include/cute/layout.hpp", "tools/x.cu")
    assert tree.root == tmp_path / "include"
    assert tree.files == ("cute/layout.hpp", "cutlass/version.h")
    assert (tree.name, tree.version, tree.kind, tree.origin) == ("cutlass-4.2.1", "4.2.1", "code", "here")


def test_the_shallowest_include_folder_counts(tmp_path: Path) -> None:
    tree = planted(tmp_path, "a/third_party/cutlass/version.h", "include/cutlass/version.h", "notcutlass/version.h")
    assert tree.root == tmp_path / "include"


def test_the_include_folder_itself_can_be_named(tmp_path: Path) -> None:
    assert planted(tmp_path, "cutlass/version.h", "cute/layout.hpp").files == ("cute/layout.hpp", "cutlass/version.h")


def test_a_name_of_the_user_stands_above_the_macros(tmp_path: Path) -> None:
    tree = planted(tmp_path, "include/cutlass/version.h", name="mine")
    assert (tree.name, tree.version) == ("mine", "4.2.1")


def test_a_version_header_without_macros_is_no_cutlass(tmp_path: Path) -> None:
    planted(tmp_path, "include/cutlass/version.h")
    (tmp_path / "include/cutlass/version.h").write_text("#define CUTLASS_MAJOR 4\n")
    tree = planted(tmp_path, "x.hpp", title="fork", version="1.5")
    assert (tree.root, tree.name, tree.version) == (tmp_path, "fork-1.5", "1.5")


def test_a_folder_of_documents_is_of_that_kind(tmp_path: Path) -> None:
    assert planted(tmp_path, "a.md", "b/c.rst", "d.pdf", "e.txt", "f.html").kind == "documents"
    assert planted(tmp_path, "x.py").kind == "code"


def test_what_is_no_source_is_left_out(tmp_path: Path) -> None:
    tree = planted(
        tmp_path,
        "a.hpp",
        "a.o",
        ".git/x.h",
        "__pycache__/x.py",
        "p-1.dist-info/top_level.txt",
        "CMakeLists.txt",
        ".hidden/b.hpp",
    )
    assert tree.files == ("a.hpp",)


@pytest.mark.parametrize("suffix", sorted(CODE_SUFFIXES | DOCUMENT_SUFFIXES | {".HPP"}))
def test_every_kind_of_source_is_wanted(suffix: str) -> None:
    assert is_wanted(f"some/file{suffix}")


@pytest.mark.parametrize("path", ["a", "a.so", "a.hpp.bak", ".hpp", "hpp", "a.json", "a.cubin"])
def test_nothing_else_is(path: str) -> None:
    assert not is_wanted(path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"here: no C\+\+, CUDA, Python or document file"):
        planted(tmp_path)


@pytest.mark.parametrize("name", ["", " ", "-x", "../x", "a/b", "a b", "x\n", "é", "x" * 101])
def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match="cannot name a release"):
        planted(tmp_path, "a.hpp", name=name)


@given(title=st.text(max_size=200), version=st.text(max_size=30))
def test_a_made_name_is_always_valid(title: str, version: str) -> None:
    label = ReleaseLabel(name=None, title=title, version=version, origin="here")
    if not any(letter.isascii() and letter.isalnum() for letter in title):
        label = label.model_copy(update={"title": f"x{title}"})
    name = plant(Path("/nowhere"), ["a.hpp"], label).name
    Release(name=name, kind="code", version="", origin="", indexed_at="", files=0, pieces=0)


def test_a_title_without_a_letter_asks_for_a_name() -> None:
    with pytest.raises(SourceError, match="--name"):
        plant(Path("/nowhere"), ["a.hpp"], ReleaseLabel(name=None, title="…", version="", origin="here"))


def test_a_title_that_says_its_version_is_not_told_twice(tmp_path: Path) -> None:
    assert planted(tmp_path, "a.hpp", title="my lib-1.2", version="1.2").name == "my-lib-1.2"
