"""The limits in a server's error are read by their role, whatever the words; with them a request soon fits, or is too long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.policies.chat.server.reply_room import PromptTooLong, ReplyRoom
from cudal2_agent.policies.chat.server.size_errors import TooLarge, read_size
from cudal2_agent.policies.chat.tokens import CHARS_PER_TOKEN
from tests.policies.chat.server.size_messages import ALONE, NUMBERLESS, OTHER, REPLY, TOGETHER

contexts = st.integers(1024, 1_000_000)
replies = st.integers(256, 128_000)


def say(template: str, c: int, p: int, m: int) -> str:
    return template.format(c=c, p=p, m=m, t=p + m, over=p - c, c1=c + 1)


@pytest.mark.parametrize("name", TOGETHER)
@given(c=contexts, part=st.floats(0.05, 0.999), m=replies)
def test_prompt_and_reply_together(name: str, c: int, part: float, m: int) -> None:
    p = max(17, round(c * part))
    m = max(m, c - p + 1)  # it does not fit
    found = read_size(say(TOGETHER[name], c, p, m), m, round(p * 1.2))
    assert found is not None
    assert (found.context, found.prompt, found.at_least) == (c, p, name == "groq-413")  # that does not say what it adds


@pytest.mark.parametrize("name", ALONE)
@given(c=contexts, over=st.integers(0, 500_000), m=replies)
def test_a_prompt_that_is_too_long_alone(name: str, c: int, over: int, m: int) -> None:
    p = c + over
    found = read_size(say(ALONE[name], c, p, m), m, round(p * 0.9))
    assert found is not None
    assert found.context == c
    assert found.prompt == p or p == m or (found.prompt == p - m and found.at_least)  # what is `requested` may be both together


@pytest.mark.parametrize("name", REPLY)
@given(c=st.integers(64, 64_000), over=st.integers(1, 100_000))
def test_the_limit_of_a_reply_alone(name: str, c: int, over: int) -> None:
    found = read_size(say(REPLY[name], c, 0, c + over), c + over, 5000)
    assert found is not None
    assert (found.reply, found.context) == (c, None)


def test_a_prompt_of_parts_is_their_sum() -> None:
    for message in (
        "This model's maximum context length is 8192 tokens. However, you requested 8213 tokens (6683 in the messages, 730 in "
        "the functions, and 800 in the completion). Please reduce the length of the messages, functions, or completion.",
        "This endpoint's maximum context length is 8192 tokens. However, you requested about 8213 tokens (6683 of text input, "
        "730 of tool input, 800 in the output).",
    ):
        assert read_size(message, 800, 7000) == TooLarge(context=8192, prompt=7413)


def test_at_least_is_a_lower_bound() -> None:
    message = (
        "This model's maximum context length is 16384 tokens. However, you requested {m} output tokens and your "
        "prompt contains at least {p} input tokens, for a total of at least 16385 tokens. Please reduce the length."
    )
    assert read_size(message.format(m=5000, p=11385), 5000, 8000) == TooLarge(16384, None, 11385, at_least=True)
    found = read_size(message.format(m=16384, p=1), 16384, 8000)
    assert found is not None
    assert found in (TooLarge(16384, prompt=1, at_least=True), TooLarge(16384))


def test_by_how_much_a_prompt_is_too_long() -> None:
    found = read_size("prompt too long; exceeded max context length by 4096 tokens", 16384, 9000)
    assert found == TooLarge(over=4096)


@pytest.mark.parametrize("message", NUMBERLESS)
def test_a_message_without_a_number_is_still_of_size(message: str) -> None:
    found = read_size(message, 16384, 9000)
    assert found is not None
    assert not found.names_limit


@pytest.mark.parametrize("message", OTHER)
def test_what_is_no_error_of_size(message: str) -> None:
    found = read_size(message, 16384, 9000)
    assert found is None or not found.names_limit


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["context", "max_tokens", "16384", "9591", ">", "+", "- (", "[1,", "at least", "limit"])).map(
        " ".join
    )
)
def test_no_text_breaks_the_reader(text: str) -> None:
    for sent in (None, 16384):
        read_size(text, sent, 9000)


@given(
    context=contexts,
    chars=st.integers(500, 200_000),
    density=st.floats(0.1, 0.6),
    wanted=replies,
    words=st.sampled_from([*TOGETHER.values(), *NUMBERLESS[:3], ""]),
)
def test_a_few_refusals_suffice(context: int, chars: int, density: float, wanted: int, words: str) -> None:
    """A server of any context and tokenizer: the limit that it takes is found, unless the prompt leaves no useful room."""
    prompt, room = round(chars * density), ReplyRoom()
    least = min(wanted, max(512, context // 4))
    bound = words == ""
    for _ in range(12):
        sent = room.of(chars, wanted)
        assert 1 <= sent <= wanted
        if prompt + sent <= context:
            assert bound or "{" not in words or sent == min(wanted, context - prompt)  # all of the room, where it is known
            return
        said = f"maximum context length is {context} tokens, prompt contains at least {max(context - sent + 1, 1)} input tokens"
        found = read_size(said if bound else say(words, context, prompt, sent), sent, round(chars / CHARS_PER_TOKEN))
        assert found is not None
        too_long = room.learn(found, sent, chars, wanted)
        if too_long is not None:
            assert isinstance(too_long, PromptTooLong)
            assert 0 <= too_long.tokens < chars / CHARS_PER_TOKEN
            assert context - prompt < (least if "{" in words else 2 * max(least, 1024))
            return
    raise AssertionError("the server refuses for ever")


@pytest.mark.parametrize("name", [*TOGETHER, *ALONE])
@given(c=contexts, said=st.integers(16, 2_000_000), m=replies, chars=st.integers(100, 500_000))
def test_a_server_whose_numbers_are_wrong_is_given_up_soon(name: str, c: int, said: int, m: int, chars: int) -> None:
    """It refuses whatever is sent, and counts one token more each time."""
    room = ReplyRoom()
    for turn in range(40):
        sent = room.of(chars, m)
        found = read_size(say((TOGETHER | ALONE)[name], c, said + turn, sent), sent, chars // 3)
        if found is None or room.learn(found, sent, chars, m) is not None:
            return
    raise AssertionError("the same prompt is sent for ever")


@pytest.mark.parametrize("name", ALONE)
@given(c=contexts, over=st.integers(0, 500_000), m=replies)
def test_a_prompt_that_never_fits_is_told_soon(name: str, c: int, over: int, m: int) -> None:
    p, room = c + over, ReplyRoom()
    chars = round(p * CHARS_PER_TOKEN)
    for _ in range(12):
        sent = room.of(chars, m)
        found = read_size(say(ALONE[name], c, p, sent), sent, p)
        assert found is not None
        too_long = room.learn(found, sent, chars, m)
        if too_long is not None:
            assert (too_long.context, too_long.tokens < p) == (c, True)
            return
    raise AssertionError("the same prompt is sent for ever")


def test_a_longer_prompt_later_gets_less_room_and_a_shorter_one_more() -> None:
    room = ReplyRoom()
    assert room.of(20_000, 16_384) == 16_384
    assert room.learn(TooLarge(context=16_384, prompt=5000), 16_384, 20_000, 16_384) is None
    assert [room.of(chars, 16_384) for chars in (4_000, 20_000, 40_000)] == [15_384, 11_384, 6_384]


def test_the_limit_of_replies_holds_for_every_prompt() -> None:
    room = ReplyRoom()
    assert room.learn(TooLarge(reply=100), 16_384, 20_000, 16_384) is None
    assert [room.of(chars, 16_384) for chars in (4_000, 400_000)] == [100, 100]
