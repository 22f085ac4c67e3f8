"""The Model Context Protocol over the calls of a run, by the official SDK.

The list of tools and the instructions are answered at once, while the run is still being opened. Calls run in a thread, one
after the other; a call that the client cancels runs to its end there, is recorded, and its answer is dropped.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import mcp_types as types
from anyio.to_thread import run_sync
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from cudal2_agent.agent.mcp.agent_calls import INSTRUCTIONS, AgentCalls, Door, Said
from cudal2_agent.agent.mcp.agent_tools import AGENT_TOOLS
from cudal2_agent.agent.run.versions import own_version
from cudal2_agent.policies.chat.prompts.quoting import inline

NAME = "cudal2-agent"
Transport = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]  # the streams of one client
PROGRESS_S = 5.0  # between notifications of progress, which keep a client from giving up


def make_server(calls: AgentCalls, version: str) -> Server[dict[str, Any]]:
    """The server of one run's calls."""
    one_at_a_time = anyio.CapacityLimiter(1)

    async def list_tools(_: ServerRequestContext[Any], __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        tools = [types.Tool(name=one.name, description=one.description, input_schema=one.schema) for one in AGENT_TOOLS]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: ServerRequestContext[Any], asked: types.CallToolRequestParams) -> types.CallToolResult:
        client = _client(context)

        def call() -> Said:
            return calls.call(asked.name, asked.arguments or {}, client)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_report_progress, context)
            said = await run_sync(call, abandon_on_cancel=True, limiter=one_at_a_time)
            tasks.cancel_scope.cancel()
        return types.CallToolResult(content=[types.TextContent(type="text", text=said.text)], is_error=said.wrong)

    return Server(NAME, version=version, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool)


def open_door(calls: AgentCalls, transport: Transport = stdio_server) -> Door:
    """Serve one client in a thread until it closes the transport; then the run is interrupted.

    From the return on, nothing else of this process or of its children reads its stdin or writes to its stdout. The thread does
    not keep the process alive: it may wait for the client's next line for ever.
    """
    server, begun = make_server(calls, own_version()), threading.Event()

    async def serve() -> None:
        async with transport() as (reading, writing):
            begun.set()
            await server.run(reading, writing, server.create_initialization_options())

    def run() -> None:
        try:
            anyio.run(serve)
        finally:
            begun.set()
            calls.desk.leave()

    thread = threading.Thread(target=run, name="mcp-server", daemon=True)
    thread.start()
    begun.wait()
    return Door(calls, thread)


async def _report_progress(context: ServerRequestContext[Any]) -> None:
    """Tell the client, where it asked for that, that a call goes on."""
    seconds = 0.0
    while True:
        await anyio.sleep(PROGRESS_S)
        seconds += PROGRESS_S
        await context.session.report_progress(seconds)


def _client(context: ServerRequestContext[Any]) -> str:
    """The client's name and version, as it introduced itself."""
    params = context.session.client_params
    return inline(f"{params.client_info.name} {params.client_info.version}", 100) if params else "unnamed client"
