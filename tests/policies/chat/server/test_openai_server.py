"""Whatever an HTTP server does, a request ends on time, as documented, with its partial result and without the key."""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path

import pytest
from pydantic import SecretStr

from cudal2_agent.contract.errors import EndpointError, UsageError
from cudal2_agent.contract.events import Event, Notice, Replying
from cudal2_agent.contract.records.exchange import Usage
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.server.chat_server import ChatServer, ExchangePlace, Limit, Reply
from cudal2_agent.policies.chat.server.connection import open_server
from cudal2_agent.policies.chat.server.replay import RecordedFirst
from cudal2_agent.store.store import RunExchanges, open_store
from tests.doubles import run_record
from tests.doubles.chat_server import (
    Answer,
    Cut,
    EchoKey,
    Endless,
    EndlessError,
    HugeReply,
    InvalidJson,
    NoStream,
    Refusal,
    Rejects,
    Request,
    Script,
    ScriptedServer,
    SlowFirstByte,
    Status,
    StreamError,
    Text,
)
from tests.policies.chat.exchanges import exchange, prompt

KEY = "sk-proj-4f9a/Zq+0123456789-not-a-real-key"
HERE: ExchangePlace = (1, 2, 0)


class Session:
    """A scripted server with a client."""

    def __init__(
        self, script: Script, *, key: str | None = KEY, models: tuple[str, ...] = ("test",), **changes: object
    ) -> None:
        self.scripted = ScriptedServer(script, models)
        self.events: list[Event] = []
        fields = {"model": "test", "base_url": self.scripted.base_url, "first_byte_s": 5.0, "retries": 3, **changes}
        self.server: ChatServer = open_server(
            ChatOptions.model_validate(fields), SecretStr(key) if key else None, self.events.append
        )

    def ask(self, place: ExchangePlace = HERE, *, tokens: int = 1000, seconds: float = 20.0) -> Reply:
        return self.server.ask(prompt(), place, Limit(tokens, seconds))

    @property
    def asked(self) -> int:
        return len(self.scripted.requests)


