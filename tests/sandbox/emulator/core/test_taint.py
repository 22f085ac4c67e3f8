"""Taint of old contents of D, workspace, shared and local memory and registers, through every kind of operation.

A kernel here has three buffers: D, an input, and a workspace; D and the workspace are unwritten. %r9 is the address of the
lane's own word of shared memory, %rd13, %rd14 and %rd15 are those of its words of the buffers. %r1 holds old contents of the
workspace, %r2 what the input has.
"""

import re

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.machine import Interleaving
from tests.sandbox.emulator.launched import kernel, launch

OUTPUT, BRANCH, ADDRESS, GUARD, CONTROL = "output", "branch", "address", "guard", "operand"
VARIABLES = ".shared .align 128 .b8 s[4096]; .shared .align 8 .b64 bar; .local .align 8 .b8 l[16]; .reg .b32 %q<20>;"
PROLOGUE = """
mov.u32 %r9, s; mad.lo.u32 %r9, %me, 4, %r9;
mad.lo.u64 %rd13, %wide, 4, %a0; mad.lo.u64 %rd14, %wide, 4, %a1; mad.lo.u64 %rd15, %wide, 4, %a2;
ld.global.u32 %r1, [%rd15]; ld.global.u32 %r2, [%rd14];
"""
STORE = "st.global.u32 [%rd13], %r3;"


def reached(body: str, *, outside: str = "", interleaving: Interleaving = Interleaving.LATEST, block: int = 32) -> set[str]:
    """The findings of old contents in a kernel."""
    d, given, workspace = (np.zeros(1024, np.uint32) for _ in range(3))
    text = outside + kernel(PROLOGUE + body, 3, VARIABLES)
    arrays = (d, given, workspace)
    found = launch(
        text,
        *arrays,
        read_only=(1,),
        unwritten=(0, 2),
        taint=True,
        interleaving=interleaving,
        block=(block, 1, 1),
        deadline_s=20,
    )
    wrong = [finding for finding in found.findings if not finding.suspect]
    assert {finding.kind for finding in wrong} <= {"uninitialised-read"}, [finding.message for finding in wrong]
    places = (re.search(r"reach (?:an|a|the) (\w+)", finding.message) for finding in wrong)
    return {place[1] for place in places if place} | ({OUTPUT} if found.tainted else set())


# ---- what is reached --------------------------------------------------------------------------------------------------------
MAGIC = "setp.eq.u32 %p1, %r1, 0x600D; @%p1 bra SHORT; st.global.u32 [%rd13], %r2; SHORT:"


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ("st.global.u32 [%rd13], %r1;", {OUTPUT}),
        (MAGIC, {BRANCH}),
        ("ld.global.u32 %r1, [%rd13];" + MAGIC, {BRANCH}),
        ("ld.shared.u32 %r1, [%r9];" + MAGIC, {BRANCH}),
        ("ld.local.u32 %r1, [l];" + MAGIC, {BRANCH}),
        (".reg .b32 %never; mov.b32 %r1, %never;" + MAGIC, {BRANCH}),
        ("setp.eq.u32 %p1, %r1, 7; @%p1 st.global.u32 [%rd13], %r2;", {GUARD}),
        ("setp.eq.u32 %p1, %r1, 7; @%p1 exit; st.global.u32 [%rd13], %r2;", {BRANCH}),
        ("and.b32 %r1, %r1, 28; cvt.u64.u32 %rd1, %r1; add.u64 %rd1, %rd1, %a0; st.global.u32 [%rd1], %r2;", {ADDRESS}),
        ("and.b32 %r1, %r1, 28; cvt.u64.u32 %rd1, %r1; add.u64 %rd1, %rd1, %a1; ld.global.u32 %r3, [%rd1];" + STORE, {OUTPUT}),
        ("setp.eq.u32 %p1, %r1, 7; bar.red.popc.u32 %r3, 0, %p1;", {CONTROL}),
        ("and.b32 %r1, %r1, 7; bar.sync %r1, 32;", {CONTROL}),
        ("T: .branchtargets L0, L1; and.b32 %r1, %r1, 1; brx.idx %r1, T; L0: mov.u32 %r2, 1; L1:", {BRANCH}),
    ],
)  # fmt: skip
def test_old_contents_are_told_by_what_they_reach(body: str, where: set[str]) -> None:
    assert reached(body) == where


