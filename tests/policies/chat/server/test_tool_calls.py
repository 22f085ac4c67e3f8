"""Tool calls over HTTP: in every form in which servers send them, refused by servers that offer none, and without the key."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from cudal2_agent.contract.errors import EndpointError
from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.records.exchange import Message, Prompt, ToolCall
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.server.chat_server import Limit, Reply
from cudal2_agent.policies.chat.server.connection import open_server
from cudal2_agent.policies.chat.server.stream import PartialReply
from cudal2_agent.policies.chat.server.tool_calls import MAX_CALLS
from tests.doubles.chat_server import Calls, Rejects, Script, ScriptedServer, Status, Text
from tests.policies.chat.exchanges import prompt

KEY = "sk-tools-0123456789-not-a-real-key"
TWO = (("compile_kernel", {"kernel": "// é\n" * 30}), ("search_knowledge", {"question": "swizzle"}))
CALLED = Prompt(
    messages=(
        *prompt().messages,
        Message(role="assistant", content="", calls=(ToolCall(id="a", name="predict_time", arguments="{oops"),)),
        Message(role="tool", content="no", call_id="a"),
    )
)


class Asked:
    """A scripted server, asked with tools."""

    def __init__(self, script: Script, **changes: Any) -> None:
        self.scripted = ScriptedServer(script)
        self.events: list[Event] = []
        fields = {"model": "test", "base_url": self.scripted.base_url, "retries": 0, **changes}
        self.server = open_server(ChatOptions(**fields), SecretStr(KEY), self.events.append)

    def ask(self, calls: int = 3, asked: Prompt | None = None) -> Reply:
        return self.server.ask(asked or prompt(), (1, 0, 0), Limit(4000, 20.0, calls))

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.scripted.requests]

    @property
    def notices(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Notice)]


@pytest.fixture
def opened() -> Iterator[list[Asked]]:
    kept: list[Asked] = []
    yield kept
    for one in kept:
        one.server.close()
        one.scripted.__exit__()


def start(opened: list[Asked], script: Script, **changes: Any) -> Asked:
    asked = Asked(script, **changes)
    asked.scripted.__enter__()
    opened.append(asked)
    return asked


@pytest.mark.parametrize(
    "form", [{}, {"pieces": 1}, {"whole": True}, {"whole": True, "index": False}, {"stream": False}], ids=str
)
def test_calls_are_read_in_every_form(opened: list[Asked], form: dict[str, Any]) -> None:
    reply = start(opened, [Calls(*TWO, **form)]).ask()
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == list(TWO)
    assert len({call.id for call in reply.calls}) == 2
    assert (reply.status, reply.text, reply.usage.counted) == ("complete", "", "server")


def test_text_beside_calls_is_kept(opened: list[Asked]) -> None:
    reply = start(opened, [Calls(TWO[1], text="Let me look.")]).ask()
    assert (reply.text, len(reply.calls)) == ("Let me look.", 1)


def test_a_request_declares_the_tools_and_sends_earlier_calls(opened: list[Asked]) -> None:
    at = start(opened, [Text("a"), Text("b"), Text("c")])
    at.ask(calls=2)
    at.ask(calls=1, asked=CALLED)
    at.ask(calls=0)
    with_tools, going_on, without = at.bodies
    assert [tool["function"]["name"] for tool in with_tools["tools"]] == [
        "compile_kernel",
        "verify_kernel",
        "predict_time",
        "search_knowledge",
    ]
    assert "tool_choice" not in with_tools
    called, answered = going_on["messages"][-2:]
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"malformed": "{oops"}
    assert (called["tool_calls"][0]["id"], answered["tool_call_id"], answered["role"]) == ("a", "a", "tool")
    assert "tools" not in without


def test_after_the_last_call_tools_are_declared_and_not_to_be_called(opened: list[Asked]) -> None:
    at = start(opened, [Text("a")])
    at.ask(calls=0, asked=CALLED)
    assert (len(at.bodies[0]["tools"]), at.bodies[0]["tool_choice"]) == (4, "none")


REFUSALS = {
    "param": Rejects("tools", Text("fine")),
    "ollama": Status(400, {"error": {"message": "registry.ollama.ai/library/x:latest does not support tools"}}),
    "vllm": Status(400, {"message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'}),
    "openrouter": Status(404, {"error": {"message": "No endpoints found that support tool use."}}),
    "llama.cpp": Status(500, {"error": {"message": "tools param requires --jinja flag"}}),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_server_that_refuses_tools_is_asked_without_them_with_one_notice(opened: list[Asked], refusal: Any) -> None:
    at = start(opened, [refusal, Text("fine"), Text("good")])
    assert at.ask().text == "fine"
    assert at.ask().text == "good"
    assert ["tools" in body for body in at.bodies] == [True, False, False]
    assert len(at.notices) == 1
    assert "refuses tools (HTTP" in at.notices[0]


def test_tools_that_are_required_end_the_run_where_a_server_refuses_them(opened: list[Asked]) -> None:
    at = start(opened, [Rejects("tools", Text("fine"))], tools="on")
    with pytest.raises(EndpointError, match=r"refuses tools .*--chat-tools auto"):
        at.ask()


NO_CHOICE = {"error": {"message": "No endpoints found that support the provided 'tool_choice' value."}}


@pytest.mark.parametrize("refusal", [Rejects("tool_choice", Text("fine")), Status(404, NO_CHOICE)], ids=["param", "openrouter"])
def test_a_server_that_refuses_only_the_choice_keeps_the_tools(opened: list[Asked], refusal: Any) -> None:
    at = start(opened, [refusal, Text("fine")])
    assert at.ask(calls=0, asked=CALLED).text == "fine"
    assert [sorted(body.keys() & {"tools", "tool_choice"}) for body in at.bodies] == [["tool_choice", "tools"], ["tools"]]
    assert at.notices == []


def test_an_error_that_names_no_tool_keeps_the_tools(opened: list[Asked]) -> None:
    at = start(opened, [Status(400, {"error": {"message": "no such chat template"}}), Text("fine")])
    assert at.ask().status == "failed"
    at.ask()
    assert ["tools" in body for body in at.bodies] == [True, True]


def test_the_key_is_removed_from_calls(opened: list[Asked]) -> None:
    reply = start(opened, [Calls(("search_knowledge", {"question": f"what is {KEY}?"}))]).ask()
    assert KEY not in reply.calls[0].arguments


def test_calls_of_a_reply_that_is_cut_are_dropped(opened: list[Asked]) -> None:
    class Half(Calls):
        def act(self, answer: Any) -> None:
            answer.begin_stream()
            answer.delta({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "verify_kernel", "arguments": '{"ker'}}]})
            answer.close()

    reply = start(opened, [Half()]).ask()
    assert (reply.status, reply.calls) == ("cut", ())


@pytest.mark.parametrize(
    "pieces",
    [
        "not a list",
        [1, None, "x"],
        [{"index": "0", "function": None}],
        [{"index": 0, "function": {"name": 7, "arguments": 7}}],
        [{"index": 10**30, "id": ["a"], "function": {"arguments": "x"}}],
    ],
    ids=str,
)
def test_pieces_in_no_known_form_are_no_calls(pieces: Any) -> None:
    reply = PartialReply()
    reply.add({"choices": [{"delta": {"tool_calls": pieces}}]})
    assert reply.calls == ()


def test_calls_without_ids_or_with_equal_ids_are_told_apart() -> None:
    reply = PartialReply()
    for call_id in ("", "", "same", "same"):
        function = {"name": "predict_time", "arguments": {"kernel": "k1"}}
        reply.add({"choices": [{"delta": {"tool_calls": [{"id": call_id, "function": function}]}}]})
    assert len(reply.calls) == 4
    assert {call.arguments for call in reply.calls} == {'{"kernel": "k1"}'}


def test_a_flood_of_calls_is_bounded() -> None:
    reply = PartialReply()
    for number in range(3 * MAX_CALLS):
        piece = {"index": number, "id": f"c{number}", "function": {"name": "predict_time", "arguments": "{}"}}
        reply.add({"choices": [{"delta": {"tool_calls": [piece]}}]})
    assert len(reply.calls) == MAX_CALLS


def test_a_surrogate_pair_that_was_split_is_joined() -> None:
    reply = PartialReply()
    for half in ("\ud83d", "\ude00 \udc00"):
        piece = {"index": 0, "function": {"name": "search_knowledge", "arguments": half}}
        reply.add({"choices": [{"delta": {"tool_calls": [piece]}}]})
    assert reply.calls[0].arguments == "\U0001f600 \N{REPLACEMENT CHARACTER}"
