"""One request to a chat server and what came of it: kept whole, so that nothing paid for is lost and a run replays."""

from datetime import datetime
from typing import Literal

from contract.base import Record, digest

ReplyStatus = Literal["complete", "truncated", "stopped", "cut", "refused", "failed"]


class Message(Record):
    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(Record):
    """The messages of one request. Stored once however often it is sent."""

    messages: tuple[Message, ...]

    @property
    def id(self) -> str:
        return digest(self.model_dump(mode="json"))


class Usage(Record):
    """Tokens of one exchange; `counted` says whether the server told them or we estimated."""

    prompt_tokens: int
    completion_tokens: int
    counted: Literal["server", "estimate"]

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Exchange(Record):
    """(round, sample, turn) is its place in the run: `sample` of the round's replies, `turn` counts repairs of one reply.

    `status`: how the reply ended. `complete`: by itself; `truncated`: at the token limit; `stopped`: we ended it, for length
    or time; `cut`: the connection broke; `refused`: the server's filter or the model declined; `failed`: no reply came.
    `problem`: why no candidate came of it, empty where `candidate_id` is one. `cost` in the currency of the prices set.
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
    problem: str = ""
    candidate_id: str | None = None
    usage: Usage
    cost: float
    seconds: float
    created_at: datetime

    @property
    def place(self) -> tuple[int, int, int]:
        return self.round, self.sample, self.turn
