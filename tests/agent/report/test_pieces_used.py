"""A piece was used where the reply has an identifier or a figure that only the piece could give it."""

import pytest

from cudal2_agent.agent.report.pieces_used import count_used, used_pieces
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.knowledge import Chunk, Hit
from cudal2_agent.contract.records.trajectory import Observation
from tests.doubles import CHIP, TASK

RING = "A slot is freed by consumer_release. wgmma reads 1,024 bytes at 7.25 cycles."
SWIZZLE = "Use Swizzle<3,4,3> and stmatrix.sync, 128 bytes. Warps take turns."


def hit(text: str, number: int) -> Hit:
    chunk = Chunk(release="notes", path=f"{number}.md", start_line=1, end_line=2, symbol="s", kind="section", text=text)
    return Hit(chunk=chunk, score=1.0)


HITS = (hit(RING, 0), hit(SWIZZLE, 1))


def exchange(reply: str, beside: str = "Tiles of 128 bytes.", shown: tuple[Hit, ...] = HITS) -> Exchange:
    pieces = "\n".join(each.chunk.text for each in shown)
    return Exchange.model_validate(
        {
            "round": 1, "sample": 0, "turn": 0, "observation_id": "o", "model": "m", "parameters": {}, "status": "complete",
            "prompt": {"messages": [{"role": "user", "content": f"{beside}\n{pieces}"}]}, "reply": reply,
            "shown": [each.chunk.id for each in shown], "cost": 0, "seconds": 1, "created_at": "2026-11-28T00:00:00Z",
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "counted": "server"},
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "used"),
    [
        ("pipe.consumer_release(stage);", (0,)),
        ("consumer_release(stage);", (0,)),
        ("// a row has 1024 bytes", (0,)),
        ("7.25 cycles", (0,)),
        ("stmatrix.sync and consumer_release", (0, 1)),
        ("128 bytes", ()),  # the task says so too
        ("Warps take turns.", ()),  # plain words tell nothing
        ("3 and 4", ()),
        ("", ()),
    ],
)
def test_what_only_the_piece_has_tells(reply: str, used: tuple[int, ...]) -> None:
    assert used_pieces(exchange(reply), HITS) == tuple(HITS[number].chunk.id for number in used)


def test_what_stands_elsewhere_in_the_prompt_tells_nothing() -> None:
    assert used_pieces(exchange("consumer_release();", "The header declares consumer_release."), HITS) == ()
    assert used_pieces(exchange("1024", "K is 1024."), HITS) == ()


def test_a_piece_that_was_not_shown_is_not_used() -> None:
    assert used_pieces(exchange("consumer_release", shown=HITS[1:]), HITS) == ()


def test_the_source_that_a_call_submits_is_a_part_of_the_reply() -> None:
    call = {"id": "1", "name": "submit_kernel", "arguments": '{"source": "consumer_release();"}'}
    asked = Exchange.model_validate({**exchange("").model_dump(), "calls": [call]})
    assert used_pieces(asked, HITS) == (HITS[0].chunk.id,)
    assert count_used([asked], {"o": Observation(task=TASK, chip=CHIP, round=1, seed=0, hits=HITS)}) == 1


def test_pieces_are_counted_over_replies() -> None:
    observation = Observation(task=TASK, chip=CHIP, round=1, seed=0, hits=HITS)
    asked = [exchange("consumer_release"), exchange("stmatrix.sync 7.25"), exchange(""), exchange("x", shown=())]
    assert count_used(asked, {"o": observation}) == 3
