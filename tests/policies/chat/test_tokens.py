"""Budgets are shared fairly, long texts keep their ends, and logs keep their first errors."""

from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.policies.chat.tokens import estimate_tokens, fair_shares, shorten, shorten_log, take

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


NVRTC = """\
kernel.cu(2): warning #177-D: variable "unused" was declared but never referenced
    int unused = 3;
        ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

kernel.cu(3): error: identifier "x" is undefined
    d[0] = x;
           ^

kernel.cu(9): error: identifier "x" is undefined
    d[1] = x;
           ^

kernel.cu(4): error: no instance of function template "cudal2::swizzled" matches the argument list
    foo(3);
    ^
          detected during instantiation of "void f<T>()" at line 12

3 errors detected in the compilation of "kernel.cu".
"""
PTXAS = """\
ptxas application ptx input, line 27; error   : Unknown modifier '.bogus'
ptxas application ptx input, line 31; error   : Unknown modifier '.bogus'
ptxas application ptx input, line 31; error   : Not a name of any known instruction: 'ldx'
ptxas info    : 0 bytes gmem
ptxas fatal   : Ptx assembly aborted due to errors
"""


def test_a_text_that_fits_is_left_alone() -> None:
    assert shorten("a\nb\n", 100) == "a\nb\n"


@given(st.text(alphabet="ab\n", max_size=3000), st.integers(min_value=40, max_value=600))
def test_a_shortened_text_fits_and_keeps_both_ends(text: str, tokens: int) -> None:
    short = shorten(text, tokens)
    assert estimate_tokens(short) <= tokens
    if short != text:
        mark = next(line for line in short.split("\n") if line.startswith("[…"))
        head, tail = short.split(mark)
        assert text.startswith(head.rstrip("\n"))
        assert text.endswith(tail.removeprefix("\n"))


def test_errors_with_their_lines_come_first_and_once() -> None:
    short = shorten_log(NVRTC, 1000)
    assert short.startswith('kernel.cu(3): error: identifier "x" is undefined\n    d[0] = x;')
    assert "swizzled" in short
    assert "instantiation" in short
    assert short.count('identifier "x"') == 1
    assert "warning" not in short
    assert "Remark" not in short
    assert "[… 1 more errors or repeats left out …]" in short


def test_the_assemblers_errors_are_errors() -> None:
    short = shorten_log(PTXAS, 1000)
    assert short.count(".bogus") == 1
    assert "'ldx'" in short
    assert "gmem" not in short


def test_a_log_without_errors_is_shortened_in_the_middle() -> None:
    log = "first\n" + "noise\n" * 1000 + "last"
    short = shorten_log(log, 60)
    assert short.startswith("first")
    assert short.endswith("last")
    assert estimate_tokens(short) <= 60


def test_many_errors_stay_within_their_tokens() -> None:
    log = "".join(f'kernel.cu({n}): error: identifier "x{n}" is undefined\n  {"y" * 80}\n  ^\n\n' for n in range(10_000))
    short = shorten_log(log, 300)
    assert estimate_tokens(short) <= 300
    assert '"x0"' in short
    assert "more errors" in short


def test_one_endless_error_is_cut() -> None:
    short = shorten_log("kernel.cu(1): error: " + "x" * 100_000, 100)
    assert estimate_tokens(short) <= 100
    assert short.startswith("kernel.cu(1): error: x")
