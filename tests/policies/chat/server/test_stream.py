"""A server's data is read as it arrives, in any form, in any pieces, of any length."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.policies.chat.server.stream import (
    PartialReply,
    ProtocolViolation,
    ServerError,
    TooLong,
    read_stream,
    split_thoughts,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def chunk(text: str | None = None, **delta: Any) -> bytes:
    content = {"content": text} if text is not None else {}
    return event({"choices": [{"delta": {**content, **delta}, "finish_reason": None}]})


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


END = event({"choices": [{"delta": {}, "finish_reason": "stop"}]}) + b"data: [DONE]\n\n"


async def _pieces(contents: Sequence[bytes]) -> AsyncIterator[bytes]:
    for content in contents:
        yield content


def read(*contents: bytes, reply_tokens: int = 10_000) -> PartialReply:
    draft = PartialReply()
    asyncio.run(read_stream_into(draft, contents, reply_tokens))
    return draft


async def read_stream_into(draft: PartialReply, contents: Sequence[bytes], reply_tokens: int = 10_000) -> int:
    return await read_stream(_pieces(contents), draft, reply_tokens, lambda: None)


@given(st.data())
def test_a_stream_reads_the_same_however_it_is_cut_into_pieces(data: st.DataObject) -> None:
    newline = data.draw(st.sampled_from([b"\n", b"\r", b"\r\n"]))
    whole = (b": keep-alive\n\n" + chunk("Größe ") + chunk("🚀 go") + chunk("\n\r\n") + END).replace(b"\n", newline)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    draft = read(*pieces)
    assert draft.text == "Größe 🚀 go\n\r\n"
    assert draft.ending() == ("complete", "")


@given(json_values)
def test_no_json_value_in_a_chunk_breaks_the_reader(value: Any) -> None:
    shapes = [value, {"choices": value}, {"choices": [value]}, {"choices": [{"delta": value}]}, {"usage": value}]
    shapes += [{"choices": [{"delta": {"content": value}, "finish_reason": value}]}, {"error": value}]
    for shape in shapes:
        try:
            draft = read(event(shape), END)
        except (ProtocolViolation, ServerError):
            continue
        assert isinstance(draft.text, str)
        draft.text.encode()


@pytest.mark.parametrize("content", [b"data: {oops\n\n", b"data: \xff\xfe\n\n", b"data: " + b"[" * 200_000 + b"\n\n"])
def test_what_is_no_json_is_malformed(content: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read(chunk("a"), content)


def test_a_lone_or_split_surrogate_does_not_spoil_a_reply() -> None:
    draft = read(
        b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\ude80 \\ud800!"}}]}\n\n',
    )
    assert draft.text == "🚀 \ufffd!"


def test_an_event_that_the_end_cuts_is_none_and_the_reply_is_cut() -> None:
    draft = read(chunk("kept"), b'data: {"choices": [{"del')
    assert draft.text == "kept"
    assert draft.ending()[0] == "cut"


@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"data: [DONE]\n", b"data:[DONE]\r\n", END])
def test_a_stream_that_says_that_it_ends_is_complete(end: bytes) -> None:
    assert read(chunk("a"), end).ending() == ("complete", "")


def test_nothing_after_the_end_is_read() -> None:
    assert read(chunk("a"), b"data: [DONE]\n\n", chunk("b")).text == "a"


@pytest.mark.parametrize(
    ("finish", "status"), [("length", "truncated"), ("content_filter", "refused"), ("stop", "complete"), ("eos", "complete")]
)
def test_the_servers_word_for_the_end(finish: str, status: str) -> None:
    draft = read(chunk("a"), event({"choices": [{"delta": {}, "finish_reason": finish}]}))
    assert draft.ending()[0] == status
    assert bool(draft.ending()[1]) == (status != "complete")


def test_reasoning_is_kept_apart() -> None:
    for name in ("reasoning_content", "reasoning"):
        draft = read(chunk(**{name: "let me "}), chunk(**{name: "see"}), chunk("answer"), END)
        assert (draft.reasoning, draft.text) == ("let me see", "answer")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>a</think>b", ("a", "b")),
        ("\n<think>\na\n</think>\n\nb", ("a", "b")),
        ("a</think>b", ("a", "b")),
        ("<think>never closed", ("never closed", "")),
        ("<think></think>b", ("", "b")),
        ("b", ("", "b")),
        ("b <think>a</think>", ("", "b <think>a</think>")),
        (" indented\n", ("", " indented\n")),
    ],
)
def test_thoughts_at_a_replys_start_are_split_off(text: str, parts: tuple[str, str]) -> None:
    assert split_thoughts(text) == parts


def test_a_long_reply_is_stopped_by_its_limit_and_what_came_is_kept() -> None:
    draft = PartialReply()
    with pytest.raises(TooLong, match="its limit of 100 tokens"):
        asyncio.run(read_stream_into(draft, [chunk("word " * 10)] * 1000, 100))
    assert 640 <= len(draft.text) <= 700


def test_an_event_without_an_end_is_stopped() -> None:
    piece = b"x" * 1_000_000
    with pytest.raises(TooLong, match="an event passed"):
        read(b'data: {"choices": "', *[piece] * 20)
    with pytest.raises(TooLong, match="an event passed"):
        read(*[b"data: " + piece + b"\n"] * 20)
    with pytest.raises(TooLong, match="bytes"):
        read(b'{"choices":', piece * 20)


def test_usage_is_the_servers_last_word_or_an_estimate() -> None:
    counts = {"prompt_tokens": 3, "completion_tokens": 4}
    assert read(event({"choices": [], "usage": counts}), END).counts == (3, 4)
    for wrong in ({"prompt_tokens": -1, "completion_tokens": 1}, {"prompt_tokens": "3"}, [], "x", {"prompt_tokens": 1.5}):
        assert read(event({"usage": wrong}), END).counts is None


def test_a_whole_body_is_read_and_one_without_choices_is_malformed() -> None:
    draft = read(
        b'{"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"text": "b"}]}, "finish_reason": "length"}]}'
    )
    assert draft.text == "ab"
    assert draft.ending()[0] == "truncated"
    for content in (b"{}", b'{"choices": []}', b"[]", b'{"choices": oops'):
        with pytest.raises(ProtocolViolation):
            read(content)


def test_an_error_inside_a_stream_is_the_servers() -> None:
    with pytest.raises(ServerError, match="out of memory"):
        read(chunk("a"), event({"error": {"message": "out of memory", "code": 500}}))
