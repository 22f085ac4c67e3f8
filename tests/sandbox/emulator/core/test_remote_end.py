"""Accesses to a peer's shared memory: they must be complete when the peer ends, whatever the order of the run."""

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
