"""Chunks, arch tags and file keys, on which indexer, store and search rely."""

import pytest

from cudal2_agent.contract.records.knowledge import Chunk, arch_number, file_key, fits
from cudal2_agent.contract.records.task import Arch


def chunk(text: str) -> Chunk:
    return Chunk(release="r-1", path="a.hpp", start_line=1, end_line=2, symbol="f", kind="function", text=text)


def test_tokens_are_never_counted_short() -> None:
    assert [chunk("x" * length).tokens for length in (0, 1, 7, 8)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("tags", "arch", "holds"),
    [
        ((), Arch.SM_90A, True),
        (("sm_90",), None, True),
        (("sm_90",), Arch.SM_90A, True),
        (("sm_100",), Arch.SM_90A, False),
        (("sm_80", "sm_90"), Arch.SM_80, True),
        (("sm_80",), Arch.SM_86, True),
        (("sm_80",), Arch.SM_89, True),
        (("sm_80",), Arch.SM_90A, False),
        (("sm_89",), Arch.SM_86, False),
    ],
)
def test_what_holds_for_a_target(tags: tuple[str, ...], arch: Arch | None, holds: bool) -> None:
    assert fits(tags, arch) is holds


def test_an_arch_is_known_by_its_number() -> None:
    assert {arch_number(arch) for arch in ("sm_90", "sm_90a", Arch.SM_90A)} == {90}


def test_a_file_version_is_another_where_path_content_or_splitter_is() -> None:
    keys = {file_key(*each) for each in (("a", "1", "s-1"), ("b", "1", "s-1"), ("a", "2", "s-1"), ("a", "1", "s-2"))}
    assert len(keys) == 4
