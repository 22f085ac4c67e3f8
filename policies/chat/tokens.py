"""Estimates of token counts. A count that a server reports replaces the estimate."""

import math

from cudal2_agent.contract.records.exchange import Prompt, Usage

CHARS_PER_TOKEN = 3.2


def estimate_tokens(text: str) -> int:
    return math.ceil(len(text) / CHARS_PER_TOKEN)


def chars_of(prompt: Prompt) -> int:
    """Characters of the messages and of the tool calls in them."""
    calls = (call for message in prompt.messages for call in message.calls)
    return sum(len(message.content) for message in prompt.messages) + sum(len(c.name) + len(c.arguments) for c in calls)


def estimate_usage(prompt: Prompt, *written: str) -> Usage:
    """The usage of a request for which the server reported no token count."""
    asked = math.ceil(chars_of(prompt) / CHARS_PER_TOKEN)
    return Usage(prompt_tokens=asked, completion_tokens=sum(estimate_tokens(text) for text in written), counted="estimate")
