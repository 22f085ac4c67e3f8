"""Tokens are dealt out fairly, and never twice."""

from hypothesis import given
from hypothesis import strategies as st

from policies.chat.prompts.allotment import fair_shares, take
from policies.chat.tokens import estimate_tokens

SIZES = st.lists(st.integers(0, 5000), min_size=1, max_size=6)


@given(SIZES, st.integers(0, 10_000))
def test_shares_never_pass_what_is_there_or_wanted(wanted: list[int], tokens: int) -> None:
    shares = fair_shares(wanted, tokens)
    assert sum(shares) <= tokens
    assert all(share <= want for share, want in zip(shares, wanted, strict=True))
    if sum(wanted) <= tokens:
        assert shares == wanted
    else:
        assert sum(shares) > tokens - len(wanted)


def test_what_wants_little_gets_it_whole_and_the_rest_is_split() -> None:
    assert fair_shares([9000, 100, 9000], 2100) == [1000, 100, 1000]


@given(st.lists(st.text(max_size=400), max_size=12), st.integers(0, 300))
def test_pieces_are_taken_whole_in_their_order(pieces: list[str], tokens: int) -> None:
    taken = take(pieces, tokens)
    assert taken == sorted(set(taken))
    assert sum(estimate_tokens(pieces[position]) for position in taken) <= tokens


def test_a_piece_that_does_not_fit_makes_room_for_the_next() -> None:
    assert take(["x" * 32, "y" * 3200, "z" * 32], 30) == [0, 2]
