"""A part of a request that a server refuses is left out, or made smaller, from then on; odd forms of replies are read."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.exchange import Message, Prompt, ToolCall
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.server.connection import open_server
from cudal2_agent.policies.chat.server.key import is_local
from cudal2_agent.policies.chat.server.request_parameters import QUIRKS, Refusal, RequestParameters
from tests.doubles.chat_server import Answer, Behaviour, NoStream, Request, Status, StreamError, Text
from tests.policies.chat.exchanges import prompt
from tests.policies.chat.server.size_messages import ALONE, NUMBERLESS, REPLY, TOGETHER
from tests.policies.chat.server.test_openai_server import Open, session
from tests.policies.chat.server.test_size_errors import say

__all__ = ["session"]

ASKED, PROMPT_TOKENS = 16_384, 9591


def full(template: str, context: int, status: int = 400, *, in_stream: bool = False) -> Callable[[Request], Behaviour]:
    """A server of this context for which every prompt has `PROMPT_TOKENS`."""

    def answer(request: Request) -> Behaviour:
        asked = request.body.get("max_tokens") or request.body["max_completion_tokens"]
        if PROMPT_TOKENS + asked <= context:
            return Text("hi")
        message = say(template, context, PROMPT_TOKENS, asked)
        return StreamError(message) if in_stream else Status(status, {"error": {"message": message, "param": None}})

    return answer


@pytest.mark.parametrize("name", TOGETHER)
def test_the_limit_of_the_next_request_is_computed_from_the_message(session: Open, name: str) -> None:
    chat = session(full(TOGETHER[name], 16_384))
    assert chat.ask(tokens=ASKED).text == "hi"
    sent = [request.body["max_tokens"] for request in chat.scripted.requests]
    exact = name != "groq-413"
    assert sent[0] == ASKED
    assert sent[-1] == 16_384 - PROMPT_TOKENS if exact else sent[-1] <= 16_384 - PROMPT_TOKENS
    assert len(sent) == 2 if exact else len(sent) <= 4
    assert chat.ask(tokens=ASKED).text == "hi"
    assert chat.asked == len(sent) + 1


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_proxies_send_the_message_with_other_statuses(session: Open, status: int) -> None:
    chat = session(full(TOGETHER["vllm-0.6"], 16_384, status))
    assert (chat.ask(tokens=ASKED).text, chat.asked) == ("hi", 2)


def test_the_message_inside_a_stream_is_taken_too(session: Open) -> None:
    chat = session(full(TOGETHER["sglang"], 16_384, in_stream=True))
    assert (chat.ask(tokens=ASKED).text, chat.asked) == ("hi", 2)


def test_the_message_of_a_server_behind_a_gateway(session: Open) -> None:
    inner = json.dumps({"error": {"message": say(TOGETHER["vllm-0.9"], 16_384, PROMPT_TOKENS, ASKED)}})
    chat = session([Status(400, {"error": {"message": "Provider returned error", "metadata": {"raw": inner}}}), Text("hi")])
    assert chat.ask(tokens=ASKED).text == "hi"
    assert chat.scripted.requests[1].body["max_tokens"] == 16_384 - PROMPT_TOKENS


def test_a_message_that_names_a_lower_bound_only(session: Open) -> None:
    def answer(request: Request) -> Behaviour:
        asked = request.body["max_tokens"]
        least = 16_384 - asked + 1
        message = (
            f"This model's maximum context length is 16384 tokens. However, you requested {asked} output tokens "
            f"and your prompt contains at least {least} input tokens, for a total of {asked + least} tokens."
        )
        return (
            Text("hi")
            if asked + PROMPT_TOKENS <= 16_384
            else Status(400, {"error": {"message": message, "param": "input_tokens"}})
        )

    chat = session(answer)
    assert chat.ask(tokens=ASKED).text == "hi"
    assert chat.asked <= 4
    assert chat.scripted.requests[-1].body["max_tokens"] >= (16_384 - PROMPT_TOKENS) / 2


@pytest.mark.parametrize("name", ALONE)
def test_a_prompt_that_is_too_long_is_one_line_and_how_long_one_may_be(session: Open, name: str) -> None:
    chat = session(
        lambda request: Status(400, {"error": {"message": say(ALONE[name], 8192, 9591, request.body["max_tokens"])}})
    )
    reply = chat.ask(tokens=ASKED)
    assert reply.status == "failed"
    assert "leaves no room for a reply in the server's context of 8192 tokens: serve a longer context" in reply.problem
    assert reply.prompt_tokens is not None
    assert chat.asked <= 12


def test_numbers_beside_the_message(session: Open) -> None:
    message = "the request exceeds the available context size. try increasing the context size or enable context shift"
    error = {"code": 400, "message": message, "type": "exceed_context_size_error", "n_prompt_tokens": 14070, "n_ctx": 8192}
    reply = session(lambda _: Status(400, {"error": error})).ask(tokens=ASKED)
    assert "the prompt of 14070 tokens leaves no room for a reply in the server's context of 8192 tokens" in reply.problem


@pytest.mark.parametrize("name", REPLY)
def test_the_limit_of_replies(session: Open, name: str) -> None:
    def answer(request: Request) -> Behaviour:
        asked = request.body["max_tokens"]
        return Text("hi") if asked <= 8192 else Status(400, {"error": {"message": say(REPLY[name], 8192, 0, asked)}})

    chat = session(answer)
    assert chat.ask(tokens=ASKED).text == "hi"
    assert [request.body["max_tokens"] for request in chat.scripted.requests] == [ASKED, 8192]


def test_a_context_that_is_reached_within_a_reply_is_a_truncated_reply(session: Open) -> None:
    message = "Reached context length of 4096 tokens with model (arch: gpt-oss) that does not support context overflow."
    reply = session([StreamError(message, text="half of")]).ask()
    assert (reply.status, reply.text) == ("truncated", "half of")


NO_SYSTEM = {
    "vllm-gemma": "System role not supported",
    "vllm-gemma-3": "Conversation roles must alternate user/assistant/user/assistant/...",
    "mistral": "Only user and assistant roles are supported!",
    "ministral": "Only user, assistant and tool roles are supported, got system.",
    "o1-mini": "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
    "gemini": "Developer instruction is not enabled for models/gemma-3-27b-it",
    "pydantic": "[{'loc': ('body', 'messages', 0, 'role'), 'msg': \"Input should be 'user' or 'assistant'\"}]",
    "other-1": "This model does not support system messages",
    "other-2": "Unexpected role system in messages",
    "other-3": "system prompts are not allowed here",
}


@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize("name", NO_SYSTEM)
def test_without_a_system_role_its_text_moves_into_the_users_message(session: Open, name: str, status: int) -> None:
    def answer(request: Request) -> Behaviour:
        roles = [message["role"] for message in request.body["messages"]]
        return Text("hi") if "system" not in roles else Status(status, {"error": {"message": NO_SYSTEM[name]}})

    chat = session(answer)
    assert [chat.ask().text for _ in range(2)] == ["hi", "hi"]
    assert chat.asked == 3
    assert chat.scripted.requests[-1].body["messages"] == [{"role": "user", "content": "be brief\n\nwrite a kernel"}]


NO_TEMPERATURE = {
    "gpt-5": "Unsupported value: 'temperature' does not support 0.8 with this model. Only the default (1) value is supported.",
    "o3": "Unsupported parameter: 'temperature' is not supported with this model.",
    "kimi": "invalid temperature: only 1 is allowed for this model",
    "claude": "`temperature` is deprecated for this model.",
    "bedrock": "The model returned the following errors: `temperature` may only be set to 1 when thinking is enabled.",
}


@pytest.mark.parametrize("name", NO_TEMPERATURE)
def test_a_reasoning_model_that_refuses_temperature_and_max_tokens_works(session: Open, name: str) -> None:
    def answer(request: Request) -> Behaviour:
        if "temperature" in request.body:
            return Status(400, {"error": {"message": NO_TEMPERATURE[name]}})
        if "max_tokens" in request.body:
            said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
            return Status(400, {"error": {"message": said, "param": "max_tokens", "code": "unsupported_parameter"}})
        return full(TOGETHER["vllm-0.6"], 16_384)(request)

    chat = session(answer)
    assert [chat.ask(tokens=ASKED).text for _ in range(2)] == ["hi", "hi"]
    assert chat.asked == 5
    body = chat.scripted.requests[-1].body
    assert (body.get("temperature"), body["max_completion_tokens"]) == (None, 16_384 - PROMPT_TOKENS)


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.part)
def test_every_part_in_the_table_is_left_out_once_it_is_refused_and_only_that(quirk: Any) -> None:
    parameters = RequestParameters(ChatOptions(model="m"))
    if quirk.part == "max_completion_tokens":
        assert parameters.learn(
            Refusal(400, "max_tokens", "not supported"), parameters.of_request(prompt(), 999), prompt(), 999
        )
    called = prompt()
    if quirk.part == "tool_choice":
        call = ToolCall(id="a", name="predict_time", arguments="{}")
        called = Prompt(messages=(*prompt().messages, Message(role="assistant", content="", calls=(call,))))
    calls = 0 if quirk.part == "tool_choice" else 3
    before = parameters.of_request(called, 999, calls=calls)
    said = f"{'system messages are' if quirk.part == 'system' else quirk.part + ' is'} not supported"
    for status in (401, 403, 429):
        assert parameters.learn(Refusal(status, "", said), before, called, 999) is None
    assert parameters.learn(Refusal(400, "", said), before, called, 999) == quirk.part
    after = parameters.of_request(called, 999, calls=calls)
    gone = {"stream", "stream_options"} if quirk.part == "stream" else {quirk.part} & before.keys()
    added = {"max_completion_tokens"} if quirk.part == "max_tokens" else set()
    assert after.keys() == (before.keys() - gone) | added
    assert (after["messages"] == before["messages"]) == (quirk.part != "system")


def lines(*texts: str, finish: str | None = None) -> str:
    ends: list[str | None] = [*([None] * (len(texts) - 1)), finish]
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": t}, "finish_reason": e}]} for t, e in zip(texts, ends, strict=True)
    ]
    return "\n".join(json.dumps(chunk) for chunk in chunks)


WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a\nb"}, "finish_reason": None}]}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (json.dumps(WHOLE), "text/plain"),
        (json.dumps(WHOLE, indent=2), "text/plain; charset=utf-8"),
        ("\ufeff\r\n" + json.dumps(WHOLE), "application/octet-stream"),
        (json.dumps([WHOLE]), "application/json"),
        (lines("a", "\n", "b"), "application/x-ndjson"),
        (lines("a", "\n", "b", finish="stop") + "\n", "text/plain"),
        (lines("a\nb"), "application/json"),
        ("".join(f"data: {line}\n\n" for line in lines("a", "\nb").splitlines()) + "data: [DONE]\n\n", "application/json"),
    ],
)
def test_a_reply_is_read_in_the_form_that_it_has(session: Open, body: str, kind: str) -> None:
    reply = session([Status(200, body, {"Content-Type": kind})]).ask()
    assert (reply.status, reply.text, reply.usage.counted) == ("complete", "a\nb", "estimate")


def test_json_lines_that_break_off_are_cut(session: Open) -> None:
    broken = Status(200, lines("half", "more"), {"Content-Type": "application/x-ndjson", "Content-Length": "9999"})

    class Closed:
        def act(self, answer: Answer) -> None:
            broken.act(answer)
            answer.close()

    assert session([Closed()]).ask().status == "cut"


@pytest.mark.parametrize(
    "error", [{"object": "error", "message": "boom"}, {"detail": "boom"}, {"type": "error", "error": "boom"}]
)
def test_an_error_in_any_form_inside_a_200_is_asked_again_and_then_named(session: Open, error: dict[str, Any]) -> None:
    chat = session([Status(200, error)] * 2 + [Text("hi")])
    assert chat.ask().text == "hi"
    reply = session(lambda _: Status(200, error), retries=1).ask()
    assert (reply.status, reply.problem) == (
        "failed",
        "the server reported an error within the reply: boom after 2 tries and 0 s of waiting",
    )


@pytest.mark.parametrize(
    ("finish", "status"),
    [
        ("error", "cut"),
        ("abort", "cut"),
        ("insufficient_system_resource", "cut"),
        ("MAX_TOKENS", "truncated"),
        ("model_length", "truncated"),
        ("SAFETY", "refused"),
        ("end_turn", "complete"),
    ],
)
def test_the_words_of_servers_for_the_end(session: Open, finish: str, status: str) -> None:
    assert session([Text("some", finish=finish)]).ask().status == status


def test_without_a_finish_reason_the_end_mark_is_the_end(session: Open) -> None:
    assert session([Text("some", finish=None)]).ask().status == "complete"


class Thinking:
    """Keep-alive comments for some time, and then a reply; or silence within the reply."""

    def __init__(self, seconds: float, *, comments: bool, begun: bool = False) -> None:
        self.seconds, self.comments, self.begun = seconds, comments, begun

    def act(self, answer: Answer) -> None:
        answer.begin_stream()
        if self.begun:
            answer.delta({"content": "so far"})
        for _ in range(round(self.seconds / 0.05)):
            answer.wait(0.05)
            if self.comments:
                answer.send(b": OPENROUTER PROCESSING\n\n")
        Text("late").act(answer)


def test_a_comment_is_a_sign_of_life_and_silence_is_none(session: Open) -> None:
    chat = session(
        [Thinking(1.2, comments=True), Thinking(5, comments=False), Thinking(5, comments=False, begun=True)], first_byte_s=0.6
    )
    assert chat.ask().text == "late"
    assert (chat.ask().problem, chat.ask().problem) == ("no token came within 0.6 s", "nothing more came within 0.6 s")


def test_ten_minutes_of_thinking_are_allowed_by_default() -> None:
    options = ChatOptions(model="m")
    assert options.first_byte_s > 600
    assert options.reply_s > 600 + options.reply_tokens / 20


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "127.0.0.1",
        "127.8.8.8",
        "127.1",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
    ],
)
def test_addresses_of_this_machine(host: str) -> None:
    assert is_local(f"http://{host}:8000/v1")


@pytest.mark.parametrize(
    "host", ["example.org", "10.0.0.1", "localhost.example.org", "128.0.0.1", "[2001:db8::1]", "1270.0.0.1"]
)
def test_addresses_of_other_machines(host: str) -> None:
    assert not is_local(f"http://{host}:8000/v1")


def test_an_unspecified_address_is_asked_without_a_proxy(session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    there = session([Text("hi")])
    chat = session([], base_url=there.scripted.base_url.replace("127.0.0.1", "0.0.0.0"))
    assert chat.ask().text == "hi"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ALL_PROXY", "socks5://me:secret@127.0.0.1:1080", r"ALL_PROXY names a SOCKS proxy; for that, run: pip install"),
        ("HTTPS_PROXY", "gopher://127.0.0.1", r"HTTPS_PROXY is not the address of a proxy"),
        ("HTTPS_PROXY", "http://[::", r"HTTPS_PROXY is not the address of a proxy"),
        ("SSL_CERT_FILE", "/no/such/file", r"SSL_CERT_FILE names a file without certificates \(No such file or directory\)"),
        ("SSL_CERT_FILE", __file__, r"SSL_CERT_FILE names a file without certificates"),
    ],
)
def test_an_environment_that_cannot_be_used_is_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    for other in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=said) as caught:
        open_server(ChatOptions(model="m", base_url="https://example.org/v1"), None, lambda _: None)
    assert "secret" not in str(caught.value)
    open_server(ChatOptions(model="m", base_url="http://0.0.0.0:8000/v1"), None, lambda _: None).close()


@pytest.mark.parametrize("message", NUMBERLESS)
def test_without_a_number_the_limit_is_halved(session: Open, message: str) -> None:
    def answer(request: Request) -> Behaviour:
        return Text("hi") if request.body["max_tokens"] <= 5000 else Status(400, {"error": {"message": message}})

    chat = session(answer)
    assert chat.ask(tokens=ASKED).text == "hi"
    assert [request.body["max_tokens"] for request in chat.scripted.requests] == [16_384, 8192, 4096]


def test_usage_null_and_missing(session: Open) -> None:
    assert session([NoStream("whole", usage=None)]).ask().usage.counted == "estimate"
    assert session([Status(200, WHOLE | {"usage": None})]).ask().usage.counted == "estimate"
