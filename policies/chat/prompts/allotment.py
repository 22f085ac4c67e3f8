"""How a prompt's tokens are dealt out: what must be in is shortened to a fair share, what may be in is taken while it fits."""

from collections.abc import Iterable, Sequence

from policies.chat.tokens import estimate_tokens


def fair_shares(wanted: Sequence[int], tokens: int) -> list[int]:
    """What each gets of the tokens: all it wants where that is no more than an equal share of what the smaller ones left."""
    shares = [0] * len(wanted)
    left = tokens
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for place, index in enumerate(order):
        shares[index] = min(wanted[index], left // (len(order) - place))
        left -= shares[index]
    return shares


def take(pieces: Iterable[str], tokens: int) -> list[int]:
    """Positions of the pieces, in their order, that fit whole beside those taken before them."""
    taken: list[int] = []
    for position, piece in enumerate(pieces):
        size = estimate_tokens(piece) + 1
        if size <= tokens:
            taken.append(position)
            tokens -= size
    return taken
