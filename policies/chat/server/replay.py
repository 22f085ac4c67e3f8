"""Recorded replies in place of a server: those of an earlier run, or of this run before it was killed."""

import threading
from collections import defaultdict
from collections.abc import Sequence

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.protocols import ExchangeLog
from cudal2_agent.contract.records.exchange import Exchange, Prompt
from cudal2_agent.policies.chat.server.chat_server import ChatServer, ExchangePlace, Limit, NoReply, Reply


class ReplayServer:
    """Replays a run's replies. The match is, in this order: the same prompt at the same place, an unused reply to the same
    prompt, the reply at the same place.

    Nothing is sent or paid; usage and seconds are as recorded. `differed` counts prompts that differ from the record.
    `missing` counts prompts without a reply within the record's rounds.
    """

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        ordered = sorted(exchanges, key=lambda exchange: exchange.place)
        self._by_place = {exchange.place: exchange for exchange in ordered}
        self._by_prompt: defaultdict[str, list[Exchange]] = defaultdict(list)
        for exchange in ordered:
            self._by_prompt[exchange.prompt.id].append(exchange)
        self._given: set[ExchangePlace] = set()
        self._lock = threading.Lock()
        self.differed = self.missing = 0

    def ask(self, prompt: Prompt, place: ExchangePlace, limit: Limit) -> Reply:  # noqa: ARG002 (a record is as long as it is)
        """See `ChatServer.ask`. Raises: UsageError, NoReply."""
        if not self._by_place:
            raise UsageError("the replayed run has no reply: it asked no chat server, or none answered; replay another run")
        with self._lock:
            found = self._find(prompt, place)
            if found is None:
                self.missing += place[0] <= max(self._by_place)[0]
                raise NoReply(f"the {len(self._by_place)} replies of the replayed run are used up")
            self._given.add(found.place)
            self.differed += found.prompt.id != prompt.id
        return as_reply(found)

    def close(self) -> None:
        pass

    def _find(self, prompt: Prompt, place: ExchangePlace) -> Exchange | None:
        same = self._by_prompt.get(prompt.id, [])
        here = next((exchange for exchange in same if exchange.place == place), None)
        fresh = next((exchange for exchange in same if exchange.place not in self._given), None)
        return here or fresh or self._by_place.get(place)


class RecordedFirst:
    """Asks a server only for replies that the run's log lacks, so a run that was killed within a round pays nothing twice.

    A failed request is sent again: it produced nothing, and its cause may be gone.
    """

    def __init__(self, server: ChatServer, log: ExchangeLog) -> None:
        self._server = server
        self._recorded = {(e.place, e.prompt.id): e for e in log.recorded() if e.status != "failed"}

    def ask(self, prompt: Prompt, place: ExchangePlace, limit: Limit) -> Reply:
        """See `ChatServer.ask`."""
        recorded = self._recorded.get((place, prompt.id))
        return as_reply(recorded) if recorded else self._server.ask(prompt, place, limit)

    def close(self) -> None:
        self._server.close()


def as_reply(exchange: Exchange) -> Reply:
    """The reply of an exchange. A complete reply has no problem of its own: the recorded one came from its extraction."""
    return Reply(
        status=exchange.status,
        text=exchange.reply,
        reasoning=exchange.reasoning,
        usage=exchange.usage,
        seconds=exchange.seconds,
        problem="" if exchange.status == "complete" else exchange.problem,
        calls=exchange.calls,
        results=exchange.results,
    )
