"""What README, docs and the log link to and name exists."""

import re

import pytest

from tests.pages import (
    HISTORY,
    PAGES,
    ROOT,
    anchors,
    defines,
    exists,
    links,
    named_files,
    named_functions,
    named_modules,
    runs,
    text,
)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    broken = [path for path, _ in links(page) if not (ROOT / path).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES)
def test_every_anchor_is_a_heading(page: str) -> None:
    broken = [f"{path}#{anchor}" for path, anchor in links(page) if anchor and anchor not in anchors(path)]
    assert not broken


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY])
def test_every_named_file_exists(page: str) -> None:
    missing = [name for name in named_files(page) if not exists(name)]
    assert not missing


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY])
def test_every_named_module_runs(page: str) -> None:
    missing = [name for name in named_modules(page) if not runs(name)]
    assert not missing


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY])
def test_every_named_function_exists(page: str) -> None:
    missing = [f"{path}:{function}" for path, function in named_functions(page) if not defines(path, function)]
    assert not missing


def test_the_glossary_is_in_order_and_tells_each_term_once() -> None:
    for table in text("docs/internals/glossary.md").split("\n## ")[1:]:
        terms = re.findall(r"^\| (?!term )([\w ,-]+) \|", table, flags=re.MULTILINE)
        assert terms == sorted(set(terms), key=str.lower)
