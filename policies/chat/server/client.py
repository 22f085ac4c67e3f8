"""The `openai` client that sends requests, without its own retries, environment settings or unbounded bodies.

Its event loop has its own thread: requests from several threads share connections and end on time.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar
from urllib.request import getproxies_environment

import httpx2
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, Omit
from pydantic import SecretStr

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.policies.chat.server.key import is_local

CONNECT_S = 10.0
_MAX_ERROR_BYTES = 64 * 1024
_MAX_LISTING_BYTES = 1024 * 1024


def open_client(options: ChatOptions, url: str, key: SecretStr | None) -> AsyncOpenAI:
    """A client for the server at `url`. The environment's proxies are used, except for servers on this machine.

    Raises: UsageError where the environment's proxy or certificates cannot be used.
    """
    absent: dict[str, Any] = {}
    if options.base_url is not None:  # an organization from the environment is meant for OpenAI only
        absent = {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}
    timeout = httpx2.Timeout(None, connect=CONNECT_S)  # the caller limits the time after the connection
    return AsyncOpenAI(
        api_key=key.get_secret_value() if key else "none",
        admin_api_key="",
        base_url=url,
        max_retries=0,
        timeout=timeout,
        default_headers=absent,
        http_client=_http_client(timeout, url),
    )


def _http_client(timeout: httpx2.Timeout, url: str) -> httpx2.AsyncClient:
    try:
        return DefaultAsyncHttpxClient(timeout=timeout, trust_env=not is_local(url), event_hooks={"response": [_bound]})
    except ImportError:
        raise UsageError(f"{_proxies()} names a SOCKS proxy; for that, run: pip install 'cudal2-agent[socks]'") from None
    except OSError as exc:  # ssl.SSLError is one
        said = exc.strerror or type(exc).__name__
        raise UsageError(f"SSL_CERT_FILE names a file without certificates ({said}); correct or unset it") from exc
    except (ValueError, httpx2.InvalidURL):
        raise UsageError(f"{_proxies()} is not the address of a proxy; write it like http://proxy.example.org:3128") from None


def _proxies() -> str:
    """The names of the proxies in the environment. Their addresses may contain passwords."""
    return " or ".join(f"{name.upper()}_PROXY" for name in sorted(getproxies_environment()) if name != "no") or "a proxy"


def request_headers(key: SecretStr | None) -> dict[str, str | Omit]:
    """The headers that remove the key from a request if there is none. The package refuses this for a client's headers."""
    return {} if key is not None else {"Authorization": Omit()}


async def _bound(response: httpx2.Response) -> None:
    """Limit the size of bodies that the client reads whole: errors and listings. Replies are limited while streaming."""
    if isinstance(response.stream, httpx2.AsyncByteStream):
        if response.status_code >= 400:
            response.stream = _Head(response.stream, _MAX_ERROR_BYTES)
        elif response.request.method == "GET":
            response.stream = _Head(response.stream, _MAX_LISTING_BYTES)


class _Head(httpx2.AsyncByteStream):
    """The first bytes of a stream, as if the stream ended there."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream, self._left = stream, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield piece[: self._left]
            self._left -= len(piece)
            if self._left <= 0:
                return

    async def aclose(self) -> None:
        await self._stream.aclose()


T = TypeVar("T")
_CLOSING_S = 3.0


class Background:
    """Runs coroutines for threads that wait for the result. The thread is a daemon, so it never keeps a process alive."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chat-requests", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine. An interrupt of the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel all running tasks, wait briefly for them, run one last coroutine and end the thread."""
        asyncio.run_coroutine_threadsafe(self._end(last), self._loop).result(2 * _CLOSING_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_CLOSING_S)
        await last
