"""Order among the lanes of a warp: only barriers and a lane's own waits order their accesses."""

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.machine import Interleaving
from tests.sandbox.emulator.launched import kernel, launch

SMEM = ".shared .align 16 .b8 s[1024]; .shared .align 8 .b64 bar;"
# %r9: the lane's word, %r10: the next lane's, in shared memory. %a1, %a2: the same in the first buffer.
OWN_AND_NEXT = """
mov.u32 %r9, s; mad.lo.u32 %r9, %me, 4, %r9;
add.u32 %r1, %me, 1; and.b32 %r1, %r1, 31; mov.u32 %r10, s; mad.lo.u32 %r10, %r1, 4, %r10;
cvt.u64.u32 %rd1, %r1; mad.lo.u64 %a1, %wide, 4, %a0; mad.lo.u64 %a2, %rd1, 4, %a0;
"""
WRITE, READ_NEXT, READ_OWN = "st.shared.u32 [%r9], %me;", "ld.shared.u32 %r2, [%r10];", "ld.shared.u32 %r2, [%r9];"
WRITE_NEXT = "st.shared.u32 [%r10], %me;"
COPY = "cp.async.ca.shared.global [%r9], [%a1], 4; cp.async.commit_group;"
WAIT = "cp.async.wait_group 0;"
MEET = "bar.warp.sync 0xFFFFFFFF;"


def kinds(body: str, interleaving: Interleaving = Interleaving.LATEST, warps: int = 1) -> list[str]:
    words = np.zeros(32 * warps, np.uint32)
    return launch(kernel(OWN_AND_NEXT + body, 1, SMEM), words, block=(32 * warps, 1, 1), interleaving=interleaving).kinds


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (WRITE, READ_NEXT, "shared-race"),
        (WRITE + READ_OWN, WRITE_NEXT, "shared-race"),
        ("st.global.u32 [%a1], 1;", "ld.global.u32 %r2, [%a2];", "global-race"),
        ("ld.global.u32 %r2, [%a1];", "st.global.u32 [%a2], 1;", "global-race"),
        ("st.global.u32 [%a1], 1;", "st.global.u32 [%a2], 1;", "global-race"),
        (COPY + WAIT, READ_NEXT, "async-race"),
        (COPY + WAIT, WRITE_NEXT, "async-race"),
        (WRITE, "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [s];", "shared-race"),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [s], {%me};", "@%p0 ld.shared.u32 %r2, [s];", "shared-race"),
    ],
)
def test_what_another_lane_touched_needs_a_barrier(first: str, second: str, kind: str) -> None:
    choose = "setp.eq.u32 %p0, %me, 5;"
    assert kind in kinds(choose + first + second)
    for order in (MEET, "bar.sync 0;", "bar.warp.sync 0xFFFFFFFF; shfl.sync.idx.b32 %r3, %me, 0, 31, 0xFFFFFFFF;"):
        assert kinds(choose + first + order + second) == []


@pytest.mark.parametrize("between", ["shfl.sync.idx.b32 %r3, %me, 0, 31, 0xFFFFFFFF;", "membar.cta;", "fence.acq_rel.gpu;"])
def test_shuffles_and_fences_are_no_barriers(between: str) -> None:
    assert kinds(WRITE + between + READ_NEXT) == ["shared-race"]


@pytest.mark.parametrize("body", [WRITE + READ_OWN, COPY + WAIT + READ_OWN, WRITE + READ_OWN + WRITE, WRITE + WRITE + READ_OWN])
def test_a_lane_is_in_order_with_itself(body: str) -> None:
    assert kinds(body) == []


def test_a_copy_that_its_own_lane_does_not_wait_for_is_in_flight() -> None:
    assert kinds(COPY + READ_OWN) == ["async-race"]


def test_lanes_that_write_one_word_together_may_read_it() -> None:
    assert kinds("st.shared.u32 [s], 7; ld.shared.u32 %r2, [s];") == []


