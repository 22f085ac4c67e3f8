"""Lanes and warps that wait for each other: what goes on, what stands still, and what must be executed together."""

import numpy as np
import pytest

from sandbox.emulator.machine import Schedule
from tests.sandbox.emulator.launched import Array, Launched, kernel, launch

SCHEDULES = [(Schedule.EAGER, 0), (Schedule.LATEST, 0), *((Schedule.RANDOM, seed) for seed in range(8))]
FLAG = ".shared .align 4 .u32 flag;"
under_every_schedule = pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)


def words(count: int) -> Array:
    return np.zeros(count, dtype=np.uint32)


@under_every_schedule
def test_a_long_loop_is_no_deadlock(schedule: Schedule, seed: int) -> None:
    """Lanes leave it at different times, and nothing that others could wait for happens in it."""
    out = words(64)
    body = """
    mov.u32 %r0, 0; mad.lo.u32 %r1, %me, 40, 2000;
    AGAIN: add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, %r1; @%p0 bra AGAIN;
    mad.lo.u64 %a0, %wide, 4, %a0; st.global.u32 [%a0], %r0;
    """
    found = launch(kernel(body, 1), out, block=(64, 1, 1), schedule=schedule, seed=seed)
    assert (found.kinds, found.stopped) == ([], False)
    assert out.tolist() == [40 * lane + 2000 for lane in range(64)]


WAIT = "WAIT: ld.volatile.shared.u32 %r0, [%r9]; setp.eq.u32 %p1, %r0, 0; @%p1 bra WAIT; bra DONE;"
RAISE = "RAISE: mov.u32 %r8, 1; st.volatile.shared.u32 [%r9], %r8; bra DONE;"


@under_every_schedule
@pytest.mark.parametrize("order", [(WAIT, RAISE), (RAISE, WAIT)], ids=["waiting-first", "raising-first"])
def test_lanes_that_spin_let_others_of_their_warp_go_on(schedule: Schedule, seed: int, order: tuple[str, str]) -> None:
    """Half of a warp waits in a loop for a flag that the other half raises, whichever stands first in the program."""
    out = words(32)
    body = f"""
    mov.u32 %r9, flag; mov.u32 %r8, 0; st.volatile.shared.u32 [%r9], %r8; bar.warp.sync 0xFFFFFFFF;
    setp.lt.u32 %p0, %me, 16; @%p0 bra WAIT; bra RAISE;
    {order[0]} {order[1]}
    DONE: mad.lo.u64 %a0, %wide, 4, %a0; st.global.u32 [%a0], 7;
    """
    found = launch(kernel(body, 1, FLAG), out, schedule=schedule, seed=seed)
    assert (found.kinds, found.stopped) == ([], False)
    assert set(out) == {7}


@under_every_schedule
def test_warps_that_spin_for_ever_are_endless(schedule: Schedule, seed: int) -> None:
    body = """
    mov.u32 %r9, flag; mov.u32 %r8, 0; st.volatile.shared.u32 [%r9], %r8; bar.sync 0;
    WAIT: ld.volatile.shared.u32 %r0, [%r9]; setp.eq.u32 %p1, %r0, 0; @%p1 bra WAIT;
    """
    found = launch(kernel(body, 0, FLAG), block=(64, 1, 1), schedule=schedule, seed=seed, most_instructions=200_000)
    assert (found.kinds, found.stopped) == (["endless"], True)
    assert all(f"CTA (0,0,0) warp {warp} at #" in found.findings[0].message for warp in (0, 1))


def of_two_warps(body: str, schedule: Schedule, seed: int) -> Launched:
    return launch(
        kernel(f"setp.lt.u32 %p0, %me, 32; setp.lt.u32 %p1, %me, 16; {body}", 0), block=(64, 1, 1), schedule=schedule, seed=seed
    )


@under_every_schedule
@pytest.mark.parametrize(
    "body",
    [
        "@%p0 bar.sync 1, 64; @!%p0 bar.sync 2, 64;",
        "@%p0 bar.sync 1, 96; @!%p0 bar.sync 1, 96;",
        "@%p1 barrier.sync 1, 64; @!%p1 barrier.sync 2, 64;",
    ],
)
def test_warps_at_different_barriers_are_a_deadlock(body: str, schedule: Schedule, seed: int) -> None:
    found = of_two_warps(body, schedule, seed)
    assert (found.kinds, found.stopped) == (["deadlock"], True)


@under_every_schedule
@pytest.mark.parametrize(
    "body",
    [
        "@%p1 bar.sync 0;",
        "@%p1 bra SOME; bar.sync 0; bra DONE; SOME: bar.sync 0; DONE:",
        "@%p1 bra SOME; bar.warp.sync 0xFFFFFFFF; bra DONE; SOME: bar.sync 0; DONE:",
        "@%p1 bar.arrive 1, 64;",
        "@%p1 barrier.sync.aligned 1, 64;",
        "@%p1 barrier.cluster.arrive.aligned;",
    ],
)
def test_an_aligned_barrier_of_half_a_warp_is_divergent(body: str, schedule: Schedule, seed: int) -> None:
    assert of_two_warps(body, schedule, seed).kinds[:1] == ["divergent"]


@under_every_schedule
@pytest.mark.parametrize(
    "body",
    [
        "@%p0 bar.sync 1, 32; @!%p0 bar.sync 2, 32; bar.sync 0;",
        "@%p1 barrier.sync 1, 64; @!%p1 barrier.sync 1, 64;",
        "@%p1 bra SOME; barrier.sync 0; bra DONE; SOME: barrier.sync 0; DONE: bar.sync 0;",
        "@%p1 bra SOME; bra MEET; SOME: add.u32 %r0, %me, 1; MEET: bar.sync 0;",
        "@%p1 bra LATER; MEET: bar.sync 0; bra DONE; LATER: add.u32 %r0, %me, 1; bra MEET; DONE:",
    ],
)
def test_barriers_that_everyone_reaches_are_passed(body: str, schedule: Schedule, seed: int) -> None:
    found = of_two_warps(body, schedule, seed)
    assert (found.kinds, found.stopped) == ([], False)
