"""Which pieces of knowledge a reply used, told by what it can only have from them. Pure.

A piece counts as used if the reply has an identifier or a figure of the piece that stands nowhere else in the prompt. That is
stricter than what a reply says of itself (`Exchange.cited`), and misses a piece whose idea was used in other words.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.contract.records.trajectory import Observation

# Identifiers and instructions; figures of at least two digits, with thousands separators and decimals.
_NAME = re.compile(r"[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*")
_FIGURE = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?![\w])")
_MEMBER = re.compile(r"::|\.")
_CODE = re.compile(r"[a-z0-9][A-Z]|\w_\w|\w(?:::|\.)\w|[A-Za-z]\d")


def used_pieces(exchange: Exchange, hits: Sequence[Hit]) -> tuple[str, ...]:
    """The ids of the `shown` chunks whose own words stand in the reply. `hits`: those of the exchange's observation."""
    reply = _words("\n".join([exchange.reply, *(call.arguments for call in exchange.calls)]))
    prompt = _words("\n".join(message.content for message in exchange.prompt.messages))
    shown = (hit.chunk for hit in hits if hit.chunk.id in exchange.shown)
    return tuple(
        chunk.id
        for chunk in shown
        if any(word in reply and prompt[word] <= count for word, count in _words(chunk.text).items())
    )


def count_used(exchanges: Iterable[Exchange], observations: Mapping[str, Observation]) -> int:
    """The number of pieces that replies used, of those that are counted as shown.

    `observations`: of rounds with steps, at least. A round without one is left out.
    """
    asked = (exchange for exchange in exchanges if answered(exchange) and exchange.shown)
    known = ((exchange, observations[exchange.observation_id]) for exchange in asked if exchange.observation_id in observations)
    return sum(len(used_pieces(exchange, observation.hits)) for exchange, observation in known)


def answered(exchange: Exchange) -> bool:
    return bool(exchange.reply or exchange.calls)


def _words(text: str) -> Counter[str]:
    """How often each identifier and figure stands in a text, members also alone. A figure of one digit tells nothing."""
    whole = _NAME.findall(text)
    members = (part for name in whole for part in _MEMBER.split(name) if part != name)
    names = (name for name in (*whole, *members) if _CODE.search(name))
    figures = (figure.replace(",", "") for figure in _FIGURE.findall(text))
    return Counter([*names, *(figure for figure in figures if len(figure) > 1)])