@pytest.mark.parametrize(
    "through",
    [
        "add.u32 %r3, %r1, %r2;",
        "mul.lo.u32 %r3, %r1, 0;",
        "sub.u32 %r3, %r1, %r1;",
        "not.b32 %r3, %r1;",
        "and.b32 %r3, %r1, 1;",
        "or.b32 %r3, %r1, 1;",
        "lop3.b32 %r3, %r2, %r2, %r1, 0x96;",
        "shr.u32 %r3, %r1, 31;",
        "shl.b32 %r3, 1, %r1;",
        "prmt.b32 %r3, %r2, %r2, %r1;",
        "bfe.u32 %r3, %r1, 8, 4;",
        "bfi.b32 %r3, %r1, %r2, 8, 4;",
        "popc.b32 %r3, %r1;",
        "setp.gt.u32 %p1, %r1, 7; selp.u32 %r3, 1, 2, %p1;",
        "setp.gt.u32 %p1, %r1, 7; setp.gt.or.u32 %p2, %r2, 7, %p1; selp.u32 %r3, 1, 2, %p2;",
        "setp.gt.u32 %p1, %r1, 7; mov.u32 %r3, 1; @%p1 mov.u32 %r3, 2;",
        "setp.gt.u32 %p1, %r1, 7; mov.u32 %r3, 1; @!%p1 ld.global.u32 %r3, [%rd14];",
        "cvt.rn.f32.u32 %f1, %r1; mul.f32 %f1, %f1, 0f00000000; mov.b32 %r3, %f1;",
        "mov.b32 %f1, %r1; max.f32 %f1, %f1, 0f00000000; cvt.rn.f16.f32 %h1, %f1; mov.b32 %r3, {%h1, %h1};",
        "add.cc.u32 %r4, %r1, %r2; addc.u32 %r3, %r2, %r2;",
        "shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;",
        "and.b32 %r4, %r1, 31; shfl.sync.idx.b32 %r3, %r2, %r4, 31, -1;",
        "setp.gt.u32 %p1, %r1, 7; vote.sync.any.pred %p2, %p1, -1; selp.u32 %r3, 1, 2, %p2;",
        "setp.gt.u32 %p1, %r1, 7; vote.sync.ballot.b32 %r3, %p1, -1;",
        "redux.sync.add.u32 %r3, %r1, -1;",
        "match.any.sync.b32 %r3, %r1, -1;",
        "st.shared.u32 [%r9], %r1; ld.shared.u32 %r3, [%r9];",
        "st.local.u32 [l], %r1; ld.local.u32 %r3, [l];",
        "st.shared.u8 [%r9+1], %r1; st.shared.u16 [%r9+2], 0; st.shared.u8 [%r9], 0; ld.shared.u32 %r3, [%r9];",
        "st.shared.u32 [%r9], 0; atom.shared.exch.b32 %r4, [%r9], %r1; ld.shared.u32 %r3, [%r9];",
        "st.shared.u32 [%r9], 0; red.shared.add.u32 [%r9], %r1; ld.shared.u32 %r3, [%r9];",
        "atom.global.add.u32 %r3, [%rd15], 1;",
        "atom.global.exch.b32 %r3, [%rd15], 1;",
        "atom.global.cas.b32 %r3, [%rd15], 1, 2;",
        "st.global.u32 [%rd15], %r1; ld.global.u32 %r3, [%rd15];",
        "st.global.u32 [%rd15], 5; bar.sync 0; setp.eq.u32 %p1, %me, 0; @%p1 discard.global.L2 [%a2], 128; bar.sync 0;"
        "ld.global.u32 %r3, [%rd15];",
        "cp.async.ca.shared.global [%r9], [%rd15], 4; cp.async.wait_all; ld.shared.u32 %r3, [%r9];",
        "and.b32 %r1, %r1, 4; cp.async.ca.shared.global [%r9], [%rd14], 4, %r1; cp.async.wait_all; ld.shared.u32 %r3, [%r9];",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [s];",
        "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r3}, [s];",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r1;",
    ],
)  # fmt: skip
@pytest.mark.parametrize("interleaving", [Interleaving.LATEST, Interleaving.EAGER])
def test_an_output_is_old_whatever_it_was_computed_by(through: str, interleaving: Interleaving) -> None:
    assert reached(through + STORE, interleaving=interleaving) == {OUTPUT}


