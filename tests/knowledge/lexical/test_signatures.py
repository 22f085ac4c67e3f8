"""A piece for another target is recognised as similar; other code is not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.knowledge.lexical.signatures import HASHES, likeness, packed, same_name, signature, unpacked

WORDS = st.lists(st.text(min_size=1, max_size=8), max_size=20)


@pytest.mark.parametrize(("one", "other"), [("sm90_wait", "sm100_wait"), ("arch::sm90", "arch::sm120"), ("sm_90a", "sm_100a")])
def test_the_number_of_the_target_does_not_count(one: str, other: str) -> None:
    common = ["ring", "stage"]
    assert (signature([one, *common]) == signature([other, *common])).all()


def test_numbers_of_other_things_count() -> None:
    assert (signature(["prism90", "ring"]) != signature(["prism100", "ring"])).any()
    assert (signature(["m64n128"]) != signature(["m64n256"])).any()


@given(WORDS)
def test_order_and_repeats_do_not_count(words: list[str]) -> None:
    assert (signature(words) == signature([*reversed(words), *words])).all()


@given(st.lists(WORDS, max_size=5))
def test_signatures_come_back_from_text(texts: list[list[str]]) -> None:
    again = unpacked([packed(words) for words in texts])
    assert again.shape == (len(texts), HASHES)
    assert all((row == signature(words)).all() for row, words in zip(again, texts, strict=True))


def test_likeness_tells_how_much_is_shared() -> None:
    body = [f"word{n}" for n in range(60)]
    near, far = [*body[:57], "a", "b", "c"], [f"other{n}" for n in range(60)]
    alike = likeness(np.stack([signature(words) for words in (body, near, far)]), signature(body))
    assert alike[0] == 1
    assert alike[1] >= 0.7
    assert alike[2] <= 0.2


@pytest.mark.parametrize(
    ("symbols", "same"),
    [
        (["a::Sm90Compute", "b::Sm100Compute"], True),
        (["cute::SM90_U32x1", "cute::SM100_U32x1"], True),
        (["ns::go", "other::go"], True),
        (["Sm90Compute", "Sm90Load"], False),
        (["go2", "go3"], False),
    ],
)
def test_names_that_differ_in_their_target_alone(symbols: list[str], same: bool) -> None:
    assert same_name(symbols) is same
