"""The words and signatures of a piece, and what is analysed of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.knowledge import Piece, SplitFile
from cudal2_agent.knowledge.lexical.analysis import FIELDS, SIGNATURE, STOP_WORDS, analyse, analysed, embedded_text, words_of
from cudal2_agent.knowledge.lexical.signatures import HASHES, likeness, packed, same_name, signature, unpacked


# ---- identifiers are found whole, in parts, and in either spelling ---------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cp.async.bulk", ["cp.async.bulk", "cp.async", "cp", "async", "bulk"]),
        ("stageCount", ["stagecount", "stage", "count"]),
        ("cuTensorMapEncodeTiled", ["cutensormapencodetiled", "cu", "tensor", "map", "encode", "tiled"]),
        ("HGEMMKernel", ["hgemmkernel", "hgemm", "kernel"]),
        ("wait_group", ["wait_group", "wait", "group"]),
        ("cute::Layout", ["cute::layout", "cute", "layout"]),
        ("params.tile_count", ["params.tile_count", "params", "tile_count", "param", "tile", "count"]),
        ("std::to_string", ["std::to_string", "to_string", "std", "string"]),
        ("ring.stageCount", ["ring.stagecount", "stagecount", "ring", "stage", "count"]),
        ("__syncthreads()", ["syncthread"]),
        ("sm_90a", ["sm_90a", "sm", "90a"]),
        ("m16n8k16 f16 B200 TMA", ["m16n8k16", "f16", "b200", "tma"]),
        ("SMs, CTAs", ["sm", "cta"]),
        ("fp16 bfloat16 float32", ["f16", "bf16", "f32"]),
        ("serialized specialization sizes", ["serialised", "specialisation", "sise"]),
        ("128-byte swizzles", ["128", "byte", "swizzle"]),
        ("entries bus loss axes", ["entry", "bus", "loss", "axe"]),
        ("what is the of it", []),
        ("... :: __ -- ", []),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@given(st.text(max_size=200))
def test_any_text_gives_words_that_are_not_empty(text: str) -> None:
    assert all(word and word not in STOP_WORDS for word in words_of(text))


@given(st.from_regex(r"[a-z]{2,8}(\.[a-z]{2,8}){1,4}", fullmatch=True))
def test_a_dotted_name_is_found_by_each_of_its_beginnings(name: str) -> None:
    parts = name.split(".")
    found = words_of(f"see {name} there")
    for end in range(2, len(parts) + 1):
        assert ".".join(parts[:end]) in found or ".".join(parts[:end]) in STOP_WORDS


# ---- a piece for another target is recognised as similar; other code is not ------------------------------------------------
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


# ---- a piece is found by its names, its card and its text, with a limit on repeated words ----------------------------------
PIECE = Piece(
    start_line=3, end_line=4, symbol="cute::stageCount", kind="function", definition=(3, 4), card="counts the ring's stages"
)


def test_each_field_holds_its_own_words() -> None:
    terms = analyse("cute/arch/ring_sm90.hpp", PIECE, "int n = producer_acquire();")
    assert terms["names"].split() == [
        "cute::stagecount",
        "stagecount",
        "cute",
        "stage",
        "count",
        "ring_sm90",
        "ring",
        "sm90",
    ]
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
    assert embedded_text(PIECE, "int stageCount;") == PIECE.card
    assert embedded_text(PIECE.model_copy(update={"family": "mma"}), "") == ""
    section = PIECE.model_copy(update={"kind": "section", "symbol": "Rings Slots"})
    assert embedded_text(section, "A slot is free.") == "Rings Slots\nA slot is free."


def test_the_target_does_not_tell_signatures_apart() -> None:
    one, other = (analyse("a.hpp", PIECE, f"void go() {{ sm{n}_wait(); }}")[SIGNATURE] for n in (90, 100))
    assert one == other
    assert analyse("a.hpp", PIECE, "void stop() { tell(); }")[SIGNATURE] != one


@given(st.text(max_size=300))
@pytest.mark.parametrize("path", ["a.hpp", "x", "weird/ü.md"])
def test_any_text_can_be_analysed(path: str, text: str) -> None:
    terms = analyse(path, PIECE, text)
    assert all(word.strip() == word for field in FIELDS for word in terms[field].split(" ") if word)
