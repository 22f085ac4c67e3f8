"""Kernels that attack the emulator: they are refused or stopped, and access no memory outside their own.

`tests.fuzz.core` detects such accesses with sanitizers; here the process must survive.
"""

import random
import time
from typing import Any

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.lowering.loops import Loops
from cudal2_agent.sandbox.emulator.lowering.program import Program, lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Interleaving, Machine, TensorMap, pack_parameters
from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from cudal2_agent.sandbox.emulator.ptx.parser import parse
from tests.sandbox.emulator.launched import kernel, launch

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
SMEM = ".shared .align 1024 .b8 s[2048];"


def lowered(body: str, variables: str = "", outside: str = "", parameters: str = "") -> Program:
    return lower(parse(f"{HEAD}{outside}\n.visible .entry k({parameters})\n{{\n{variables}\n{body}\nret;\n}}\n"), "k")


def run(program: Program, conditions: Conditions, **grid: Any) -> Any:
    return Machine().run(program, Grid(**{"grid": (1, 1, 1), "block": (32, 1, 1), **grid}), conditions)


# ---- lowering ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "given",
    [
        {"outside": ".global .b8 x[4294967296];"},
        {"outside": ".const .b8 x[4000000000];"},
        {"variables": ".shared .b8 x[2000000];"},
        {"variables": ".shared .align 1073741824 .b8 x[16];"},
        {"variables": ".local .b8 x[1000000];"},
        {"parameters": ".param .b8 x[1000000]"},
    ],
)
def test_variables_that_no_gpu_has_room_for_are_unsupported(given: dict[str, str]) -> None:
    with pytest.raises(Unsupported, match="bytes of"):
        lowered("", **given)


@pytest.mark.parametrize("offset", [2**33, -5000])
def test_an_address_past_shared_memory_is_one_of_32_bits(offset: int) -> None:
    away = np.zeros(1, np.uint32)
    body = f"mov.u32 %r1, s; mov.u32 %r2, s+{offset}; sub.u32 %r2, %r2, %r1; st.global.u32 [%a0], %r2;"
    assert launch(kernel(body, 1, SMEM), away, block=(1, 1, 1)).kinds == []
    assert away[0] == offset % 2**32


def test_an_address_of_four_bytes_may_lie_in_the_last_slot() -> None:
    outcome = run(lowered("mbarrier.inval.shared.b64 [%r1];", ".reg .b32 %r<2>;"), Conditions())
    assert [finding.kind for finding in outcome.findings] == ["barrier-misuse"]


def test_thousands_of_loops_are_lowered_in_seconds() -> None:
    loops = "\n".join(f"L{i}: add.u32 %r{i}, %r{i}, 1; @%p bra L{i // 2};" for i in range(1500))
    began = time.monotonic()
    lowered(loops, ".reg .pred %p; .reg .b32 %r<1500>;")
    assert time.monotonic() - began < 20


def test_lives_reach_as_far_as_their_loops_demand() -> None:
    rng = random.Random(0)
    for _ in range(300):
        spans = sorted({tuple(sorted(rng.choices(range(40), k=2))) for _ in range(rng.randint(0, 6))})
        loops = Loops(spans, 40)
        for _ in range(20):
            life = tuple(sorted(rng.choices(range(40), k=2)))
            assert loops.around(*life) == _grown(life, spans, across=False)
            assert loops.across(*life) == _grown(life, spans, across=True)


def _grown(life: tuple[int, ...], spans: list[tuple[int, ...]], *, across: bool) -> tuple[int, int]:
    """The same, one loop after another until nothing changes."""
    start, end = life
    for _ in spans:
        for first, last in spans:
            inside = first <= start and end <= last
            if first <= end and last >= start and not (across and inside):
                start, end = min(start, first), max(end, last)
    return start, end


# ---- the core's memory ------------------------------------------------------------------------------------------------------
def test_an_mbarrier_may_be_invalidated_while_copies_are_to_arrive_at_it() -> None:
    body = """
    mbarrier.init.shared.b64 [s], 64; cp.async.ca.shared.global [s+64], [%a0], 16;
    cp.async.mbarrier.arrive.shared.b64 [s]; mbarrier.inval.shared.b64 [s];
    """
    for interleaving in Interleaving:
        found = launch(kernel(body, 1, SMEM), np.zeros(64, np.uint8), interleaving=interleaving)
        assert (found.kinds, found.stopped) == (["async-race", "barrier-misuse"], False)


def test_a_bulk_copy_within_shared_memory_may_overlap_itself() -> None:
    body = """
    mov.u32 %r1, s; mapa.shared::cluster.u32 %r2, %r1, 0; add.u32 %r3, %r2, 48; add.u32 %r4, %r2, 1024; setp.eq.u32 %p1, %me, 0;
    @%p1 mbarrier.init.shared.b64 [s+1024], 1;
    @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r3], [s], 96, [%r4];
    """
    for interleaving in Interleaving:
        found = launch(kernel(body, 0, SMEM), interleaving=interleaving)
        # Completed immediately, its bytes are unexpected; otherwise the CTA ends before completion.
        last = "transaction-mismatch" if interleaving is Interleaving.EAGER else "async-race"
        assert (found.kinds, found.stopped) == (["uninitialised-read", "missing-proxy-fence", last], False)


def test_a_bulk_copy_to_a_cta_that_no_cluster_has_is_out_of_bounds() -> None:
    body = """
    mov.u32 %r1, s; add.u32 %r2, %r1, 0x80000100; mbarrier.init.shared.b64 [s], 1; fence.proxy.async;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%a0], 64, [%r1];
    """
    assert launch(kernel(body, 1, SMEM), np.zeros(64, np.uint8)).kinds[0] == "shared-out-of-bounds"