# ---- what is dropped --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dropped",
    [
        "mov.u32 %r3, %r2;",
        "mov.u32 %r3, %r1; mov.u32 %r3, 1;",
        "st.global.u32 [%rd13], %r1; mov.u32 %r3, 1;",
        "and.b32 %r3, %r1, 0;",
        "or.b32 %r3, %r1, -1;",
        "shl.b32 %r3, %r1, 16; and.b32 %r3, %r3, 0xFFFF;",
        "mov.b32 {%h1, %h2}, %r1; mov.b32 {%h3, %h4}, %r2; mov.b32 %r3, {%h3, %h4};",
        "lop3.b32 %r3, %r1, %r2, %r2, 0xCC;",
        "prmt.b32 %r3, %r1, %r2, 0x7654;",
        "bfi.b32 %r3, %r2, %r1, 0, 32;",
        "cvt.u16.u32 %h1, %r2; cvt.u32.u16 %r3, %h1;",
        "setp.lt.u32 %p1, %me, 40; selp.u32 %r3, %r2, %r1, %p1;",
        "setp.lt.u32 %p1, %me, 40; setp.gt.or.u32 %p2, %r1, 7, %p1; selp.u32 %r3, 1, 2, %p2;",
        "setp.lt.u32 %p1, %me, 40; setp.gt.u32 %p2, %r1, 7; or.pred %p2, %p2, %p1; @!%p2 bra SKIP; SKIP: mov.u32 %r3, 1;",
        "setp.gt.u32 %p1, %me, 40; @%p1 mov.u32 %r2, %r1; mov.u32 %r3, %r2;",
        "setp.eq.u32 %p1, %me, 3; selp.u32 %r4, %r1, %r2, %p1; shfl.sync.idx.b32 %r3, %r4, 7, 31, -1;",
        "st.shared.u32 [%r9], %r1; st.shared.u32 [%r9], %r2; ld.shared.u32 %r3, [%r9];",
        "st.shared.u32 [%r9], %r2; st.shared.u32 [%r9+1024], %r1; ld.shared.u32 %r3, [%r9];",
        "atom.global.add.u32 %r4, [%rd15], 1; mov.u32 %r3, 1;",
        "atom.shared.exch.b32 %r4, [%r9], %r2; ld.shared.u32 %r3, [%r9];",
        "st.shared.u32 [%r9], 0; atom.shared.add.u32 %r3, [%r9], 1;",
        "cp.async.ca.shared.global [%r9], [%rd15], 4, 0; cp.async.wait_all; ld.shared.u32 %r3, [%r9];",
        "cp.async.ca.shared.global [%r9+1024], [%rd15], 4; cp.async.wait_all; mov.u32 %r3, 1;",
        "ld.global.u32 %r4, [%rd15+128]; ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [s]; mov.u32 %r3, 1;",
        "cvt.u64.u32 %rd1, %r1; and.b64 %rd1, %rd1, 60; add.u64 %rd1, %rd1, %a1; ld.global.u32 %r4, [%rd1]; mov.u32 %r3, 1;",
    ],
)  # fmt: skip
@pytest.mark.parametrize("interleaving", [Interleaving.LATEST, Interleaving.EAGER])
def test_old_contents_that_are_dropped_or_overwritten_are_harmless(dropped: str, interleaving: Interleaving) -> None:
    assert reached(dropped + STORE, interleaving=interleaving) == set()


def test_what_nobody_writes_is_no_output() -> None:
    assert reached("ld.global.u32 %r3, [%rd13];") == set()


# ---- fragments --------------------------------------------------------------------------------------------------------------
A, B, C = "{%q0, %q1, %q2, %q3}", "{%q4, %q5}", "{%f0, %f1, %f2, %f3}"
CLEAN = "".join(f"mov.b32 %q{i}, 0;" for i in range(6)) + "".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(4))
MMA = f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {C}, {A}, {B}, {C};"
AT_LANE = "setp.eq.u32 %p1, %me, {lane}; selp.b32 {register}, %r1, 0, %p1;"


