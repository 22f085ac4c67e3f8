"""The card of a piece and its architectures."""

import pytest

from cudal2_agent.contract.records.knowledge import Piece
from cudal2_agent.indexer.split.assembly import archs_in
from cudal2_agent.indexer.split.card import WORDS, split_words
from cudal2_agent.indexer.split.split import split_file


def only(text: str, path: str = "a.hpp") -> Piece:
    (piece,) = split_file(path, text.encode()).pieces
    return piece


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized", "gemm collective sm90 mma tma gmma ss warp specialized"),
        ("MainloopSm90TmaGmmaWarpSpecialized", "mainloop sm90 tma gmma warp specialized"),
        ("SM90_64x128x16_F32F16F16_SS", "sm90 64x128x16 f32 f16 f16 ss"),
        ("SM100_MMA_F16BF16_2x1SM_SS", "sm100 mma f16 bf16 2x1 sm ss"),
        ("float_e4m3_t", "float e4m3 t"),
        ("kStageCount", "k stage count"),
        ("TMALoad", "tma load"),
        ("producer_acquire", "producer acquire"),
        ("", ""),
        ("___", ""),
    ],
)
def test_identifiers_as_words(name: str, words: str) -> None:
    assert split_words(name) == words


def test_a_card_of_all_parts() -> None:
    piece = only(
        "/// Waits for a stage. Then more.\nvoid Ring::wait_stage() {\n"
        '  static_assert(N > 0, "N must be positive");\n'
        '  asm volatile("mbarrier.try_wait.parity.shared::cta.b64 p, [%0];");\n}\n',
        "cutlass/pipeline/ring.hpp",
    )
    assert piece.card.startswith("cutlass pipeline ring function wait stage ring Waits for a stage.")
    assert "N must be positive" in piece.card
    assert "mbarrier.try_wait.parity.shared::cta.b64" in piece.card


def test_a_card_is_never_long() -> None:
    piece = only("/// " + "word " * 500 + "\nvoid f() {\n" + 'static_assert(x, "many words in here");\n' * 50 + "}\n")
    assert len(piece.card.split()) <= WORDS


def test_a_thin_piece_names_its_neighbours() -> None:
    text = "int before() {\n" + "  x;\n" * 10 + "}\nint thin();\nint after_it() {\n" + "  x;\n" * 10 + "}\n"
    thin = next(p for p in split_file("a.hpp", text.encode()).pieces if p.symbol == "thin")
    assert "before" in thin.card
    assert "after it" in thin.card


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("sm90_mma.hpp", ("sm_90",)),
        ("gemm/Sm100Foo", ("sm_100",)),
        ("SM90_64x8x16", ("sm_90",)),
        ("sm_90a and sm_100f", ("sm_90", "sm_100")),
        ("SM120, sm_80, sm80", ("sm_80", "sm_120")),
        ("MainloopSm90Tma", ("sm_90",)),
        ("sm9 sm900 sm_9000 plasm90 sms80", ()),
        ("", ()),
    ],
)
def test_architectures_of_a_text(text: str, tags: tuple[str, ...]) -> None:
    assert archs_in(text) == tags


def test_the_path_says_more_than_the_text() -> None:
    assert only("struct SM80_Copy { int x; };\n", "arch/copy_sm90.hpp").archs == ("sm_90",)


def test_the_symbol_says_more_than_the_text() -> None:
    assert only("struct SM80_Copy {\n  SM90_Load x;\n};\n").archs == ("sm_80",)


def test_a_text_that_names_one() -> None:
    assert only("void f() {\n  arch::Sm90 x;\n}\n").archs == ("sm_90",)
    assert only("void f() {\n  arch::Sm90 x;\n  arch::Sm80 y;\n}\n").archs == ()
