"""Replies as a tree of tokens: a model that walks along it names a schedule of the task, whichever tokens it chooses."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor

_BEHIND = -1  # fills the rows behind their end

TokenIds = np.ndarray[Any, np.dtype[np.int64]]


class ReplyTree:
    """Replies as rows of tokens in order, each with the token that ends it. A beginning of replies is a range of rows."""

    def __init__(self, replies: Sequence[Sequence[int]], end: int) -> None:
        """Raises: ValueError without replies."""
        if not replies:
            raise ValueError("a tree of replies needs a reply")
        rows = sorted({(*reply, end) for reply in replies})
        self.length = max(map(len, rows))
        self._rows = np.full((len(rows), self.length), _BEHIND, dtype=np.int64)
        for row, tokens in zip(self._rows, rows, strict=True):
            row[: len(tokens)] = tokens

    def __len__(self) -> int:
        return len(self._rows)

    def tokens(self, first: int, behind: int, depth: int) -> TokenIds:
        """What may follow the first `depth` tokens of the rows from `first` to `behind`; nothing after their end."""
        if depth >= self.length:
            return np.zeros(0, dtype=np.int64)
        found = np.unique(self._rows[first:behind, depth])
        allowed: TokenIds = found[found != _BEHIND]
        return allowed

    def narrowed(self, first: int, behind: int, depth: int, token: int) -> tuple[int, int]:
        """The rows of a range that have the token at `depth`."""
        column = self._rows[first:behind, depth]
        low, high = np.searchsorted(column, (token, token + 1))
        return first + int(low), first + int(high)


class ReplyWalk:
    """One reply that grows along a tree."""

    def __init__(self, tree: ReplyTree) -> None:
        self._tree, self._first, self._behind, self._depth = tree, 0, len(tree), 0

    def tokens(self) -> TokenIds:
        """What may follow; nothing once the reply has ended."""
        return self._tree.tokens(self._first, self._behind, self._depth)

    def take(self, token: int) -> None:
        """Raises: ValueError for a token that may not follow."""
        self._first, self._behind = self._tree.narrowed(self._first, self._behind, self._depth, token)
        self._depth += 1
        if self._first == self._behind:
            raise ValueError(f"no reply has token {token} there")


class OnlyReplies(LogitsProcessor):
    """Forbids tokens that lead to no reply of a row's tree. A row that has ended is left to `generate`."""

    def __init__(self, trees: Sequence[ReplyTree], prompt_tokens: int) -> None:
        """`trees`: one for each row of the batch. `prompt_tokens`: of each row, padding included."""
        self._walks = [ReplyWalk(tree) for tree in trees]
        self._taken = prompt_tokens

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        for column in input_ids[:, self._taken :].T.tolist():
            for walk, token in zip(self._walks, column, strict=True):
                if len(walk.tokens()):
                    walk.take(token)
        self._taken = input_ids.shape[1]
        allowed = [walk.tokens() for walk in self._walks]
        rows = np.repeat(np.arange(len(allowed)), [len(tokens) for tokens in allowed])
        places = (torch.from_numpy(rows).to(scores.device), torch.from_numpy(np.concatenate(allowed)).to(scores.device))
        only = torch.full_like(scores, float("-inf"))
        only[places] = scores[places]
        ended = torch.tensor([not len(tokens) for tokens in allowed], device=scores.device).unsqueeze(1)
        return torch.where(ended, scores, only)
