"""The chunks that a reply says it used, by their marks."""

import pytest

from cudal2_agent.policies.chat.prompts.citing import cited_chunks, mark_of
from tests.policies.chat.conversing import Table, written
from tests.policies.chat.prompts.test_composition import hit

SHOWN = ("first", "second", "third")


@pytest.mark.parametrize(
    ("reply", "cited"),
    [
        ("## Analysis\nAs [K2] says, pushes are cheap.", ("second",)),
        ("[K3, K1] and again [K1].", ("first", "third")),
        ("[K4], [K0], K1 and [K]: none of these was shown.", ()),
        ("Slow.\n```cuda\nx[K1] = 0;\n```\n[K2]", ()),
        ("", ()),
    ],
)
def test_marks_in_the_prose_are_read(reply: str, cited: tuple[str, ...]) -> None:
    assert cited_chunks(reply, SHOWN) == cited


def test_an_exchange_records_what_was_shown_and_what_was_used() -> None:
    hits = tuple(hit(f"chunk {number} " * 20, number) for number in range(3))

    def answer(prompt: object, _: object) -> str:
        assert f"{mark_of(3)} from 4.2.0" in str(prompt)
        return written(1).replace("Slow.", "Slow, as [K3] and [K1] say.")

    table = Table(answer, samples=1)
    table.propose(1, hits=hits)
    [exchange] = table.log.recorded()
    assert exchange.shown == tuple(each.chunk.id for each in hits)
    assert exchange.cited == (hits[0].chunk.id, hits[2].chunk.id)
