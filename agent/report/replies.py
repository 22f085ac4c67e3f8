"""Sums over a run's exchanges with chat servers. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from cudal2_agent.agent.report.pieces_used import answered, count_used
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.trajectory import Observation

_REASON_CHARS = 80


class Replies(Record):
    """Sums over exchanges. `dropped`: without candidate or tool call, by reason. Unit: tokens; seconds; the prices' currency.

    `estimated`: exchanges whose tokens the server did not report. Requests run in parallel, so that `seconds` exceed the
    time of the run. `shown`: chunks of the knowledge base in prompts with a reply; `cited`: those that a reply says it used;
    `used`: those with an identifier or a figure in the reply that stands nowhere else in the prompt.
    """

    models: tuple[str, ...]
    requests: int
    candidates: int
    prompt_tokens: int
    reply_tokens: int
    estimated: int
    cost: float
    seconds: float
    shown: int = 0
    cited: int = 0
    used: int = 0
    dropped: dict[str, int]
    calls: int = 0


def sum_up(exchanges: Sequence[Exchange], observations: Mapping[str, Observation]) -> Replies | None:
    """None where the run asked no server. `observations`: at least those of exchanges with pieces of knowledge."""
    if not exchanges:
        return None
    reasons = Counter(_reason(exchange) for exchange in exchanges if not exchange.candidate_ids and not exchange.calls)
    return Replies(
        models=tuple(sorted({exchange.model for exchange in exchanges})),
        requests=len(exchanges),
        candidates=len({id_ for exchange in exchanges for id_ in exchange.candidate_ids}),
        prompt_tokens=sum(exchange.usage.prompt_tokens for exchange in exchanges),
        reply_tokens=sum(exchange.usage.completion_tokens for exchange in exchanges),
        estimated=sum(exchange.usage.counted == "estimate" for exchange in exchanges),
        cost=sum(exchange.cost for exchange in exchanges),
        seconds=sum(exchange.seconds for exchange in exchanges),
        shown=sum(len(exchange.shown) for exchange in exchanges if answered(exchange)),
        cited=sum(len(exchange.cited) for exchange in exchanges),
        used=count_used(exchanges, observations),
        dropped=dict(reasons.most_common()),
        calls=sum(len(exchange.calls) for exchange in exchanges),
    )


def _reason(exchange: Exchange) -> str:
    """How the reply ended, and the start of its problem, which is equal for equal problems."""
    head = " ".join(exchange.problem.partition(":")[0].split())[:_REASON_CHARS]
    return f"{exchange.status}: {head}" if head else exchange.status
