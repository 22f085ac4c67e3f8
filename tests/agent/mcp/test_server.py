"""The server against the SDK's own client, over streams in memory."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

import mcp_types as types
from mcp.client.client import Client
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from cudal2_agent.agent.mcp.protocol_server import make_server
from tests.agent.mcp.driving import Driven, SlowSandbox, kernel, stored
from tests.doubles import ScriptedSandbox

MODES = ("legacy", "auto")  # the handshake of older clients, and requests that carry all that is needed


def talk(at: Driven, what: Callable[[Client], Awaitable[None]], mode: str = "legacy") -> None:
    async def connected() -> None:
        async with Client(make_server(at.session, "1.2.3"), mode=mode) as client:
            await what(client)

    with at.running():
        anyio.run(connected)


async def text(client: Client, name: str, **arguments: Any) -> tuple[str, bool]:
    answer = await client.call_tool(name, arguments)
    assert isinstance(answer, types.CallToolResult)
    [content] = answer.content
    assert isinstance(content, types.TextContent)
    return content.text, bool(answer.is_error)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_finds_the_tools_and_hands_a_kernel_in(tmp_path: Path, mode: str) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}))

    async def what(client: Client) -> None:
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        assert {"read_task", "compile_kernel", "verify_kernel", "predict_time", "search_knowledge"} < tools.keys()
        assert {"time_kernel", "profile_kernel", "submit_kernel", "best_known", "show_kernel", "finish"} < tools.keys()
        assert tools["read_task"]["required"] == []
        assert tools["submit_kernel"]["required"] == ["kernel"]
        assert tools["submit_kernel"]["properties"].keys() == {"kernel", "patch", "idea"}
        task, wrong = await text(client, "read_task")
        assert not wrong
        assert "Hand it in with `submit_kernel`" in task
        assert len(task) < 30_000
        said, wrong = await text(client, "submit_kernel", kernel=kernel(1))
        assert (said[:3], wrong) == ("k1:", False)
        assert await text(client, "submit_kernel") != (said, False)

    talk(at, what, mode)
    [step], exchanges = stored(at)
    assert step.candidate.source == kernel(1)
    assert len(exchanges) == 3
    assert exchanges[0].model.startswith("mcp ") or mode == "auto"


def test_a_cancelled_call_ends_in_the_run_and_the_next_one_has_its_outcome(tmp_path: Path) -> None:
    at = Driven(tmp_path, SlowSandbox())

    async def what(client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(text, client, "submit_kernel")  # has no kernel
            tasks.start_soon(client.call_tool, "submit_kernel", {"kernel": kernel(1)})
            await anyio.to_thread.run_sync(at.sandbox.begun.wait)
            tasks.cancel_scope.cancel()
        at.sandbox.go.set()
        said, _ = await text(client, "submit_kernel", kernel="k1")
        assert "it passed all tests" in said

    talk(at, what)
    steps, exchanges = stored(at)
    assert [one.candidate.source for one in steps] == [kernel(1)]
    assert all(len(one.results) == 1 for one in exchanges)


def test_calls_at_once_are_all_answered(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox(dict.fromkeys(range(9), 5.0)))
    said: list[str] = []

    async def what(client: Client) -> None:
        async def one(number: int) -> None:
            said.append((await text(client, "submit_kernel", kernel=kernel(number)))[0])

        async with anyio.create_task_group() as tasks:
            for number in range(9):
                tasks.start_soon(one, number)

    talk(at, what)
    steps, exchanges = stored(at)
    assert len(said) == len(steps) == len(exchanges) == 9
    assert [one.turn for one in exchanges] == [0] * 9


def test_a_long_call_reports_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.agent.mcp.protocol_server.PROGRESS_S", 0.01)
    at = Driven(tmp_path, SlowSandbox())
    told: list[float] = []

    async def progress(seconds: float, _: float | None, __: str | None) -> None:
        told.append(seconds)
        at.sandbox.go.set()

    async def what(client: Client) -> None:
        await client.call_tool("submit_kernel", {"kernel": kernel(1)}, progress_callback=progress)

    talk(at, what)
    assert told


def test_what_is_no_call_is_refused_and_the_server_goes_on(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}))
    bad: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": 7}},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "submit_kernel", "arguments": "k1"}},
        {"jsonrpc": "2.0", "id": 4, "method": "tools/call"},
        {"jsonrpc": "2.0", "id": 5, "method": "no/such", "params": {}},
        {"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": {"name": "submit_kernel", "arguments": [1]}},
    ]

    async def raw() -> None:
        server = make_server(at.session, "1.2.3")
        streams = create_client_server_memory_streams()
        async with streams as ((reading, writing), (from_client, to_client)), anyio.create_task_group() as tasks:
            tasks.start_soon(server.run, from_client, to_client, server.create_initialization_options())

            async def ask(message: dict[str, Any]) -> dict[str, Any]:
                await writing.send(SessionMessage(types.jsonrpc_message_adapter.validate_python(message)))
                answer = await reading.receive()
                assert isinstance(answer, SessionMessage)
                return answer.message.model_dump(by_alias=True)

            info = {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "x" * 10_000, "version": "\0"},
            }
            await ask({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info})
            await writing.send(
                SessionMessage(
                    types.jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", "method": "notifications/initialized"})
                )
            )
            for message in bad:
                assert "error" in await ask(message), message
            good = {"name": "submit_kernel", "arguments": {"kernel": kernel(1)}}
            answer = await ask({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": good})
            assert "k1: it passed" in str(answer["result"])
            tasks.cancel_scope.cancel()

    with at.running():
        anyio.run(raw)
    steps, [exchange] = stored(at)
    assert len(steps) == 1
    assert len(exchange.model) <= 100
