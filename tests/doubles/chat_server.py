"""A chat server for tests: a real HTTP server on 127.0.0.1 that speaks the OpenAI protocol and follows a script.

    with ScriptedServer([Text("hello"), Status(500), Cut("hel")]) as server:
        options = ChatOptions(model="test", base_url=server.base_url)
        ...
        assert server.requests[0].body["messages"][0]["role"] == "user"

A script is a list, one behaviour per request in the order of arrival (a request past its end gets a 500 that says so), or,
for parallel requests, a function from the `Request` to a behaviour. `/v1/models` offers `models`. `requests` holds every chat
request as received, `Request.prompt` is the text of its messages. Behaviours:

    Text(text)            a whole reply: piece by piece, usage at the end; see its fields for reasoning, finish reasons, …
    Calls((name, args))   a streamed reply that calls tools; `pieces`, `whole` and `index` say in which form
    NoStream(text)        one JSON body, whether or not the request asked for streaming
    Refusal(text)         a streamed `refusal`
    HugeReply(tokens)     a reply of that many tokens of text
    Endless()             a reply that never ends; `comments=True`: keep-alive comments only, no token ever
    SlowFirstByte(s)      silence for s seconds, then a reply; `headers=True`: headers at once, silence after them
    Cut(text)             some text, then the connection closes without an end; `reset=True`: it is reset
    Status(code, body)    an HTTP error; `headers` such as {"Retry-After": "1"}
    StreamError(message)  an error object inside the stream
    InvalidJson(text)     some text, then a `chunk` that is not JSON; `body=True`: the whole body is not
    EndlessError(code)    an HTTP error whose body never ends
    EchoKey(code)         an error whose body and headers repeat the request's key
    Rejects(name, then)   a 400 that names a parameter while the request has it, else behaviour `then`
"""

import base64
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, Self

_MODEL = "test"