Open = Callable[..., Session]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens sessions with a back-off of hundredths of a second."""
    monkeypatch.setattr("cudal2_agent.policies.chat.server.retrying._FIRST_S", 0.01)
    monkeypatch.setattr("cudal2_agent.policies.chat.server.retrying._JITTER_S", 0.01)
    opened: list[Session] = []

    def enter(script: Script, **changes: object) -> Session:
        made = Session(script, **changes)
        made.scripted.__enter__()
        opened.append(made)
        return made

    yield enter
    for one in opened:
        one.server.close()
        one.scripted.__exit__()


def test_a_reply_arrives_whole_with_its_usage_and_progress(session: Open) -> None:
    chat = session([Text("a kernel " * 50, reasoning="hm")])
    reply = chat.ask()
    assert (reply.status, reply.text, reply.reasoning, reply.problem) == ("complete", "a kernel " * 50, "hm", "")
    assert reply.usage == Usage(prompt_tokens=100, completion_tokens=50, counted="server")
    assert [(e.round, e.sample) for e in chat.events if isinstance(e, Replying)] == [(1, 2)]
    [request] = chat.scripted.requests
    assert request.prompt == "be brief\nwrite a kernel"
    assert {name: request.body[name] for name in ("model", "max_tokens", "temperature", "stream")} == {
        "model": "test",
        "max_tokens": 1000,
        "temperature": 0.8,
        "stream": True,
    }
    assert request.headers["authorization"] == f"Bearer {KEY}"


def test_progress_is_told_at_most_four_times_a_second(session: Open) -> None:
    chat = session([Text("word " * 60, pieces=5, pause=0.01)])
    reply = chat.ask()
    told = [event.characters for event in chat.events if isinstance(event, Replying)]
    assert told == sorted(told)
    assert 2 <= len(told) <= reply.seconds * 4 + 1


@pytest.mark.parametrize("set_or_not", [True, False])
def test_without_a_key_none_is_sent_and_nothing_of_openais_environment(
    session: Open, monkeypatch: pytest.MonkeyPatch, set_or_not: bool
) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.delenv(f"OPENAI_{name}", raising=False)
        if set_or_not:
            monkeypatch.setenv(f"OPENAI_{name}", "of-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    chat = session([Text("hi")], key=None)
    assert chat.ask().text == "hi"
    [request] = chat.scripted.requests
    assert "authorization" not in request.headers
    assert "of-the-environment" not in str(request.headers)


def test_a_server_of_this_machine_is_asked_without_a_proxy(session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert session([Text("hi")]).ask().text == "hi"


def test_a_server_that_does_not_stream(session: Open) -> None:
    reply = session([NoStream("whole", usage=None)]).ask()
    assert (reply.status, reply.text, reply.usage.counted) == ("complete", "whole", "estimate")
    assert reply.usage.prompt_tokens > 0


def test_tokens_are_estimated_where_none_are_told(session: Open) -> None:
    usage = session([Text("x" * 320, usage=None)]).ask().usage
    assert (usage.completion_tokens, usage.counted) == (100, "estimate")


def test_a_reply_at_its_token_limit(session: Open) -> None:
    reply = session([Text("half a ker", finish="length")]).ask()
    assert (reply.status, reply.text) == ("truncated", "half a ker")
    assert reply.problem


def test_a_refusal(session: Open) -> None:
    reply = session([Refusal("I will not.")]).ask()
    assert (reply.status, reply.text, reply.problem) == ("refused", "I will not.", "I will not.")
    assert session([Text("so", finish="content_filter")]).ask().status == "refused"


def test_a_reply_of_200000_tokens_is_stopped(session: Open) -> None:
    reply = session([HugeReply(200_000)]).ask(tokens=16_384)
    assert reply.status == "stopped"
    assert "16384 tokens" in reply.problem
    assert 100_000 < len(reply.text) < 120_000
    assert reply.usage.counted == "estimate"
    assert reply.usage.completion_tokens > 30_000


def test_an_endless_stream_is_stopped_by_length(session: Open) -> None:
    reply = session([Endless(pause=0)]).ask(tokens=100)
    assert reply.status == "stopped"
    assert reply.text.startswith("and so on")


def test_an_endless_trickle_is_stopped_by_time(session: Open) -> None:
    reply = session([Endless(pause=0.1)]).ask(seconds=0.8)
    assert (reply.status, reply.problem) == ("stopped", "the reply took longer than 1 s")
    assert reply.text.startswith("and so on")
    assert 0.7 < reply.seconds < 3


@pytest.mark.parametrize("behaviour", [SlowFirstByte(9.0), SlowFirstByte(9.0, headers=True)])
def test_a_first_token_that_does_not_come_is_not_waited_for(session: Open, behaviour: object) -> None:
    chat = session([behaviour], first_byte_s=0.3)
    reply = chat.ask()
    assert (reply.status, reply.text, reply.problem) == ("stopped", "", "no token came within 0.3 s")
    assert reply.seconds < 3
    assert reply.usage.prompt_tokens > 0  # the server may still process it, at a cost
    assert chat.asked == 1


def test_a_slow_first_token_within_its_time_is_waited_for(session: Open) -> None:
    chat = session([Text("slow but sure", pieces=1, pause=0.05)], first_byte_s=0.4)
    assert chat.ask().text == "slow but sure"


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_stream_keeps_what_came(session: Open, reset: bool) -> None:
    chat = session([Cut("the first half", reset=reset)])
    reply = chat.ask()
    assert reply.status == "cut"
    assert "the first half".startswith(reply.text)  # a reset may drop bytes in flight
    assert reply.problem
    assert chat.asked == 1


def test_a_stream_that_ends_without_an_end_is_cut(session: Open) -> None:
    reply = session([Text("the first half", finish=None, done=False)]).ask()
    assert (reply.status, reply.text) == ("cut", "the first half")


def test_a_stream_cut_before_its_first_token_is_asked_for_again(session: Open) -> None:
    chat = session([Cut(), Text("hi")])
    assert (chat.ask().text, chat.asked) == ("hi", 2)


@pytest.mark.parametrize(
    "broken", [InvalidJson("abc"), InvalidJson(body=True), StreamError(), Status(200, "<html>log in</html>")]
)
def test_an_answer_that_is_no_reply_is_asked_for_again_and_then_given_up(session: Open, broken: object) -> None:
    assert session([broken, Text("hi")]).ask().text == "hi"
    chat = session([broken] * 9, retries=2)
    reply = chat.ask()
    assert reply.status == "failed"
    assert "after 3 tries" in reply.problem
    assert "\n" not in reply.problem
    assert chat.asked == 3


def test_an_error_in_the_middle_of_a_reply_keeps_what_came(session: Open) -> None:
    reply = session([StreamError("out of memory", text="half")]).ask()
    assert (reply.status, reply.text) == ("cut", "half")
    assert "out of memory" in reply.problem


def test_tries_in_vain_are_counted(session: Open) -> None:
    reply = session([InvalidJson("x" * 32), Text("hi", usage=(100, 50))]).ask()
    assert reply.usage.completion_tokens == 60
    assert reply.usage.counted == "estimate"


@pytest.mark.parametrize("code", [408, 409, 429, 500, 502, 503, 529])
def test_a_busy_or_failing_server_is_asked_again(session: Open, code: int) -> None:
    chat = session([Status(code), Status(code), Text("hi")])
    assert (chat.ask().text, chat.asked) == ("hi", 3)


def test_an_error_whose_body_never_ends(session: Open) -> None:
    chat = session([EndlessError(500), EndlessError(400)], retries=0)
    with pytest.raises(EndpointError, match="HTTP 500: sorry sorry"):
        chat.ask(seconds=5)
    reply = chat.ask(seconds=5)
    assert (reply.status, reply.problem[:21]) == ("failed", "HTTP 400: sorry sorry")
    assert reply.seconds < 4


def test_out_of_retries_is_one_line_that_says_how_often_and_why(session: Open) -> None:
    chat = session([Status(500, {"error": {"message": "boom\nat line 1"}})] * 9, retries=2)
    with pytest.raises(EndpointError, match=r"HTTP 500: boom at line 1 after 3 tries and \d+ s of waiting") as caught:
        chat.ask()
    assert "\n" not in str(caught.value)
    assert chat.asked == 3


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "1"}, {"retry-after-ms": "900"}, {"Retry-After": formatdate(time.time() + 86400, usegmt=True)}]
)
def test_retry_after_is_obeyed_where_it_fits(session: Open, headers: dict[str, str]) -> None:
    chat = session([Status(429, headers=headers), Text("hi")])
    if "GMT" in headers.get("Retry-After", ""):
        with pytest.raises(EndpointError, match=r"it asks to wait 8\d\d\d\d s"):
            chat.ask()
        assert chat.asked == 1
        return
    reply = chat.ask()
    assert reply.text == "hi"
    assert 0.85 < reply.seconds < 5


def test_a_wait_longer_than_the_request_has_is_given_up_at_once(session: Open) -> None:
    chat = session([Status(429, {"error": {"message": "slow down"}}, {"Retry-After": "600"})])
    begun = time.monotonic()
    with pytest.raises(EndpointError, match="HTTP 429: slow down; it asks to wait 600 s"):
        chat.ask(seconds=30)
    assert time.monotonic() - begun < 5


def test_a_long_wait_is_told(session: Open) -> None:
    chat = session([Status(429, {"error": {"message": "slow down"}}, {"Retry-After": "9"}), Text("hi")])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(chat.ask)
        deadline = time.monotonic() + 5
        while not any(isinstance(event, Notice) for event in chat.events) and time.monotonic() < deadline:
            time.sleep(0.01)
        chat.server.close()
        assert asked.result(5).status == "stopped"
    [notice] = [event.message for event in chat.events if isinstance(event, Notice)]
    assert notice.endswith("answers HTTP 429: slow down; trying again in 9 s")


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (Status(401, {"error": {"message": "bad key"}}), "refuses the request .HTTP 401: bad key.; check the key"),
        (Status(403, "go away"), "refuses the request .HTTP 403: go away."),
        (Status(402, {"detail": "no credit"}), "requires payment .HTTP 402: no credit."),
        (Status(429, {"error": {"message": "quota", "code": "insufficient_quota"}}), "requires payment"),
    ],
)
def test_what_no_retry_mends_is_not_retried(session: Open, behaviour: object, said: str) -> None:
    chat = session([behaviour])
    with pytest.raises(EndpointError, match=said):
        chat.ask()
    assert chat.asked == 1


def test_a_server_that_wants_a_key_where_none_is_set(session: Open) -> None:
    with pytest.raises(EndpointError, match="requires a key: set CUDAL2_API_KEY"):
        session([Status(401)], key=None).ask()


def test_a_missing_model_names_those_there_are(session: Open) -> None:
    models = tuple(f"model-{number}" for number in range(7))
    with pytest.raises(EndpointError, match=r"has no model 'gone'; it offers model-0, .*, model-4 and 2 more: choose one"):
        session([Status(404, {"error": {"message": "gone"}})], model="gone", models=models).ask()
    with pytest.raises(EndpointError, match="has no model 'gone'; it offers test:"):
        session([Status(400, {"error": {"message": "gone", "code": "model_not_found"}})], model="gone").ask()


def test_a_wrong_path_is_told_from_a_missing_model(session: Open) -> None:
    chat = session([])
    wrong = open_server(ChatOptions(model="test", base_url=chat.scripted.base_url[:-3]), None, chat.events.append)
    with pytest.raises(EndpointError, match=r"HTTP 404: no such page.*--base-url ends in /v1"):
        wrong.ask(prompt(), HERE, Limit(100, 5))
    wrong.close()


def test_a_request_that_the_server_cannot_take_fails_alone(session: Open) -> None:
    chat = session([Status(400, {"error": {"message": "no such chat template"}}), Text("hi")])
    reply = chat.ask()
    assert (reply.status, reply.problem, reply.usage.tokens) == ("failed", "HTTP 400: no such chat template", 0)
    assert chat.ask().text == "hi"


@pytest.mark.parametrize("name", ["stream_options", "temperature", "max_tokens", "stream"])
def test_a_parameter_that_a_server_does_not_take_is_left_out_from_then_on(session: Open, name: str) -> None:
    reply = NoStream("hi") if name == "stream" else Text("hi")
    chat = session(lambda _: Rejects(name, reply))
    assert [chat.ask().text for _ in range(2)] == ["hi", "hi"]
    assert [name in request.body for request in chat.scripted.requests] == [True, False, False]
    assert ("max_completion_tokens" in chat.scripted.requests[-1].body) == (name == "max_tokens")


def test_a_server_that_takes_no_parameter_at_all(session: Open) -> None:
    chat = session(lambda _: Rejects("stream_options", Rejects("max_tokens", Rejects("max_completion_tokens", Text("hi")))))
    assert chat.ask().text == "hi"


def test_nobody_there(session: Open) -> None:
    chat = session([], base_url="http://127.0.0.1:9/v1", retries=1)
    with pytest.raises(EndpointError, match=r"http://127\.0\.0\.1:9/v1 cannot be reached \(.*\) after 2 tries"):
        chat.ask()


def test_a_name_that_does_not_resolve(session: Open) -> None:
    chat = session([], base_url="http://no-such-host.invalid/v1", retries=0)
    with pytest.raises(EndpointError, match="cannot be reached"):
        chat.ask()


def test_requests_in_parallel_get_their_own_replies(session: Open) -> None:
    chat = session(lambda request: Text(f"number {request.body['messages'][1]['content']}", pause=0.05))
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: chat.server.ask(prompt(str(n)), (1, n, 0), Limit(100, 20)), range(24)))
    assert [reply.text for reply in replies] == [f"number {n}" for n in range(24)]


def test_closing_ends_what_is_under_way_and_what_comes_after(session: Open) -> None:
    chat = session([Endless(pause=0.05)])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(chat.ask, seconds=60.0)
        while not any(isinstance(event, Replying) for event in chat.events):
            time.sleep(0.01)
        chat.server.close()
        reply = asked.result(5)
    assert (reply.status, reply.problem) == ("stopped", "the request was interrupted")
    assert reply.text.startswith("and so on")
    assert chat.ask().status == "stopped"
    assert chat.asked == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "chat-requests"]


def test_a_run_killed_within_a_round_pays_for_nothing_twice(session: Open, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/store.sqlite")
    store.start_run(run_record())
    log = RunExchanges(store, "run-1")
    first = session(lambda request: Text(f"reply {request.number}"))
    for sample in range(2):
        reply = first.ask((1, sample, 0))
        log.record(exchange((1, sample, 0), reply=reply.text, usage=reply.usage))
    again = session([Text("fresh")])
    taken_up = RecordedFirst(again.server, RunExchanges(open_store(f"sqlite:///{tmp_path}/store.sqlite"), "run-1"))
    texts = [taken_up.ask(prompt(), (1, sample, 0), Limit(1000, 20)).text for sample in range(3)]
    assert texts == ["reply 0", "reply 1", "fresh"]
    assert again.asked == 1


@pytest.mark.parametrize("address", ["localhost:8080", f"http://me:{KEY}@127.0.0.1/v1", f"https://x/v1?api_key={KEY}"])
def test_a_wrong_address_is_told_before_anything_is_sent(address: str) -> None:
    with pytest.raises(UsageError, match="base_url") as caught:
        open_server(ChatOptions(model="test", base_url=address), None, lambda _: None)
    assert KEY not in str(caught.value)


def _spoken(request: Request) -> object:
    """A server that repeats the key wherever it can."""
    sent = request.headers["authorization"]
    behaviours = [
        EchoKey(500),
        Status(503, f"<p>{sent}</p>", {"X-Sent": sent, "Retry-After": "0"}),
        StreamError(f"denied: {sent}"),
        InvalidJson(sent),
        InvalidJson(chunk=f"{'no json ' * 5}{sent}"),
        Status(200, sent, {"Content-Type": f"text/{KEY}"}),
        Status(500, f"{'x' * 290}{sent}"),
        Text(f"your header was {sent}", reasoning=f"they sent {sent}", pieces=7),
        Text(f"and your key {KEY}", finish="content_filter"),
        Refusal(f"not with {KEY}"),
        StreamError(f"denied: {sent}", text="half"),
        Status(400, {"error": {"message": f"bad: {sent}", "param": KEY}}),
        EchoKey(404),
        EchoKey(401),
        Status(429, {"error": {"message": sent, "code": "insufficient_quota"}}),
        Status(418, f"{sent} " * 50),
    ]
    return behaviours[request.number] if request.number < len(behaviours) else EchoKey(500)


def test_the_key_appears_in_no_reply_error_event_log_or_record(
    session: Open, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The key is searched for as a whole and in every useful part, in every form that the server can send."""
    caplog.set_level(logging.DEBUG)
    for name in ("openai", "httpx2", "httpcore2", "cudal2_agent.policies", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)
    store = open_store(f"sqlite:///{tmp_path}/store.sqlite")
    store.start_run(run_record())
    chat = session(_spoken, models=(f"model-{KEY}",), retries=7)
    said, chained = list[str](), list[BaseException | None]()
    for sample in range(10):
        try:
            reply = chat.ask((1, sample, 0))
        except EndpointError as exc:
            said += [str(exc), repr(exc), exc.log, "".join(traceback.format_exception(exc))]
            chained += [exc.__cause__, exc.__context__]
            continue
        said.append(repr(reply))
        recorded = exchange((1, sample, 0), status=reply.status, reply=reply.text, reasoning=reply.reasoning)
        store.record_exchange("run-1", recorded.model_copy(update={"problem": reply.problem}))
    store.close()
    assert chained
    assert set(chained) == {None}
    said += [event.model_dump_json() for event in chat.events]
    said += [record.getMessage() + str(record.args) + str(record.exc_text) for record in caplog.records]
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert chat.asked >= 16
    assert any("httpcore2" in record.name for record in caplog.records)
    assert any("***" in text for text in said)
    for form in (KEY, KEY[:14], "c2stcHJvai00ZjlhL1pxKz", "Zq%2B0123456789", "Zq+0123456789-not"):
        assert not [text for text in said if form in text]
        assert form.encode() not in stored


