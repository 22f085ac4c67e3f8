"""Lanes and warps that wait for each other: progress, deadlock, and convergence."""

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.machine import Interleaving
from tests.sandbox.emulator.launched import Array, Launched, kernel, launch

INTERLEAVINGS = [(Interleaving.EAGER, 0), (Interleaving.LATEST, 0), *((Interleaving.RANDOM, seed) for seed in range(8))]
FLAG = ".shared .align 4 .u32 flag;"
under_every_interleaving = pytest.mark.parametrize(("interleaving", "seed"), INTERLEAVINGS)


def words(count: int) -> Array:
    return np.zeros(count, dtype=np.uint32)


@under_every_interleaving
def test_a_long_loop_is_no_deadlock(interleaving: Interleaving, seed: int) -> None:
    """Lanes leave the loop at different times; the loop has no effect on other lanes."""
    out = words(64)
    body = """
    mov.u32 %r0, 0; mad.lo.u32 %r1, %me, 40, 2000;
    AGAIN: add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, %r1; @%p0 bra AGAIN;
    mad.lo.u64 %a0, %wide, 4, %a0; st.global.u32 [%a0], %r0;
    """
    found = launch(kernel(body, 1), out, block=(64, 1, 1), interleaving=interleaving, seed=seed)
    assert (found.kinds, found.stopped) == ([], False)
    assert out.tolist() == [40 * lane + 2000 for lane in range(64)]


WAIT = "WAIT: ld.volatile.shared.u32 %r0, [%r9]; setp.eq.u32 %p1, %r0, 0; @%p1 bra WAIT; bra DONE;"
RAISE = "RAISE: mov.u32 %r8, 1; st.volatile.shared.u32 [%r9], %r8; bra DONE;"


@under_every_interleaving
@pytest.mark.parametrize("order", [(WAIT, RAISE), (RAISE, WAIT)], ids=["waiting-first", "raising-first"])
def test_lanes_that_spin_let_others_of_their_warp_go_on(interleaving: Interleaving, seed: int, order: tuple[str, str]) -> None:
    """Half of a warp polls a flag that the other half sets, in either program order."""
    out = words(32)
    body = f"""
    mov.u32 %r9, flag; mov.u32 %r8, 0; st.volatile.shared.u32 [%r9], %r8; bar.warp.sync 0xFFFFFFFF;
    setp.lt.u32 %p0, %me, 16; @%p0 bra WAIT; bra RAISE;
    {order[0]} {order[1]}
    DONE: mad.lo.u64 %a0, %wide, 4, %a0; st.global.u32 [%a0], 7;
    """
    found = launch(kernel(body, 1, FLAG), out, interleaving=interleaving, seed=seed)
    assert (found.kinds, found.stopped) == ([], False)
    assert set(out) == {7}


LOWERED = "mov.u32 %r9, flag; mov.u32 %r8, 0; st.volatile.shared.u32 [%r9], %r8; bar.sync 0;"
POLLS = {
    "load": "ld.volatile.shared.u32 %r0, [%r9]; setp.eq.u32 %p1, %r0, 0;",
    "exchange": "atom.shared.exch.b32 %r0, [%r9], 0; setp.eq.u32 %p1, %r0, 0;",
    "slept": "ld.volatile.shared.u32 %r0, [%r9]; nanosleep.u32 100; setp.eq.u32 %p1, %r0, 0;",
    "voted": "ld.volatile.shared.u32 %r0, [%r9]; setp.eq.u32 %p2, %r0, 0; vote.sync.all.pred %p1, %p2, 0xFFFFFFFF;",
}


@under_every_interleaving
@pytest.mark.parametrize("poll", POLLS.values(), ids=POLLS)
def test_warps_that_spin_for_ever_are_a_deadlock(interleaving: Interleaving, seed: int, poll: str) -> None:
    """No other thread can set the flag: the deadlock is reported long before the limit of operations."""
    body = f"{LOWERED} WAIT: {poll} @%p1 bra WAIT;"
    found = launch(kernel(body, 0, FLAG), block=(64, 1, 1), interleaving=interleaving, seed=seed, most_instructions=200_000)
    assert (found.kinds, found.stopped) == (["deadlock"], True)
    assert [(each.cta, each.warp) for each in found.findings[0].waiting] == [((0, 0, 0), warp) for warp in (0, 1)]


@under_every_interleaving
def test_a_loop_that_polls_and_counts_to_its_end_is_no_deadlock(interleaving: Interleaving, seed: int) -> None:
    """The loop ends by itself after a count; without an end it is reported as endless."""
    out = words(64)
    bound = f"{LOWERED} mov.u32 %r1, 0; WAIT: {POLLS['load']} add.u32 %r1, %r1, 1; setp.lt.and.u32 %p1, %r1, 9000, %p1;"
    store = "@%p1 bra WAIT; mad.lo.u64 %a0, %wide, 4, %a0; st.global.u32 [%a0], %r1;"
    text = kernel(f"{bound} {store}", 1, FLAG)
    found = launch(text, out, block=(64, 1, 1), interleaving=interleaving, seed=seed)
    assert (found.kinds, found.stopped) == ([], False)
    assert set(out) == {9000}
    unbound = text.replace("setp.lt.and.u32 %p1, %r1, 9000, %p1;", "")
    found = launch(unbound, out, block=(64, 1, 1), interleaving=interleaving, seed=seed, most_instructions=400_000)
    assert (found.kinds, found.stopped) == (["endless"], True)