@dataclass(frozen=True)
class Request:
    """A chat request as received."""

    number: int
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The text of all messages."""
        return "\n".join(message["content"] for message in self.body["messages"])


class Behaviour(Protocol):
    def act(self, answer: "Answer") -> None: ...


Script = Sequence[Behaviour] | Callable[[Request], Behaviour]


class ScriptedServer:
    """Starts on a free port on entry; on exit it ends every reply in progress."""

    def __init__(self, script: Script, models: Sequence[str] = (_MODEL,)) -> None:
        self.models = list(models)
        self.requests: list[Request] = []
        self.ending = threading.Event()
        self._script = script
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"double": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self._server.shutdown()
        self._server.server_close()

    def take(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> tuple[Request, Behaviour]:
        """Note a request and choose what is done with it."""
        with self._lock:
            request = Request(len(self.requests), path, headers, body)
            self.requests.append(request)
            if callable(self._script):
                return request, self._script(request)
            if request.number < len(self._script):
                return request, self._script[request.number]
            return request, Status(500, {"error": {"message": "the test's script is used up"}})


@dataclass(frozen=True)
class Text:
    """A whole reply. `pieces`: characters per chunk. `usage`: (prompt, completion) tokens, None if the server reports none."""

    text: str
    reasoning: str = ""
    pieces: int = 40
    usage: tuple[int, int] | None = (100, 50)
    finish: str | None = "stop"
    done: bool = True
    pause: float = 0.0

    def act(self, answer: "Answer") -> None:
        answer.begin_stream()
        for piece in _pieces(self.reasoning, self.pieces):
            answer.delta({"reasoning_content": piece})
        for piece in _pieces(self.text, self.pieces):
            answer.delta({"content": piece})
            answer.wait(self.pause)
        if self.finish:
            answer.delta({}, finish=self.finish)
        if self.usage and answer.request.body.get("stream_options", {}).get("include_usage"):
            answer.event({"choices": [], "usage": _usage(self.usage)})
        answer.end_stream(done=self.done)


class Calls:
    """A reply that calls tools: (name, arguments) each. Arguments that are no text are written as JSON.

    `pieces`: characters of arguments per chunk; `whole`: each call in one chunk. `index`: whether chunks say which call is
    meant; without it, every chunk has index 0. `stream`: False for one JSON body.
    """

    def __init__(
        self,
        *calls: tuple[str, Any],
        text: str = "",
        pieces: int = 7,
        whole: bool = False,
        index: bool = True,
        stream: bool = True,
    ) -> None:
        self.text, self.pieces, self.whole, self.index, self.stream = text, pieces, whole, index, stream
        self.calls = [(name, given if isinstance(given, str) else json.dumps(given)) for name, given in calls]

    def act(self, answer: "Answer") -> None:
        ids = [f"call-{answer.request.number}-{place}" for place in range(len(self.calls))]
        if not self.stream:
            called = [_call(call_id, name, given) for call_id, (name, given) in zip(ids, self.calls, strict=True)]
            message = {"role": "assistant", "content": None, "tool_calls": called}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            answer.body(200, {"choices": [choice], "usage": _usage((100, 50))})
            return
        answer.begin_stream()
        if self.text:
            answer.delta({"content": self.text})
        for place, (call_id, (name, given)) in enumerate(zip(ids, self.calls, strict=True)):
            index = {"index": place if self.index else 0}
            first = given if self.whole else ""
            answer.delta({"tool_calls": [index | _call(call_id, name, first)]})
            for piece in _pieces("" if self.whole else given, self.pieces):
                answer.delta({"tool_calls": [index | {"function": {"arguments": piece}}]})
        answer.delta({}, finish="tool_calls")
        answer.event({"choices": [], "usage": _usage((100, 50))})
        answer.end_stream()


@dataclass(frozen=True)
class NoStream:
    text: str
    usage: tuple[int, int] | None = (100, 50)
    finish: str = "stop"

    def act(self, answer: "Answer") -> None:
        message = {"role": "assistant", "content": self.text}
        body: dict[str, Any] = {"choices": [{"index": 0, "message": message, "finish_reason": self.finish}]}
        answer.body(200, body | ({"usage": _usage(self.usage)} if self.usage else {}))


@dataclass(frozen=True)
class Refusal:
    text: str = "I cannot help with that."

    def act(self, answer: "Answer") -> None:
        answer.begin_stream()
        answer.delta({"refusal": self.text})
        answer.delta({}, finish="stop")
        answer.end_stream()


@dataclass(frozen=True)
class HugeReply:
    tokens: int = 200_000

    def act(self, answer: "Answer") -> None:
        Text("word " * self.tokens, pieces=5000).act(answer)


@dataclass(frozen=True)
class Endless:
    pause: float = 0.001
    comments: bool = False

    def act(self, answer: "Answer") -> None:
        answer.begin_stream()
        while not answer.wait(self.pause):
            if self.comments:
                answer.send(b": keep-alive\n\n")
            else:
                answer.delta({"content": "and so on "})


@dataclass(frozen=True)
class SlowFirstByte:
    seconds: float
    text: str = "late"
    headers: bool = False

    def act(self, answer: "Answer") -> None:
        if self.headers:
            answer.begin_stream()
        answer.wait(self.seconds)
        Text(self.text).act(answer)


@dataclass(frozen=True)
class Cut:
    text: str = ""
    reset: bool = False

    def act(self, answer: "Answer") -> None:
        answer.begin_stream()
        for piece in _pieces(self.text, 10):
            answer.delta({"content": piece})
        answer.close(reset=self.reset)


@dataclass(frozen=True)
class Status:
    code: int
    body: dict[str, Any] | str = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def act(self, answer: "Answer") -> None:
        answer.body(self.code, self.body, self.headers)


@dataclass(frozen=True)
class StreamError:
    message: str = "the engine died"
    text: str = ""

    def act(self, answer: "Answer") -> None:
        answer.begin_stream()
        if self.text:
            answer.delta({"content": self.text})
        answer.event({"error": {"message": self.message}})
        answer.end_stream()


@dataclass(frozen=True)
class InvalidJson:
    text: str = ""
    body: bool = False
    chunk: str = '{"choices": [{"delta": oops'

    def act(self, answer: "Answer") -> None:
        if self.body:
            answer.body(200, '{"choices": [{"mess')
            return
        answer.begin_stream()
        if self.text:
            answer.delta({"content": self.text})
        answer.send(f"data: {self.chunk}\n\n".encode())
        answer.end_stream()


@dataclass(frozen=True)
class EchoKey:
    code: int = 401

    def act(self, answer: "Answer") -> None:
        sent = answer.request.headers.get("authorization", "")
        encoded = base64.b64encode(sent.encode()).decode()
        message = f"key refused: {sent}; as base64 {encoded}"
        answer.body(self.code, {"error": {"message": message, "code": sent}}, {"X-Sent": sent})


@dataclass(frozen=True)
class EndlessError:
    code: int = 500

    def act(self, answer: "Answer") -> None:
        answer.begin_stream(self.code)
        while not answer.wait(0):
            answer.send(b"sorry " * 1000)


@dataclass(frozen=True)
class Rejects:
    name: str
    then: Behaviour

    def act(self, answer: "Answer") -> None:
        if self.name not in answer.request.body:
            self.then.act(answer)
            return
        message = f"Unsupported parameter: '{self.name}' is not supported with this model."
        answer.body(400, {"error": {"message": message, "param": self.name, "code": "unsupported_parameter"}})


class Answer:
    """The answer to one request, written by a behaviour."""

    def __init__(self, handler: "_Handler", request: Request) -> None:
        self.request = request
        self._handler = handler
        self._begun = False

    def wait(self, seconds: float) -> bool:
        """Whether the server is ending."""
        return self._handler.double.ending.wait(seconds)

    def begin_stream(self, code: int = 200) -> None:
        if not self._begun:
            self._begun = True
            self._handler.begin(code, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})

    def delta(self, delta: dict[str, Any], finish: str | None = None) -> None:
        self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def event(self, value: dict[str, Any]) -> None:
        self.send(f"data: {json.dumps(value)}\n\n".encode())

    def send(self, content: bytes) -> None:
        self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        self._handler.wfile.flush()

    def end_stream(self, *, done: bool = True) -> None:
        if done:
            self.send(b"data: [DONE]\n\n")
        self._handler.wfile.write(b"0\r\n\r\n")

    def body(self, code: int, body: dict[str, Any] | str, headers: Mapping[str, str] | None = None) -> None:
        content = (body if isinstance(body, str) else json.dumps(body)).encode()
        given = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
        self._handler.begin(code, given)
        self._handler.wfile.write(content)

    def close(self, *, reset: bool = False) -> None:
        """Close the connection during the reply; a reset drops bytes in flight."""
        if reset:
            self._handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._handler.connection.close()
        self._handler.close_connection = True


class _Handler(BaseHTTPRequestHandler):
    double: ScriptedServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            models = [{"id": name, "object": "model"} for name in self.double.models]
            self._answer_json(200, {"object": "list", "data": models})
        else:
            self._answer_json(404, {"error": {"message": "no such page"}})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/chat/completions":
            self._answer_json(404, {"error": {"message": "no such page"}})
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request, behaviour = self.double.take(self.path, headers, json.loads(content))
        behaviour.act(Answer(self, request))

    def begin(self, code: int, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _answer_json(self, code: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.begin(code, {"Content-Type": "application/json", "Content-Length": str(len(content))})
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """A client that disconnects during a reply is expected."""


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _usage(counts: tuple[int, int]) -> dict[str, int]:
    return {"prompt_tokens": counts[0], "completion_tokens": counts[1], "total_tokens": sum(counts)}
