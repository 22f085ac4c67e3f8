"""Untrusted text stays inside its fence."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.policies.chat.prompts.quoting import cited_chunks, fenced, inline, mark_of, plain
from tests.policies.chat.conversing import Table, written
from tests.policies.chat.prompts.test_composition import hit


def closing_lines(text: str) -> list[int]:
    """Lines of a fenced text that Markdown takes for the end of the block, given its first line."""
    opening = re.match(r"`+", text)
    assert opening
    lines = text.split("\n")
    return [
        number for number, line in enumerate(lines) if number and re.fullmatch(rf" {{0,3}}`{{{len(opening[0])},}}\s*", line)
    ]


@given(st.text(alphabet=st.sampled_from("`~a \n\r\t\u2028\x0b\x0c\x85"), max_size=200))
def test_nothing_closes_its_own_fence(text: str) -> None:
    block = fenced(text)
    assert closing_lines(block) == [block.count("\n")]


def test_a_fake_end_of_a_long_fence() -> None:
    assert fenced("a\n``````\nb").startswith("```````text\n")


def test_the_text_itself_is_kept() -> None:
    code = "if (a < b && c | d) { x[i] = y<int>(z); }\n\tdone();"
    assert fenced(code, "cuda") == f"```cuda\n{code}\n```"


def test_role_marks_are_broken() -> None:
    marks = ("<|im_start|>", "<|eot_id|>", "<｜User｜>", "</s>", "[INST]", "[/INST]", "<<SYS>>", "<start_of_turn>", "<think>")
    for mark in marks:
        assert mark not in plain(f"x {mark} y")
        assert mark.replace("<", "").replace("[", "") in plain(mark).replace(" ", "").replace("<", "").replace("[", "")


def test_control_and_direction_characters_go() -> None:
    assert not re.search(r"[\x00\x1b\u202e\ud800]", plain("a\x00b\x1b[31mc\u202ed\ud800"))


def test_inline_is_one_line_without_ticks() -> None:
    assert inline("a\n```\nb\x1b") == "a ''' b\N{REPLACEMENT CHARACTER}"
    assert len(inline("x" * 1000, 50)) == 50
    assert inline("a word is not cut", 12) == "a word is…"
    assert inline("a word is not cut", 10) == "a word is…"


# The chunks that a reply says it used, by their marks.
FIRST, SECOND, THIRD = "00aa11", "00ab22", "ffff33"
SHOWN = (FIRST, SECOND, THIRD)


@pytest.mark.parametrize(
    ("reply", "cited"),
    [
        ("## Analysis\nAs [K00ab] says, pushes are cheap.", (SECOND,)),
        ("[Kffff, K00aa] and again [K00aa].", (FIRST, THIRD)),
        ("[K00ac], [K0], K00aa and [K]: none of these was shown.", ()),
        ("Slow.\n```cuda\nx[K00aa] = 0;\n```\n[K00ab]", ()),
        ("", ()),
    ],
)
def test_marks_in_the_prose_are_read(reply: str, cited: tuple[str, ...]) -> None:
    assert cited_chunks(reply, SHOWN) == cited


def test_an_exchange_records_what_was_shown_and_what_was_used() -> None:
    hits = tuple(hit(f"chunk {number} " * 20, number) for number in range(3))
    marks = [mark_of(each.chunk.id) for each in hits]

    def answer(prompt: object, _: object) -> str:
        assert f"{marks[2]} from 4.2.0" in str(prompt)
        return written(1).replace("Slow.", f"Slow, as {marks[2]} and {marks[0]} say.")

    table = Table(answer, samples=1)
    table.propose(1, hits=hits)
    [exchange] = table.log.recorded()
    assert exchange.shown == tuple(each.chunk.id for each in hits)
    assert exchange.cited == (hits[0].chunk.id, hits[2].chunk.id)
