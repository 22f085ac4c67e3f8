"""Commits of cp.async and waits for them are those of a thread: lanes that part from their warp count their own groups."""

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.machine import Interleaving
from tests.sandbox.emulator.core.test_lane_order import COPY, MEET, OWN_AND_NEXT, READ_NEXT, READ_OWN, SMEM, WAIT
from tests.sandbox.emulator.launched import kernel, launch

APART = "setp.eq.u32 %p0, %me, 0; @%p0 bra APART;"
FIRST, SECOND, OTHER = (f"cp.async.ca.shared.global [%r9{place}], [%a1], 4;" for place in ("", "+256", "+512"))
COMMIT, ONE_LEFT = "cp.async.commit_group;", "cp.async.wait_group 1;"
ARRIVE = "cp.async.mbarrier.arrive.noinc.shared.b64 [bar];"
INITIALISE = "setp.eq.u32 %p2, %me, 0; @%p2 mbarrier.init.shared.b64 [bar], 32; bar.sync 0;"
AWAIT = "{label}: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra {label};"

everywhere = pytest.mark.parametrize("interleaving", list(Interleaving), ids=lambda each: each.name.lower())


def kinds(rest: str, apart: str, behind: str, interleaving: Interleaving, *, before: str = "") -> set[str]:
    """`rest`: of all lanes but the first, which executes `apart`; `before` and `behind`: of the whole warp."""
    body = f"{OWN_AND_NEXT} {before} {APART} {rest} bra DONE; APART: {apart} DONE: {behind}"
    return set(launch(kernel(body, 1, SMEM), np.arange(32, dtype=np.uint32), interleaving=interleaving).kinds)


@everywhere
@pytest.mark.parametrize(
    ("before", "rest", "apart"),
    [
        (COPY, WAIT + READ_OWN, WAIT + READ_OWN),
        (COPY + SECOND + COMMIT, ONE_LEFT + READ_OWN, WAIT + READ_OWN),
        ("", COPY + SECOND + COMMIT + ONE_LEFT + READ_OWN, FIRST + COMMIT + WAIT + READ_OWN),
        ("", COPY + WAIT, FIRST + COMMIT + SECOND + COMMIT + ONE_LEFT + READ_OWN),
        ("", FIRST + COMMIT + SECOND + COMMIT + OTHER + COMMIT + "cp.async.wait_group 2;", COPY + WAIT),
        (FIRST, COMMIT + WAIT, COMMIT + COMMIT + ONE_LEFT),
        (COPY, WAIT, "cp.async.wait_all;"),
    ],
)
def test_each_lane_waits_for_its_own_groups(before: str, rest: str, apart: str, interleaving: Interleaving) -> None:
    assert kinds(rest, apart, MEET + READ_NEXT, interleaving, before=before) == set()


@everywhere
@pytest.mark.parametrize(
    ("before", "rest", "apart", "behind"),
    [
        (COPY, WAIT, "", MEET + READ_NEXT),
        (COPY, WAIT, READ_OWN, ""),
        ("", COPY + WAIT, SECOND + COMMIT + FIRST + COMMIT + ONE_LEFT, MEET + READ_NEXT),
        ("", SECOND + COMMIT + FIRST + COMMIT + ONE_LEFT, COPY + WAIT, MEET + READ_NEXT),
        ("", COPY + WAIT, FIRST + WAIT, MEET + READ_NEXT),
        (COPY, WAIT, WAIT, READ_NEXT),
        ("", COPY, WAIT, MEET + READ_NEXT),
        ("", WAIT, COPY, MEET + READ_NEXT),
    ],
)
def test_a_lane_that_does_not_wait_for_its_own_is_found(
    before: str, rest: str, apart: str, behind: str, interleaving: Interleaving
) -> None:
    """Also if the groups that others commit and wait for are as many."""
    found = kinds(rest, apart, behind, interleaving, before=before)
    assert "async-race" in found


@everywhere
def test_lanes_that_copy_nothing_need_not_wait(interleaving: Interleaving) -> None:
    upper = "setp.ge.u32 %p1, %me, 16;"
    used = f"{upper} @%p1 {FIRST} {COMMIT} @%p1 cp.async.wait_group 0; {MEET} @%p1 {READ_OWN}"
    assert kinds("", "", used, interleaving) == set()
    late = used.replace("cp.async.wait_group 0;", "cp.async.wait_group 1;")
    assert kinds("", "", late, interleaving) == {"async-race"}


@everywhere
def test_lanes_apart_arrive_at_an_mbarrier_each_for_its_own_copies(interleaving: Interleaving) -> None:
    behind = AWAIT.format(label="AGAIN") + READ_NEXT
    assert kinds(FIRST + ARRIVE, SECOND + FIRST + ARRIVE, behind, interleaving, before=INITIALISE) == set()
    late = kinds(FIRST + ARRIVE, ARRIVE + FIRST, behind, interleaving, before=INITIALISE)
    assert "async-race" in late


@everywhere
def test_the_values_are_those_that_were_copied(interleaving: Interleaving) -> None:
    """Each lane adds what the next lane copied, over 24 steps in which another lane is apart."""
    body = f"""
    {OWN_AND_NEXT} mov.u32 %r3, 0; mov.u32 %r4, 0;
    STEP: setp.eq.u32 %p1, %me, %r3; @%p1 bra APART;
    {COPY} {WAIT} bra MET;
    APART: {SECOND} {COMMIT} {COPY} {WAIT}
    MET: {MEET} {READ_NEXT} add.u32 %r4, %r4, %r2; {MEET}
    add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 24; @%p1 bra STEP;
    st.global.u32 [%a1], %r4;
    """
    words = np.arange(32, dtype=np.uint32)
    assert launch(kernel(body, 1, SMEM), words, interleaving=interleaving).kinds == []
    assert list(words) == [24 * ((lane + 1) % 32) for lane in range(32)]
