"""Accesses to a peer's shared memory and reads of bulk copies: they must be complete when the CTA ends, in any order."""

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.machine import Interleaving
from tests.sandbox.emulator.launched import kernel, launch

INTERLEAVINGS = [(Interleaving.EAGER, 0), (Interleaving.LATEST, 0), *((Interleaving.RANDOM, seed) for seed in range(3))]
under_every_interleaving = pytest.mark.parametrize(("interleaving", "seed"), INTERLEAVINGS)
# Each of two CTAs has an mbarrier `b` for `ARRIVALS` arrivals, and %there and %over are `s` and `b` of its peer.
BEGIN = """
    .reg .b32 %rank, %here, %own, %there, %over;
    mov.u32 %here, s; mov.u32 %own, b; mov.u32 %rank, %cluster_ctarank; xor.b32 %rank, %rank, 1;
    mapa.shared::cluster.u32 %there, %here, %rank; mapa.shared::cluster.u32 %over, %own, %rank;
    setp.ne.u32 %p0, %me, 0; @!%p0 st.shared.u32 [%here], 7;
    @!%p0 mbarrier.init.shared.b64 [%own], ARRIVALS; fence.mbarrier_init.release.cluster; fence.proxy.async;
    barrier.cluster.arrive; barrier.cluster.wait;
"""
VARIABLES = ".shared .align 16 .b8 s[64]; .shared .align 8 .b64 b;"
ARRIVE = "@!%p0 mbarrier.arrive.shared::cluster.b64 _, [%over];"
ARRIVE_RELAXED = "@!%p0 mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%over];"
ADD_HERE = "@!%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%own], 4;"
SEND = "@!%p0 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%there], 9, [%over];"
WRITE = "@!%p0 st.shared::cluster.u32 [%there+16], 9;"
READ = "@!%p0 ld.shared::cluster.u32 %r1, [%there];"
SYNC = "barrier.cluster.arrive.release; barrier.cluster.wait;"
MEET = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"
WAIT = "AGAIN: mbarrier.try_wait.parity.shared.b64 %p2, [%own], 0; @!%p2 bra AGAIN;"
LAST_WARP_WAITS = f"setp.ge.u32 %p3, %me, 32; @!%p3 bra DONE; {WAIT} DONE:"


@under_every_interleaving
@pytest.mark.parametrize(
    ("access", "behind", "right"),
    [
        (ARRIVE, SYNC, True),
        (ARRIVE, WAIT, True),
        (ARRIVE, LAST_WARP_WAITS, True),
        (ARRIVE, f"{WAIT} {MEET}", True),
        (ARRIVE_RELAXED, WAIT, True),
        (ARRIVE, MEET, False),
        (ARRIVE, "", False),
        (f"{ARRIVE} {ARRIVE}", WAIT, True),
        (f"{ADD_HERE} {SEND}", WAIT, True),
        (WRITE, SYNC, True),
        (WRITE, MEET, False),
        (WRITE, "", False),
        (READ, SYNC, True),
        (READ, MEET, True),
        (f"{READ} {MEET}", MEET, True),
        (READ, "", False),
    ],
)
def test_an_access_is_over_when_the_peer_ends(
    interleaving: Interleaving, seed: int, access: str, behind: str, right: bool
) -> None:
    begin = BEGIN.replace("ARRIVALS", str(max(1, access.count("mbarrier.arrive"))))
    found = launch(
        kernel(f"{begin} {access} {behind}", 0, VARIABLES),
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        block=(64, 1, 1),
        interleaving=interleaving,
        seed=seed,
    )
    assert set(found.kinds) == (set() if right else {"cluster-exit"})


@under_every_interleaving
def test_the_report_names_the_arrival_and_the_cta_that_ends(interleaving: Interleaving, seed: int) -> None:
    text = kernel(f"{BEGIN.replace('ARRIVALS', '1')} {ARRIVE} {MEET}", 0, VARIABLES)
    found = launch(text, grid=(2, 1, 1), cluster=(2, 1, 1), interleaving=interleaving, seed=seed)
    [finding] = found.findings
    assert "an arrival at an mbarrier of CTA rank" in finding.message
    assert "when that CTA ends" in finding.message
    assert (finding.lanes, finding.count) == (1, 2)


@under_every_interleaving
def test_bytes_that_a_peer_sends_are_waited_for(interleaving: Interleaving, seed: int) -> None:
    text = kernel(f"{BEGIN.replace('ARRIVALS', '1')} {ADD_HERE} {SEND} {MEET}", 0, VARIABLES)
    found = launch(text, grid=(2, 1, 1), cluster=(2, 1, 1), interleaving=interleaving, seed=seed)
    assert "cluster-exit" in found.kinds


