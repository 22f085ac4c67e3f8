"""States of mbarriers and visibility through the cluster's barrier: violations, and the nearest valid uses."""

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.machine import Interleaving
from tests.sandbox.emulator.launched import Launched, kernel, launch

_INTERLEAVINGS = (Interleaving.LATEST, Interleaving.EAGER, Interleaving.RANDOM)


def _script(steps: str) -> tuple[Launched, list[int]]:
    """One thread at an mbarrier with three expected arrivals; %r4 and up hold its results."""
    out = np.zeros(4, "u4")
    body = "mov.u32 %r0, bar; mbarrier.init.shared.b64 [%r0], 3;" + steps + "st.global.v4.u32 [%a0], {%r4, %r5, %r6, %r7};"
    text = kernel(body, 1, ".shared .align 8 .b64 bar; mov.u32 %r4, 0; mov.u32 %r5, 0; mov.u32 %r6, 0; mov.u32 %r7, 0;")
    return launch(text, out, block=(1, 1, 1)), out.tolist()


def test_a_state_holds_what_was_outstanding_before_its_arrivals() -> None:
    launched, answers = _script(
        "mbarrier.arrive.shared.b64 %rd0, [%r0], 2; mbarrier.arrive.shared.b64 %rd1, [%r0];"
        "mbarrier.arrive.shared.b64 %rd2, [%r0];"
        "mbarrier.pending_count.b64 %r4, %rd0; mbarrier.pending_count.b64 %r5, %rd1; mbarrier.pending_count.b64 %r6, %rd2;"
    )
    assert launched.findings == ()
    assert answers[:3] == [3, 1, 3]


def test_bits_of_any_register_are_a_state() -> None:
    launched, answers = _script("mov.b64 %rd0, 0xFFFFFFFFFFFFFFFF; mbarrier.pending_count.b64 %r4, %rd0;")
    assert launched.findings == ()
    assert answers[0] == (1 << 20) - 1


@pytest.mark.parametrize(("count", "kinds"), [(2, []), (3, ["barrier-misuse"])])
def test_an_arrival_without_completion_may_not_complete_the_phase(count: int, kinds: list[str]) -> None:
    launched, _ = _script(f"mbarrier.arrive.noComplete.shared.b64 %rd0, [%r0], {count};")
    assert launched.kinds == kinds


@pytest.mark.parametrize("interleaving", _INTERLEAVINGS)
@pytest.mark.parametrize(("fence", "raced"), [("", True), ("fence.acq_rel.cluster;", False)])
def test_a_relaxed_arrival_at_the_cluster_publishes_what_a_fence_came_after(
    fence: str, raced: bool, interleaving: Interleaving
) -> None:
    """Every CTA writes its own slot and reads the other's."""
    out = np.zeros(64, "u4")
    body = (
        "mov.u32 %r0, slots; mad.lo.u32 %r0, %me, 4, %r0; st.shared.u32 [%r0], %me;"
        f"{fence} barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"
        "mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; mapa.shared::cluster.u32 %r3, %r0, %r2;"
        "ld.shared::cluster.u32 %r4, [%r3]; mad.lo.u32 %r5, %r1, 32, %me; mad.wide.u32 %rd0, %r5, 4, %a0;"
        "st.global.u32 [%rd0], %r4;"
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    )
    text = kernel(body, 1, ".shared .align 4 .b8 slots[128];")
    launched = launch(text, out, grid=(2, 1, 1), cluster=(2, 1, 1), interleaving=interleaving)
    assert set(launched.kinds) == ({"shared-race"} if raced else set())
    if not raced:
        assert out.tolist() == [*range(32), *range(32)]


@pytest.mark.parametrize(("cluster", "explicit"), [((1, 1, 1), 0), ((2, 1, 1), 1)])
def test_a_cluster_is_explicit_where_the_launch_names_one(cluster: tuple[int, int, int], explicit: int) -> None:
    out = np.full(1, 7, "u4")
    body = (
        "mov.pred %p0, %is_explicit_cluster; selp.u32 %r0, 1, 0, %p0; setp.eq.u32 %p1, %me, 0; @%p1 st.global.u32 [%a0], %r0;"
    )
    text = kernel(body, 1)
    assert launch(text, out, grid=(2, 1, 1), cluster=cluster, races=False).findings == ()
    assert out.tolist() == [explicit]
