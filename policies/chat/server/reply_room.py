"""The room for a reply in a server's context, as far as its errors have told."""

import math
from dataclasses import dataclass

from cudal2_agent.policies.chat.server.size_errors import TooLarge
from cudal2_agent.policies.chat.tokens import CHARS_PER_TOKEN

USEFUL_TOKENS = 512  # a shorter reply cannot hold a kernel
_MIN_TOKENS = 16
_USEFUL_SHARE, _PLANNED_SHARE = 4, 3  # of the context: the least for a reply, and what a shortened prompt leaves for one
_PROGRESS = 0.75  # of the limit before, where a server does not say how many tokens the prompt has
_NEXT_PROMPT = 0.7  # of a prompt that is too long for a context that is not named


@dataclass(frozen=True)
class PromptTooLong:
    """A prompt leaves no useful room. `tokens`: what a prompt may have, estimated by characters.

    `context`, `prompt`: as the server counts; None where it does not say.
    """

    tokens: int
    context: int | None
    prompt: int | None

    def __str__(self) -> str:
        size = f"the prompt of {self.prompt} tokens" if self.prompt else "the prompt"
        place = f"the server's context of {self.context} tokens" if self.context else "the server's context"
        return f"{size} leaves no room for a reply in {place}: serve a longer context, or set CUDAL2_CHAT_PROMPT_TOKENS lower"


class ReplyRoom:
    """Not thread-safe. Unit: tokens as the server counts them; prompts are given by their characters."""

    def __init__(self) -> None:
        self._context: int | None = None
        self._most: float = math.inf  # that an error named for a reply alone
        self._guess: float = math.inf  # where errors named nothing
        self._density: float | None = None  # tokens per character
        self._promised: set[tuple[int, int]] = set()  # characters of a prompt, and the limit that was to fit

    def of(self, chars: int, reply_tokens: int) -> int:
        """The limit to send with a prompt. A prompt that seems too long is left to the server to refuse."""
        return max(self._left(chars, reply_tokens), min(self._useful(reply_tokens), int(min(reply_tokens, self._most))))

    def learn(self, found: TooLarge, sent: int | None, chars: int, reply_tokens: int) -> PromptTooLong | None:
        """Take in what an error says of a request with the limit `sent`. None: send it again, with the limit of `of`."""
        self._take_in(found, chars)
        if sent is None:
            return self._too_long(found, chars, reply_tokens)
        left = self._left(chars, reply_tokens)
        # What an error named exactly is not believed again where the limit computed from it was refused too.
        exact = found.prompt is not None and not found.at_least and (chars, sent) not in self._promised
        if left >= sent or (left > _PROGRESS * sent and not exact):  # nothing is named, or at least so many tokens
            useful = self._useful(reply_tokens)
            left = max(sent // 2, useful) if sent > useful else sent // 2
            if self._context is None:
                self._guess = left
            else:
                self._density = (self._context - left) / chars
        self._promised.add((chars, left))
        named = found.reply is not None and found.context is None
        if left >= (_MIN_TOKENS if named else self._useful(reply_tokens)):
            return None
        self._guess = math.inf
        return self._too_long(found, chars, reply_tokens)

    def _take_in(self, found: TooLarge, chars: int) -> None:
        if found.reply is not None:
            self._most = min(self._most, found.reply)
        if found.context is not None:
            self._context = found.context
        if found.prompt and chars:
            least = self._tokens_per_char if found.at_least else self._density or 0.0
            self._density = max(least, found.prompt / chars)

    @property
    def _tokens_per_char(self) -> float:
        return self._density or 1 / CHARS_PER_TOKEN

    def _left(self, chars: int, reply_tokens: int) -> int:
        room = math.inf if self._context is None else self._context - math.ceil(chars * self._tokens_per_char - 1e-6)
        return int(min(reply_tokens, self._most, self._guess, room))

    def _useful(self, reply_tokens: int) -> int:
        return min(reply_tokens, max(USEFUL_TOKENS, (self._context or 0) // _USEFUL_SHARE))

    def _too_long(self, found: TooLarge, chars: int, reply_tokens: int) -> PromptTooLong:
        size = chars / CHARS_PER_TOKEN
        if self._context is not None:
            planned = min(reply_tokens, max(USEFUL_TOKENS, self._context // _PLANNED_SHARE))
            tokens = (self._context - planned) / (self._tokens_per_char * CHARS_PER_TOKEN)
        else:
            tokens = _NEXT_PROMPT * size if found.over is None else size - found.over - self._useful(reply_tokens)
        return PromptTooLong(max(0, min(int(tokens), int(size) - 1)), self._context, found.prompt)
