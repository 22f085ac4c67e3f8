"""One request to a chat server and its reply. Exchanges are stored whole, so a run can be resumed and replayed without cost."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, computed_field, model_serializer, model_validator

from cudal2_agent.contract.base import Record, digest

ReplyStatus = Literal["complete", "truncated", "stopped", "cut", "refused", "failed"]


class ToolCall(Record):
    """One call of a tool in a reply. `id`: as the server named it. `arguments`: as the model wrote them, JSON or not."""

    id: str
    name: str
    arguments: str


class ToolResult(Record):
    """The result of a call as the model is shown it. `seconds`: wall-clock time that the tool took."""

    call_id: str
    text: str
    seconds: float


class Message(Record):
    """One message. `calls`: what an assistant called. `call_id`: the call that a tool's message answers."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A message without calls is written as before there were tools, so that stored prompts keep their hashes."""
        return {name: value for name, value in handler(self).items() if value or name in ("role", "content")}


class Prompt(Record):
    """The messages of one request. The store keeps a prompt once, however often it is sent."""

    messages: tuple[Message, ...]

    @property
    def id(self) -> str:
        return digest(self.model_dump(mode="json"))


class Usage(Record):
    """Tokens of one exchange. `counted`: whether the server reported them or they are estimated."""

    prompt_tokens: int
    completion_tokens: int
    counted: Literal["server", "estimate"]

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Exchange(Record):
    """One request and how its reply ended. (round, sample, turn) identifies it within the run.

    `sample`: number of the conversation within the round. `turn`: number of the request within the conversation, which goes on
    after tool calls and after a reply in a wrong form.
    `status`: `complete`; `truncated` at the token limit; `stopped` by us for length or time; `cut` by a broken connection;
    `refused` by the server's filter or the model; `failed` without a reply.
    `calls`: the tools that the reply called. `results`: of the first calls, in order; of all, once the tools have run.
    `candidate_ids`: the candidates that the reply gave; several where it holds several schedules. `problem`: why it gave
    none, or why a part of it gave none. `cost`: in the currency of the prices set.
    `shown`: the chunks of the knowledge base in the prompt; `cited`: those that the reply says it used.
    """

    round: int
    sample: int
    turn: int
    observation_id: str
    prompt: Prompt
    model: str
    parameters: dict[str, str | int | float | bool]
    status: ReplyStatus
    reply: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    problem: str = ""
    candidate_ids: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    cited: tuple[str, ...] = ()
    usage: Usage
    cost: float
    seconds: float
    created_at: datetime

    @model_validator(mode="before")
    @classmethod
    def _of_one_candidate(cls, values: Any) -> Any:
        """Records of older versions name one candidate or none; in later ones `candidate_ids` counts."""
        if not isinstance(values, Mapping) or "candidate_id" not in values:
            return values
        candidate_id = values["candidate_id"]
        rest = {name: value for name, value in values.items() if name != "candidate_id"}
        return {"candidate_ids": () if candidate_id is None else (candidate_id,), **rest}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def candidate_id(self) -> str | None:
        """The first candidate of the reply. Stored as well, for readers of older exports."""
        return self.candidate_ids[0] if self.candidate_ids else None

    @property
    def place(self) -> tuple[int, int, int]:
        return self.round, self.sample, self.turn
