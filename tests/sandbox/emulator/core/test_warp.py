"""The emulator's shuffles, votes, matches and reductions against a lane-wise model."""

from collections import Counter

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from tests.sandbox.emulator.launched import execute, lowered

RANDOM = np.random.default_rng(7)
LANES = np.arange(32, dtype="u4")


def shuffled(values: list[int], mode: str, b: list[int], c: list[int]) -> tuple[list[int], list[int]]:
    """Each lane's value, and whether its source is in its segment, by the PTX ISA."""
    results, within = [], []
    for lane in range(32):
        offset, clamp, segment = b[lane] & 31, c[lane] & 31, c[lane] >> 8 & 31
        last, first = (lane & segment) | (clamp & ~segment), lane & segment
        partner = {"up": lane - offset, "down": lane + offset, "bfly": lane ^ offset, "idx": first | (offset & ~segment)}[mode]
        inside = partner >= last if mode == "up" else partner <= last
        results.append(values[partner if inside else lane])
        within.append(int(inside))
    return results, within


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [1, 2, 8, 16, 32])
def test_shuffles_stay_within_their_segments(mode: str, width: int) -> None:
    values = RANDOM.integers(0, 2**32, 32, dtype="u8").astype("u4")
    offsets = RANDOM.integers(0, 64, 32).astype("u4") if mode == "idx" else np.full(32, int(RANDOM.integers(0, 40)), "u4")
    clamp = np.full(32, (32 - width) << 8 | (0 if mode == "up" else 31), "u4")
    body = f"shfl.sync.{mode}.b32 %d0|%p1, %a0, %a1, %a2, -1; selp.u32 %d1, 1, 0, %p1;"
    received, inside = execute(body, [values, offsets, clamp], ["u4", "u4"])
    expected = shuffled(values.tolist(), mode, offsets.tolist(), clamp.tolist())
    assert (received.tolist(), inside.tolist()) == expected


def test_a_shuffle_may_replace_its_operand_and_is_hostile_to_no_control_word() -> None:
    values, b, c = RANDOM.integers(0, 2**32, (3, 32), dtype="u8").astype("u4")
    for mode in ("up", "down", "bfly", "idx"):
        body = f"mov.b32 %d0, %a0; shfl.sync.{mode}.b32 %d0, %d0, %a1, %a2, 0xffffffff;"
        (received,) = execute(body, [values, b, c], ["u4"])
        assert received.tolist() == shuffled(values.tolist(), mode, b.tolist(), c.tolist())[0]


def test_a_butterfly_sums_a_warp() -> None:
    values = RANDOM.integers(0, 1000, 64).astype("u4")
    steps = "".join(f"shfl.sync.bfly.b32 %r1, %d0, {n}, 31, -1; add.u32 %d0, %d0, %r1;" for n in (16, 8, 4, 2, 1))
    (total,) = execute("mov.b32 %d0, %a0;" + steps, [values], ["u4"])
    assert total.tolist() == [int(values[:32].sum())] * 32 + [int(values[32:].sum())] * 32


def test_votes_count_only_the_lanes_that_take_part() -> None:
    body = """setp.lt.u32 %p1, %a0, 8; and.b32 %r1, %a0, 1; setp.eq.u32 %p2, %r1, 0; setp.lt.u32 %p3, %a0, 16;
        @!%p3 bra $upper;
        vote.sync.ballot.b32 %d0, %p2, 0xffff; vote.sync.all.pred %p4, %p1, 0xffff; vote.sync.any.pred %p5, %p1, 0xffff;
        vote.sync.uni.pred %p6, %p3, 0xffff; bra $done;
        $upper:
        vote.sync.ballot.b32 %d0, !%p2, 0xffff0000; vote.sync.all.pred %p4, !%p1, 0xffff0000;
        vote.sync.any.pred %p5, %p1, 0xffff0000; vote.sync.uni.pred %p6, %p2, 0xffff0000;
        $done:
        selp.u32 %d1, 1, 0, %p4; selp.u32 %d2, 1, 0, %p5; selp.u32 %d3, 1, 0, %p6;"""
    ballot, every, some, alike = execute(body, [LANES], ["u4"] * 4)
    assert ballot.tolist() == [0x5555] * 16 + [0xAAAA0000] * 16
    assert every.tolist() == [0] * 16 + [1] * 16
    assert some.tolist() == [1] * 16 + [0] * 16
    assert alike.tolist() == [1] * 16 + [0] * 16