# Each CTA sets its flag and waits for all others: no CTA continues before the last one starts.
MEETING = """
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mul.wide.u32 %rd0, %r1, 4; add.u64 %rd0, %rd0, %a0;
    setp.ne.u32 %p0, %me, 0; @%p0 bra MET;
    mov.u32 %r3, 1; {arrive}
    WAIT: {poll} setp.lt.u32 %p1, %r4, %r2; {again} @%p1 bra WAIT;
    MET: bar.sync 0; {data}
"""
ARRIVE = "atom.acq_rel.gpu.global.add.u32 %r4, [%a0], %r3;"
ACQUIRE = "ld.acquire.gpu.global.u32 %r4, [%a0];"
SILENT = "mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %rd1, %a1; st.global.u32 [%rd1], %r1;"
NEXT = """add.u32 %r5, %r1, 1; rem.u32 %r5, %r5, %r2; mul.wide.u32 %rd2, %r5, 4; add.u64 %rd2, %rd2, %a1;
    ld.global.u32 %r6, [%rd2]; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd3, %rd3, %a2; @!%p0 st.global.u32 [%rd3], %r6;"""


@under_every_interleaving
@pytest.mark.parametrize("again", ["", "nanosleep.u32 40;", "add.u32 %r7, %r7, 1;"], ids=["plain", "sleeps", "counts"])
def test_a_grid_whose_ctas_wait_for_each_other_ends_quickly(interleaving: Interleaving, seed: int, again: str) -> None:
    """A grid barrier with a counter: each CTA then reads its neighbour's data."""
    ctas = 48
    text = MEETING.format(arrive=SILENT + ARRIVE, poll=ACQUIRE, again=again, data=NEXT)
    counter, first, second = words(1), words(ctas), words(ctas)
    found = launch(
        kernel(text, 3), counter, first, second, grid=(ctas, 1, 1), block=(256, 1, 1), interleaving=interleaving, seed=seed
    )
    assert (found.kinds, found.stopped) == ([], False)
    assert second.tolist() == [(cta + 1) % ctas for cta in range(ctas)]


@under_every_interleaving
def test_a_grid_that_waits_for_one_cta_too_many_is_a_deadlock(interleaving: Interleaving, seed: int) -> None:
    poll = ACQUIRE + "sub.u32 %r4, %r4, 1;"
    text = MEETING.format(arrive=ARRIVE, poll=poll, again="", data="")
    found = launch(kernel(text, 1), words(1), grid=(16, 1, 1), block=(64, 1, 1), interleaving=interleaving, seed=seed)
    assert (found.kinds, found.stopped) == (["deadlock"], True)


@under_every_interleaving
def test_warps_that_poll_together_at_a_barrier_let_other_ctas_start(interleaving: Interleaving, seed: int) -> None:
    """All warps of a CTA poll the counter and synchronise, until the last CTA increments it."""
    text = """
    setp.ne.u32 %p0, %me, 0; mov.u32 %r3, 1; mov.u32 %r2, %nctaid.x; @!%p0 red.release.gpu.global.add.u32 [%a0], %r3;
    WAIT: ld.acquire.gpu.global.u32 %r4, [%a0]; setp.lt.u32 %p1, %r4, %r2; bar.red.or.pred %p2, 0, %p1; @%p2 bra WAIT;
    """
    counter = words(1)
    found = launch(kernel(text, 1), counter, grid=(12, 1, 1), block=(128, 1, 1), interleaving=interleaving, seed=seed)
    assert (found.kinds, found.stopped) == ([], False)
    assert counter[0] == 12


def of_two_warps(body: str, interleaving: Interleaving, seed: int) -> Launched:
    return launch(
        kernel(f"setp.lt.u32 %p0, %me, 32; setp.lt.u32 %p1, %me, 16; {body}", 0),
        block=(64, 1, 1),
        interleaving=interleaving,
        seed=seed,
    )


@under_every_interleaving
@pytest.mark.parametrize(
    "body",
    [
        "@%p0 bar.sync 1, 64; @!%p0 bar.sync 2, 64;",
        "@%p0 bar.sync 1, 96; @!%p0 bar.sync 1, 96;",
        "@%p1 barrier.sync 1, 64; @!%p1 barrier.sync 2, 64;",
    ],
)
def test_warps_at_different_barriers_are_a_deadlock(body: str, interleaving: Interleaving, seed: int) -> None:
    found = of_two_warps(body, interleaving, seed)
    assert (found.kinds, found.stopped) == (["deadlock"], True)


@under_every_interleaving
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
def test_an_aligned_barrier_of_half_a_warp_is_divergent(body: str, interleaving: Interleaving, seed: int) -> None:
    assert of_two_warps(body, interleaving, seed).kinds[:1] == ["divergent"]


@under_every_interleaving
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
def test_barriers_that_everyone_reaches_are_passed(body: str, interleaving: Interleaving, seed: int) -> None:
    found = of_two_warps(body, interleaving, seed)
    assert (found.kinds, found.stopped) == ([], False)