def old_sums(register: str, lane: int) -> set[tuple[int, int]]:
    """Elements of an m16n8 product that are tainted if one lane's register is."""
    found = set()
    for index in range(4):
        for each in range(32):
            pick = f"mov.b32 %r3, %f{index}; shfl.sync.idx.b32 %r3, %r3, {each}, 31, -1;"
            made = AT_LANE.format(lane=lane, register="%r4") + f"mov.b32 {register}, %r4;"
            if OUTPUT in reached(CLEAN + made + MMA + pick + STORE):
                found.add((each // 4 + 8 * (index // 2), each % 4 * 2 + index % 2))
    return found


@pytest.mark.parametrize(
    ("register", "lane", "expected"),
    [
        ("%q1", 13, {(8 + 13 // 4, n) for n in range(8)}),
        ("%q2", 0, {(0, n) for n in range(8)}),
        ("%q5", 13, {(m, 13 // 4) for m in range(16)}),
        ("%f3", 13, {(8 + 13 // 4, 13 % 4 * 2 + 1)}),
    ],
)
def test_an_old_fragment_makes_its_row_column_or_sum_old(register: str, lane: int, expected: set[tuple[int, int]]) -> None:
    assert old_sums(register, lane) == expected


# ---- bulk copies ------------------------------------------------------------------------------------------------------------
BULK_LOAD = """
setp.eq.u32 %p3, %me, 0; mov.u32 %r11, s; mov.u32 %r12, bar;
@%p3 mbarrier.init.shared.b64 [%r12], 1; fence.proxy.async; bar.sync 0;
@%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r12], 128;
@%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%SOURCE], 128, [%r12];
AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r12], 0; @!%p2 bra AGAIN;
ld.shared.u32 %r1, [%r9];
"""
BULK_STORE = """
fence.proxy.async; bar.sync 0; setp.eq.u32 %p3, %me, 0; mov.u32 %r11, s;
@%p3 KIND.global.shared::cta.bulk_group.OPERATION [%a0], [%r11], 128;
@%p3 cp.async.bulk.commit_group; @%p3 cp.async.bulk.wait_group 0;
"""
STORED = BULK_STORE.replace("KIND", "cp.async.bulk").replace(".OPERATION", "")
ADDED = BULK_STORE.replace("KIND", "cp.reduce.async.bulk").replace("OPERATION", "add.u32")


@pytest.mark.parametrize("interleaving", [Interleaving.LATEST, Interleaving.EAGER])
@pytest.mark.parametrize(
    ("body", "where"),
    [
        (BULK_LOAD.replace("%SOURCE", "%a2") + MAGIC, {BRANCH}),
        (BULK_LOAD.replace("%SOURCE", "%a0") + MAGIC, {BRANCH}),
        (BULK_LOAD.replace("%SOURCE", "%a2") + "st.global.u32 [%rd13], %r2;", set()),
        (BULK_LOAD.replace("%SOURCE", "%a1") + MAGIC, set()),
        ("st.shared.u32 [%r9], %r1;" + STORED, {OUTPUT}),
        ("st.shared.u32 [%r9], %r2;" + STORED, set()),
        ("st.shared.u32 [%r9], %r2; st.shared.u32 [%r9+128], %r1;" + STORED, set()),
        ("st.shared.u32 [%r9], %r2;" + ADDED, {OUTPUT}),
        ("st.shared.u32 [%r9], %r1; st.global.u32 [%rd13], 0;" + ADDED, {OUTPUT}),
        ("st.shared.u32 [%r9], %r2; st.global.u32 [%rd13], 0; fence.proxy.async;" + ADDED, set()),
        ("st.shared.u32 [%r9], %r1;" + STORED + "bar.sync 0; st.global.u32 [%rd13], %r2;", set()),
    ],
)
def test_bulk_copies_carry_old_contents(body: str, where: set[str], interleaving: Interleaving) -> None:
    assert reached(body, interleaving=interleaving) == where


def test_old_contents_of_another_cta_are_followed() -> None:
    body = """
    mov.u32 %r11, s; mapa.shared::cluster.u32 %r11, %r11, 0; ld.shared::cluster.u32 %r3, [%r11];
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    assert reached(body + STORE) == {OUTPUT}