BULK_INTERLEAVINGS = [(Interleaving.EAGER, 0), (Interleaving.LATEST, 0), *((Interleaving.RANDOM, seed) for seed in range(4))]
under_every_bulk_interleaving = pytest.mark.parametrize(("interleaving", "seed"), BULK_INTERLEAVINGS)
FILL = """
    mov.u32 %r9, s; mad.lo.u32 %r8, %me, 4, %r9; st.shared.u32 [%r8], %me; fence.proxy.async; bar.warp.sync 0xFFFFFFFF;
    setp.ne.u32 %p0, %me, 0; setp.eq.u32 %p1, %me, 1;
"""
SEND_BULK = "@!%p0 cp.async.bulk.global.shared::cta.bulk_group [%a0], [s], 128;"
ADD = "@!%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%a0], [s], 128;"
MORE = "@!%p0 cp.async.bulk.global.shared::cta.bulk_group [%a0+128], [s], 128;"
COMMIT, WAIT_READ, WAIT_DONE = "@!%p0 cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read", "cp.async.bulk.wait_group"


@under_every_bulk_interleaving
@pytest.mark.parametrize("store", [SEND_BULK, ADD], ids=["store", "reduce"])
@pytest.mark.parametrize(
    ("behind", "right"),
    [
        (f"{COMMIT} @!%p0 {WAIT_READ} 0;", True),
        (f"{COMMIT} @!%p0 {WAIT_DONE} 0;", True),
        (f"{COMMIT} {WAIT_READ} 0; bar.sync 0;", True),
        (f"{COMMIT} {MORE} {COMMIT} @!%p0 {WAIT_READ} 1; @!%p0 {WAIT_READ} 0;", True),
        (COMMIT, False),
        ("", False),
        (f"@!%p0 {WAIT_READ} 0;", False),
        (f"{COMMIT} @%p1 {WAIT_READ} 0; bar.sync 0;", False),
        (f"{COMMIT} {MORE} {COMMIT} @!%p0 {WAIT_READ} 1;", False),
        (f"{COMMIT} bar.sync 0; @!%p0 ret; bar.warp.sync 0xFFFFFFFE;", False),
    ],
)
def test_a_store_is_waited_for_before_its_thread_ends(
    interleaving: Interleaving, seed: int, store: str, behind: str, right: bool
) -> None:
    out = np.zeros(64, np.uint32)
    text = kernel(f"{FILL} {store} {behind}", 1, ".shared .align 128 .b8 s[128];")
    found = launch(text, out, interleaving=interleaving, seed=seed)
    assert set(found.kinds) == (set() if right else {"async-race"})
    assert right or "no cp.async.bulk.wait_group waits for it" in found.findings[0].message
    assert out[:32].tolist() == list(range(32))


PEER = """
    .reg .b32 %peer, %bar; .reg .b64 %state;
    mov.u32 %r9, s; mov.u32 %bar, b; mov.u32 %r7, %cluster_ctarank; mad.lo.u32 %r8, %me, 4, %r9; st.shared.u32 [%r8], %me;
    setp.ne.u32 %p0, %me, 0; setp.ne.u32 %p1, %r7, 0;
    @!%p0 mbarrier.init.shared.b64 [%bar], 1; fence.mbarrier_init.release.cluster; fence.proxy.async;
    barrier.cluster.arrive; barrier.cluster.wait;
    @%p1 bra OTHER;
    mapa.shared::cluster.u32 %r6, %r9, 1; mapa.shared::cluster.u32 %r5, %bar, 1; add.u32 %r6, %r6, 128;
    @!%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], [%r9], 128, [%r5];
    bra END;
    OTHER: @!%p0 mbarrier.arrive.expect_tx.shared.b64 %state, [%bar], 128;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%bar], 0; @!%p2 bra WAIT;
    END: LAST
"""


@pytest.mark.parametrize(("last", "kinds"), [("barrier.cluster.arrive; barrier.cluster.wait;", []), ("", ["cluster-exit"])])
def test_a_copy_to_a_peer_reads_shared_memory_that_is_still_there(last: str, kinds: list[str]) -> None:
    variables = ".shared .align 128 .b8 s[256]; .shared .align 8 .b64 b;"
    found = launch(kernel(PEER.replace("LAST", last), 0, variables), grid=(2, 1, 1), cluster=(2, 1, 1))
    assert found.kinds == kinds
