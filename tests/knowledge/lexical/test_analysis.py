"""A piece is found by its names, its card and its text, with a limit on repeated words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.knowledge import Piece, SplitFile
from cudal2_agent.knowledge.lexical.analysis import FIELDS, SIGNATURE, analyse, analysed, embedded_text

PIECE = Piece(
    start_line=3, end_line=4, symbol="cute::stageCount", kind="function", definition=(3, 4), card="counts the ring's stages"
)


def test_each_field_holds_its_own_words() -> None:
    terms = analyse("cute/arch/ring_sm90.hpp", PIECE, "int n = producer_acquire();")
    assert terms["names"].split() == ["cute::stagecount", "cute", "stage", "count", "ring_sm90", "ring", "sm90"]
    assert {"count", "ring", "stage", "arch"} <= set(terms["card"].split())
    assert terms["body"].split() == ["int", "n", "producer_acquire", "producer", "acquire"]
    assert set(terms) == {*FIELDS, SIGNATURE}


def test_repeats_say_nothing_past_a_few() -> None:
    body = analyse("a.hpp", PIECE, "reg " * 500 + "last")["body"].split()
    assert 1 < body.count("reg") < 10
    assert body[-1] == "last"


def test_a_text_of_thousands_of_lines_is_read_in_part() -> None:
    body = analyse("a.hpp", PIECE, "\n".join(f"word{n}" for n in range(100_000)))["body"].split()
    assert "word99" in body
    assert len(body) < 1000


def test_each_piece_is_analysed_with_its_own_lines() -> None:
    other = PIECE.model_copy(update={"start_line": 1, "end_line": 2, "symbol": "first"})
    split = SplitFile(path="a.hpp", sha256="0", splitter="s", text="alpha\nbeta\ngamma\ndelta", pieces=(other, PIECE))
    assert [terms["body"] for terms in analysed(split).terms] == ["alpha beta", "gamma delta"]
    assert analysed(split).model_copy(update={"terms": ()}) == split


def test_generated_siblings_have_no_vector() -> None:
    assert embedded_text(PIECE) == PIECE.card
    assert embedded_text(PIECE.model_copy(update={"family": "mma"})) == ""


def test_the_target_does_not_tell_signatures_apart() -> None:
    one, other = (analyse("a.hpp", PIECE, f"void go() {{ sm{n}_wait(); }}")[SIGNATURE] for n in (90, 100))
    assert one == other
    assert analyse("a.hpp", PIECE, "void stop() { tell(); }")[SIGNATURE] != one


@given(st.text(max_size=300))
@pytest.mark.parametrize("path", ["a.hpp", "x", "weird/ü.md"])
def test_any_text_can_be_analysed(path: str, text: str) -> None:
    terms = analyse(path, PIECE, text)
    assert all(word.strip() == word for field in FIELDS for word in terms[field].split(" ") if word)