def test_warps_may_commit_different_numbers_of_products() -> None:
    sums = ",".join(f"%f{i}" for i in range(4))
    body = f"""
    shr.u32 %r1, %me, 5; setp.ne.u32 %p1, %r1, 3; setp.eq.u32 %p2, %me, %me; mov.b64 %rd1, 0;
    wgmma.fence.sync.aligned;
    @!%p1 bra COMMIT;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{sums}}}, %rd1, %rd1, %p2, 1, 1, 0, 0;
    COMMIT: wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    """
    for interleaving in (Interleaving.EAGER, Interleaving.LATEST):
        assert "divergent" in launch(kernel(body, 0, SMEM), block=(128, 1, 1), interleaving=interleaving).kinds


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_swizzled_boxes_at_the_end_of_shared_memory_stay_in_it(swizzle: int) -> None:
    body = """
    .reg .b32 %x, %y, %z; .reg .b64 %m; mov.u32 %x, 0; mov.u32 %y, s; add.u32 %z, %y, 896; mov.b64 %m, p; cvta.param.u64 %m, %m;
    mbarrier.init.shared.b64 [s], 1; fence.proxy.async;
    cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%z], [%m, {%x}], [%y];
    """
    # Copied without expected bytes, or refused because its rows would lie outside the box.
    for box_bytes, found in ((swizzle, {"transaction-mismatch"}), (16, {"unsupported"})):
        program = lowered(body, f".shared .align 1024 .b8 s[{896 + box_bytes}];", parameters=".param .align 64 .b8 p[128]")
        machine = Machine()
        tensor = machine.map(machine.add("b", np.zeros(64, np.uint16)), TensorMap("f16", (64,), (), (box_bytes // 2,), swizzle))
        grid = Grid((1, 1, 1), (1, 1, 1), parameters=pack_parameters(program, [tensor]))
        outcome = machine.run(program, grid, Conditions(Interleaving.EAGER))
        assert {finding.kind for finding in outcome.findings} == found


# ---- greed ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "cp.async.ca.shared.global [s+64], [%a0], 4;",
        "cp.async.commit_group;",
        "cp.async.bulk.commit_group;",
        "wgmma.commit_group.sync.aligned;",
        "cp.async.mbarrier.arrive.noinc.shared.b64 [s];",
        "mbarrier.init.shared.b64 [s], 1;",
        "cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r1], 16;",
    ],
)
def test_asynchronous_work_without_end_is_stopped_before_it_takes_all_memory(body: str) -> None:
    text = kernel(f"mov.u32 %r1, s+64; mbarrier.init.shared.b64 [s], 1; LOOP: {body} bra LOOP;", 1, SMEM)
    found = launch(text, np.zeros(256, np.uint8), block=(128, 1, 1), races=False, most_instructions=1 << 30)
    assert found.stopped
    assert "unsupported" in found.kinds


@pytest.mark.parametrize(
    ("body", "races"),
    [
        ("LOOP: bra LOOP;", False),
        ("LOOP: bar.sync 0; bra LOOP;", True),
        ("LOOP: st.shared.u32 [s], %me; ld.shared.u32 %r1, [s+4]; bra LOOP;", True),
        ("LOOP: @%p1 bra LOOP; nanosleep.u32 100; bra LOOP;", False),
    ],
)
def test_a_loop_without_end_is_over_at_the_deadline(body: str, races: bool) -> None:
    began = time.monotonic()
    outcome = run(lowered(body, f"{SMEM} .reg .b32 %me, %r<2>; .reg .pred %p<2>;"), Conditions(races=races, deadline_s=0.3))
    assert outcome.stopped
    assert [finding.kind for finding in outcome.findings if not finding.suspect][-1:] == ["deadline"]
    assert time.monotonic() - began < 10


def test_the_greatest_grid_is_refused_at_once() -> None:
    outcome = run(lowered(""), Conditions(), grid=(2**31 - 1, 1, 1))
    assert [finding.kind for finding in outcome.findings] == ["unsupported"]


def test_local_memory_of_a_cluster_is_bounded() -> None:
    program = lowered("", ".local .b8 x[500000];")
    outcome = run(program, Conditions(), grid=(16, 1, 1), cluster=(16, 1, 1), block=(1024, 1, 1))
    assert [finding.kind for finding in outcome.findings] == ["unsupported"]


def test_findings_are_bounded() -> None:
    many = "".join(f"st.shared.u32 [s+{4 * i}], %me; ld.shared.u32 %r1, [s+{4 * i}];" for i in range(400))
    program = lowered(f"{many} LOOP: bra LOOP;", f"{SMEM} .reg .b32 %me, %r<2>;")
    outcome = run(program, Conditions(most_instructions=100_000), block=(256, 1, 1))
    assert 64 < len(outcome.findings) <= 129
    assert "endless" in [finding.kind for finding in outcome.findings]


@pytest.mark.parametrize("races", [False, True])
def test_bulk_copies_without_end_are_over_at_the_deadline(races: bool) -> None:
    body = """
    mov.u32 %r1, s; add.u32 %r2, %r1, 128; mbarrier.init.shared.b64 [s], 1; fence.proxy.async;
    LOOP: mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s], 40960;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%a0], 40960, [%r1];
    bra LOOP;
    """
    began = time.monotonic()
    text = kernel(body, 1, ".shared .align 128 .b8 s[41216];")
    found = launch(text, np.zeros(65536, np.uint8), interleaving=Interleaving.EAGER, races=races, deadline_s=0.3)
    assert "deadline" in found.kinds
    assert time.monotonic() - began < 5
