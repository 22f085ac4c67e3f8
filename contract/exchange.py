"""One request to a chat server and its reply. Exchanges are stored whole, so a run can be resumed and replayed without cost."""

from datetime import datetime
from typing import Literal

from contract.base import Record, digest

ReplyStatus = Literal["complete", "truncated", "stopped", "cut", "refused", "failed"]


class Message(Record):
    role: Literal["system", "user", "assistant"]
    content: str


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

    `sample`: number of the reply within the round. `turn`: how often this reply was sent back for its form.
    `status`: `complete`; `truncated` at the token limit; `stopped` by us for length or time; `cut` by a broken connection;
    `refused` by the server's filter or the model; `failed` without a reply.
    `problem`: why it gave no candidate; empty where `candidate_id` is set. `cost`: in the currency of the prices set.
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
    problem: str = ""
    candidate_id: str | None = None
    shown: tuple[str, ...] = ()
    cited: tuple[str, ...] = ()
    usage: Usage
    cost: float
    seconds: float
    created_at: datetime

    @property
    def place(self) -> tuple[int, int, int]:
        return self.round, self.sample, self.turn
