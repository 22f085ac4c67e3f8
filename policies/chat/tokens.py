"""How many tokens a text is about; what a server counts is taken instead wherever it says."""

import math

from contract.exchange import Prompt, Usage

CHARACTERS_A_TOKEN = 3.2


def estimate_tokens(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_A_TOKEN)


def characters_of(prompt: Prompt) -> int:
    return sum(len(message.content) for message in prompt.messages)


def estimate_usage(prompt: Prompt, *written: str) -> Usage:
    """The usage of a request whose server did not tell, or had not told yet when the reply ended."""
    asked = math.ceil(characters_of(prompt) / CHARACTERS_A_TOKEN)
    return Usage(prompt_tokens=asked, completion_tokens=sum(estimate_tokens(text) for text in written), counted="estimate")
