"""What the author of a step had seen of the knowledge base and of the profiler, as columns of JSON text.

The mark of a piece is read from the prompt that was sent: versions make marks in different ways.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.trajectory import Observation, Trajectory
from cudal2_agent.policies.chat.prompts.rendering import place_text

_MARK = r"\[(K\w{1,8})\] from "


def hits_of(trajectory: Trajectory) -> dict[str, Hit]:
    """The hits of a run by their chunk: an agent's prompt may show those of an earlier round."""
    return {hit.chunk.id: hit for observation in trajectory.observations.values() for hit in observation.hits}


def shown_pieces(exchange: Exchange | None, hits: Mapping[str, Hit]) -> Iterator[dict[str, Any]]:
    """The pieces that a prompt showed, in its order: mark, place, and whether the reply cites it."""
    if exchange is None:
        return
    text = "\n".join(message.content for message in exchange.prompt.messages)
    for chunk_id in exchange.shown:
        hit = hits.get(chunk_id)
        found = re.search(_MARK + re.escape(place_text(hit)), text) if hit else None
        place = {"release": hit.chunk.release, "path": hit.chunk.path, "symbol": hit.chunk.symbol} if hit else {}
        yield {"mark": found[1] if found else "", "chunk_id": chunk_id, **place, "cited": chunk_id in exchange.cited}


def shown_json(exchange: Exchange | None, hits: Mapping[str, Hit]) -> str:
    return json.dumps(list(shown_pieces(exchange, hits)), ensure_ascii=False)


def retrieved_json(exchange: Exchange | None, observation: Observation, hits: Mapping[str, Hit]) -> str:
    """All pieces that were retrieved for a step, with their text. `mark`: empty for one that no prompt showed."""
    shown = {piece["chunk_id"]: piece for piece in shown_pieces(exchange, hits)}
    every = {**{hit.chunk.id: hit for hit in observation.hits}, **{id_: hits[id_] for id_ in shown if id_ in hits}}
    marked = {id_: (shown[id_]["mark"], shown[id_]["cited"]) if id_ in shown else ("", False) for id_ in every}
    rows = [
        {"mark": marked[id_][0], "cited": marked[id_][1], "score": hit.score, "chunk": hit.chunk.model_dump(mode="json")}
        for id_, hit in every.items()
    ]
    return json.dumps(rows, ensure_ascii=False)


def counters_json(profile: Profile | None) -> str:
    """The counters by launch that the prompt's diagnosis rests on; an empty list where there were none."""
    launches = profile.launches if profile else ()
    return json.dumps([{"entry": launch.entry, **launch.metrics} for launch in launches])