FRAGMENT = "{" + ", ".join(f"%f{i}" for i in range(8)) + "}"
LOAD_SUMS = f"wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {FRAGMENT}, [%a0], 16;"
STORE_SUMS = f"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%a0], {FRAGMENT}, 16;"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (LOAD_SUMS + STORE_SUMS + LOAD_SUMS + STORE_SUMS, []),
        (STORE_SUMS + "ld.global.u32 %r2, [%a1];", ["global-race"]),
        ("st.global.u32 [%a1], 1;" + LOAD_SUMS, ["global-race"]),
        (LOAD_SUMS + "ld.global.u32 %r2, [%a1];" + STORE_SUMS, ["global-race"]),
    ],
)
def test_fragments_are_loaded_and_stored_by_the_same_lanes(body: str, expected: list[str]) -> None:
    """Accumulators are updated in place without a barrier; each lane accesses only its own."""
    assert launch(kernel(OWN_AND_NEXT + body, 1, SMEM), np.zeros(256, np.uint32)).kinds == expected


def test_volatile_accesses_do_not_race() -> None:
    assert kinds("st.volatile.shared.u32 [%r9], %me; ld.volatile.shared.u32 %r2, [%r10];") == []


def test_halves_of_a_word_belong_to_their_lanes() -> None:
    halves = "mov.u32 %r9, s; mad.lo.u32 %r9, %me, 2, %r9; cvt.u16.u32 %h1, %me; st.shared.u16 [%r9], %h1;"
    assert kinds(halves + "ld.shared.u16 %h2, [%r9];") == []
    assert kinds(halves + "and.b32 %r9, %r9, -4; ld.shared.u32 %r2, [%r9];") == ["shared-race"]


INITIALISE = "setp.eq.u32 %p0, %me, 0; @%p0 mbarrier.init.shared.b64 [bar], 32; bar.sync 0;"
ARRIVE = "mbarrier.arrive.shared.b64 %rd3, [bar];"
AWAIT = "mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra {label};"


def test_an_mbarrier_orders_the_lanes_that_arrive_and_wait() -> None:
    body = INITIALISE + WRITE + ARRIVE + "AGAIN: " + AWAIT.format(label="AGAIN")
    assert kinds(body + READ_NEXT) == []
    assert kinds(INITIALISE + WRITE + ARRIVE + READ_NEXT) == ["shared-race"]


@pytest.mark.parametrize(
    ("behind", "expected"),
    [(READ_OWN, ["shared-race"]), ("@%p3 " + READ_OWN, []), (MEET + READ_OWN, [])],
)
def test_what_one_lane_has_waited_for_is_known_to_it_alone(behind: str, expected: list[str]) -> None:
    """The second warp writes and arrives; one lane of the first waits."""
    body = f"""
    {INITIALISE} setp.ge.u32 %p1, %me, 32; @%p1 bra OTHER;
    setp.eq.u32 %p3, %me, 3; @!%p3 bra READ;
    AGAIN: {AWAIT.format(label="AGAIN")}
    READ: {behind} bra DONE;
    OTHER: mov.u32 %r3, s; sub.u32 %r4, %me, 32; mad.lo.u32 %r9, %r4, 4, %r3; {WRITE} {ARRIVE}
    DONE:
    """
    assert [kind for kind in kinds(body, warps=2) if kind != "uninitialised-read"] == expected


def test_who_waits_for_the_bulk_store_of_another_lane_waits_for_nothing() -> None:
    """Lane 0 stores a range of shared memory; an overwrite must be ordered after lane 0's wait."""
    send = (
        f"{WRITE} fence.proxy.async; {MEET} setp.eq.u32 %p0, %me, 0; setp.eq.u32 %p1, %me, 1;"
        "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%a0], [s], 128; @%p0 cp.async.bulk.commit_group;"
    )
    wait = "cp.async.bulk.wait_group.read 0;"
    assert kinds(f"{send} @%p0 {wait} {MEET} {WRITE}") == []
    for wrong in (f"@%p0 {wait} {WRITE}", f"@%p1 {wait} {MEET} {WRITE}", f"{wait} {WRITE}"):
        assert set(kinds(send + wrong)) == {"async-race"}, wrong