EMPTY = Text("", usage=None, finish=None)


def test_an_empty_stream_is_asked_for_once_more_without_streaming_for_the_true_error(session: Open) -> None:
    """llama.cpp's Python server sends this for a prompt that does not fit."""
    chat = session(lambda one: EMPTY if one.body.get("stream") else Status(400, {"error": {"message": "9000 tokens"}}))
    reply = chat.ask()
    assert (reply.status, reply.problem, reply.usage.tokens) == ("failed", "HTTP 400: 9000 tokens", 0)
    assert [request.body.get("stream", False) for request in chat.scripted.requests] == [True, False]


@pytest.mark.parametrize("done", [True, False])
def test_a_server_that_holds_nothing_either_way_is_asked_twice_and_paid_nothing(session: Open, done: bool) -> None:
    chat = session(lambda _: Text("", usage=None, finish=None, done=done))
    reply = chat.ask()
    assert (reply.status, reply.usage.tokens, chat.asked) == ("failed", 0, 2)
    assert "longer than the model's context" in reply.problem


def test_an_empty_stream_of_a_failing_server_fails_alone(session: Open) -> None:
    chat = session([EMPTY, Status(500, {"error": {"message": "boom"}}), EMPTY, NoStream("hi", usage=(70, 5))])
    assert (chat.ask().problem, chat.asked) == ("HTTP 500: boom", 2)
    reply = chat.ask()
    assert (reply.text, reply.usage) == ("hi", Usage(prompt_tokens=70, completion_tokens=5, counted="server"))