def test_matches_find_equal_lanes() -> None:
    values = RANDOM.integers(0, 5, 32).astype("u4")
    wide = values.astype("u8") << 40
    body = """match.any.sync.b32 %d0, %a0, -1; match.any.sync.b64 %d1, %a1, -1; match.all.sync.b32 %d2|%p1, %a0, -1;
        match.all.sync.b64 %d3|%p2, 77, -1; selp.u32 %d4, 1, 0, %p1; selp.u32 %d5, 1, 0, %p2;"""
    narrow, of_wide, unequal, equal, no, yes = execute(body, [values, wide], ["u4"] * 6)
    expected = [sum(1 << i for i in range(32) if values[i] == value) for value in values]
    assert len(Counter(values.tolist())) > 1
    assert narrow.tolist() == of_wide.tolist() == expected
    assert (set(unequal.tolist()), set(no.tolist())) == ({0}, {0})
    assert (set(equal.tolist()), set(yes.tolist())) == ({0xFFFFFFFF}, {1})


@pytest.mark.parametrize(
    ("opcode", "combine"),
    [
        ("add.u32", lambda values: int(values.sum()) % 2**32),
        ("min.u32", lambda values: int(values.min())),
        ("max.u32", lambda values: int(values.max())),
        ("min.s32", lambda values: int(values.astype("u4").view("i4").min()) % 2**32),
        ("max.s32", lambda values: int(values.astype("u4").view("i4").max()) % 2**32),
        ("and.b32", lambda values: int(np.bitwise_and.reduce(values))),
        ("or.b32", lambda values: int(np.bitwise_or.reduce(values))),
        ("xor.b32", lambda values: int(np.bitwise_xor.reduce(values))),
    ],
)
def test_reductions_cover_the_members_alone(opcode: str, combine) -> None:  # type: ignore[no-untyped-def]
    values = RANDOM.integers(0, 2**32, 32, dtype="u8").astype("u4") | np.uint32(0x10)
    body = f"""setp.lt.u32 %p1, %a1, 12; @!%p1 bra $done; redux.sync.{opcode} %d0, %a0, 0xfff; $done:"""
    (result,) = execute(body, [values, LANES], ["u4"], fill=0x5A)
    assert result.tolist() == [combine(values[:12].astype("u8"))] * 12 + [0x5A5A5A5A] * 20


def test_one_lane_is_elected_among_those_present() -> None:
    body = """setp.ge.u32 %p1, %a0, 5; setp.lt.u32 %p2, %a0, 0; @!%p1 bra $done;
        elect.sync %d0|%p2, 0xffffffe0; elect.sync _|%p2, 0xffffffe0; activemask.b32 %d2; bar.warp.sync 0xffffffe0;
        nanosleep.u32 20; $done: selp.u32 %d1, 1, 0, %p2;"""
    leader, elected, active = execute(body, [LANES], ["u4"] * 3)
    assert leader.tolist() == [0] * 5 + [5] * 27
    assert elected.tolist() == [0] * 5 + [1] + [0] * 26
    assert active.tolist() == [0] * 5 + [0xFFFFFFE0] * 27


@pytest.mark.parametrize(
    "instruction",
    [
        "shfl.up.b32 %r1, %r2, 1, 0;",
        "shfl.sync.up.b64 %l1, %l2, 1, 0, -1;",
        "shfl.sync.sideways.b32 %r1, %r2, 1, 0, -1;",
        "vote.all.pred %p1, %p2;",
        "vote.sync.ballot.pred %p1, %p2, -1;",
        "match.any.sync.b32 %r1|%p1, %r2, -1;",
        "redux.sync.add.b32 %r1, %r2, -1;",
        "redux.sync.min.f32 %r1, %r2, -1;",
        "elect.sync %r1;",
    ],
)
def test_warp_operations_that_are_not_known_are_refused(instruction: str) -> None:
    with pytest.raises(Unsupported):
        lowered(instruction)
