"""Exchanges for tests of the store, the account and the replay."""

from datetime import timedelta

from cudal2_agent.contract.records.exchange import Exchange, Message, Prompt, Usage
from tests.doubles import NOW, OBSERVATION


def prompt(text: str = "write a kernel") -> Prompt:
    return Prompt(messages=(Message(role="system", content="be brief"), Message(role="user", content=text)))


def usage(prompt_tokens: int = 100, completion_tokens: int = 50, *, counted: bool = True) -> Usage:
    return Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, counted="server" if counted else "estimate")


def exchange(place: tuple[int, int, int] = (1, 0, 0), text: str = "write a kernel", **changes: object) -> Exchange:
    number, sample, turn = place
    fields = {
        "round": number,
        "sample": sample,
        "turn": turn,
        "observation_id": OBSERVATION.id,
        "prompt": prompt(text),
        "model": "test",
        "parameters": {"temperature": 0.8, "max_tokens": 1000},
        "status": "complete",
        "reply": f"reply at {place}",
        "usage": usage(),
        "cost": 0.0,
        "seconds": 2.0,
        "created_at": NOW + timedelta(seconds=10 * sample),
    }
    return Exchange.model_validate({**fields, **changes})