def test_an_empty_stream_that_the_server_counted_is_booked(session: Open) -> None:
    counted = Text("", usage=(80, 0), finish=None)
    assert session([counted, NoStream("hi", usage=(70, 5))]).ask().usage.prompt_tokens == 150


@pytest.mark.parametrize("vain", [Cut(), InvalidJson(), StreamError(), EndlessError(503)])
def test_a_try_without_a_token_is_not_booked(session: Open, vain: object) -> None:
    assert session([vain, Text("hi", usage=(70, 5))]).ask().usage.tokens == 75


def test_a_server_that_does_not_stream_may_take_longer_than_a_first_token(session: Open) -> None:
    class Slow:
        def act(self, answer: Answer) -> None:
            answer.wait(0.5)
            NoStream("slow but whole").act(answer)

    assert session([Rejects("stream", Slow()), Slow()], first_byte_s=0.2).ask().text == "slow but whole"


def limited(most: int, message: str) -> Callable[[Request], object]:
    """A server that refuses a token limit above its own."""

    def answer(request: Request) -> object:
        if request.body["max_tokens"] <= most:
            return Text("hi")
        return Status(400, {"error": {"message": message.format(request.body["max_tokens"]), "code": 400}})

    return answer


@pytest.mark.parametrize(
    ("message", "most", "asked"),
    [
        ("max_tokens is too large: {0}. This model supports at most 4,096 completion tokens, you sent {0}.", 4096, 2),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192, 2),
        ("`max_tokens` must be less than or equal to `8192`, the maximum value for this model-120b", 8192, 2),
        ("max_tokens: {} > 8000, which is the maximum allowed", 8000, 2),
        ("'max_tokens' is too large: {0}. The context is 8192 tokens, the input 3000 ({0} > 8192 - 3000).", 5192, 2),
        ("max_tokens is too large", 3000, 4),
    ],
)
def test_a_limit_that_is_too_large_is_lowered_for_the_run(session: Open, message: str, most: int, asked: int) -> None:
    chat = session(limited(most, message))
    assert chat.ask(tokens=16_384).text == "hi"
    assert chat.asked == asked
    assert chat.ask(tokens=16_384).text == "hi"
    assert chat.asked == asked + 1
    last = chat.scripted.requests[-1].body
    assert most // 2 < last["max_tokens"] <= most
    assert chat.ask(tokens=600).text == "hi"
    assert chat.scripted.requests[-1].body["max_tokens"] == 600


def test_a_limit_that_nothing_satisfies_fails_with_the_servers_words(session: Open) -> None:
    chat = session(limited(0, "max_tokens is too large"))
    reply = chat.ask(tokens=1000)
    assert (reply.status, reply.problem) == ("failed", "HTTP 400: max_tokens is too large")
    assert chat.asked < 10
