"""Bulk copies from shared memory: their reads must complete before the CTA ends."""

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.machine import Interleaving
from tests.sandbox.emulator.launched import kernel, launch

INTERLEAVINGS = [(Interleaving.EAGER, 0), (Interleaving.LATEST, 0), *((Interleaving.RANDOM, seed) for seed in range(4))]
under_every_interleaving = pytest.mark.parametrize(("interleaving", "seed"), INTERLEAVINGS)
FILL = """
    mov.u32 %r9, s; mad.lo.u32 %r8, %me, 4, %r9; st.shared.u32 [%r8], %me; fence.proxy.async; bar.warp.sync 0xFFFFFFFF;
    setp.ne.u32 %p0, %me, 0; setp.eq.u32 %p1, %me, 1;
"""
SEND = "@!%p0 cp.async.bulk.global.shared::cta.bulk_group [%a0], [s], 128;"
ADD = "@!%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%a0], [s], 128;"
MORE = "@!%p0 cp.async.bulk.global.shared::cta.bulk_group [%a0+128], [s], 128;"
COMMIT, READ, DONE = "@!%p0 cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read", "cp.async.bulk.wait_group"


@under_every_interleaving
@pytest.mark.parametrize("store", [SEND, ADD], ids=["store", "reduce"])
@pytest.mark.parametrize(
    ("behind", "right"),
    [
        (f"{COMMIT} @!%p0 {READ} 0;", True),
        (f"{COMMIT} @!%p0 {DONE} 0;", True),
        (f"{COMMIT} {READ} 0; bar.sync 0;", True),
        (f"{COMMIT} {MORE} {COMMIT} @!%p0 {READ} 1; @!%p0 {READ} 0;", True),
        (COMMIT, False),
        ("", False),
        (f"@!%p0 {READ} 0;", False),
        (f"{COMMIT} @%p1 {READ} 0; bar.sync 0;", False),
        (f"{COMMIT} {MORE} {COMMIT} @!%p0 {READ} 1;", False),
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
