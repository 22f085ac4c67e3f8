"""Prefetches reach only the launch's own buffers, to the end of a line; a tensor map is one of the kernel's parameters."""

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.lowering.program import lower
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Interleaving, Machine, TensorMap, pack_parameters
from cudal2_agent.sandbox.emulator.ptx.parser import parse
from tests.sandbox.emulator.launched import HEADER, kernel, launch

BYTES = 1000  # of the buffer: its last line is not full
LINES = ("prefetch.global.L2", "prefetch.global.L1", "prefetch.L2", "prefetch.global.L2::evict_last", "prefetchu.L1")
OUT = ["global-out-of-bounds"]


def kinds(body: str) -> list[str]:
    return launch(kernel(body, 1, ".shared .align 16 .b8 s[64];"), np.zeros(BYTES, np.uint8), read_only=(0,)).kinds


@pytest.mark.parametrize("what", LINES)
@pytest.mark.parametrize(
    ("offset", "expected"), [(0, []), (999, []), (1023, []), (1024, OUT), (1 << 21, OUT), (-1, OUT), (-(1 << 30), OUT)]
)
def test_a_line_is_one_that_a_buffer_has_a_part_of(what: str, offset: int, expected: list[str]) -> None:
    assert kinds(f"{what} [%a0+{offset}];") == expected


def test_each_lane_is_looked_at() -> None:
    strided = "mad.lo.u64 %a1, %wide, {}, %a0; prefetch.global.L2 [%a1];"
    assert kinds(strided.format(32)) == []
    found = launch(kernel(strided.format(64), 1), np.zeros(BYTES, np.uint8)).findings
    assert [(each.kind, each.count) for each in found] == [("global-out-of-bounds", 16)]
    assert "prefetch of 1 bytes, from byte 1024 of b0, which has 1000" in found[0].message


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [(0, 992, []), (0, 1024, []), (0, 1040, OUT), (512, 512, []), (512, 528, OUT), (1024, 16, OUT), (-16, 32, OUT), (0, 0, [])],
)
def test_a_bulk_prefetch_keeps_to_one_buffer(offset: int, size: int, expected: list[str]) -> None:
    for hint, policy in (("", ""), (".L2::cache_hint", ", %rd1")):
        body = f"mov.u64 %rd1, 0; cp.async.bulk.prefetch.L2.global{hint} [%a0+{offset}], {size}{policy};"
        assert kinds(body) == expected
    assert kinds("cp.async.bulk.prefetch.L2.global [%a0+8], 16;") == ["misaligned"]


def test_what_is_no_global_memory_is_not_prefetched() -> None:
    shared = "mov.u32 %r1, s; cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd1, %rd1; prefetch.L1 [%rd1];"
    assert kinds(shared) == []
    assert kinds("cvta.local.u64 %rd1, 0; prefetch.local.L1 [%rd1];") == []


# ---- tensor maps ------------------------------------------------------------------------------------------------------------
REGISTERS = ".reg .b64 %m<3>; .reg .b32 %r<4>; mov.u32 %r1, 0; mov.b64 %m0, p; cvta.param.u64 %m1, %m0; ld.param.u64 %m2, [q];"
USES = {
    "prefetch": "prefetch.tensormap [{map}];",
    "prefetch of a box": "cp.async.bulk.prefetch.tensor.1d.L2.global.tile [{map}, {{%r1}}];",
    "load": "mov.u32 %r2, s; mov.u32 %r3, s+512; mbarrier.init.shared.b64 [%r3], 1; fence.proxy.async;"
    "mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 32;"
    "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [{map}, {{%r1}}], [%r3];",
    "store": "mov.u32 %r2, s; cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [{map}, {{%r1}}], [%r2];"
    "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
}
TO_GLOBAL = "ld.param.b64 %m1, [p]; st.global.u64 [%m2], %m1; ld.param.b64 %m1, [p+8]; st.global.u64 [%m2+8], %m1;"


def with_map(body: str) -> set[str]:
    """A kernel with a tensor map `p` between pointers `o` and `q`, which points to 256 bytes that it may write."""
    parameters = ".param .u64 o, .param .align 64 .b8 p[128], .param .u64 q"
    text = f".visible .entry k({parameters}) {{ .shared .align 128 .b8 s[1024]; {REGISTERS} {body} ret; }}"
    program, machine = lower(parse(HEADER + text), "k"), Machine()
    tensor = machine.map(machine.add("b", np.zeros(64, np.uint16), writable=True), TensorMap("f16", (64,), (), (16,)))
    room = machine.add("room", np.zeros(256, np.uint8), writable=True).to_bytes(8, "little")
    grid = Grid((1, 1, 1), (1, 1, 1), parameters=pack_parameters(program, [room, tensor, room]))
    outcome = machine.run(program, grid, Conditions(Interleaving.EAGER))
    return {finding.kind for finding in outcome.findings if not finding.suspect}


@pytest.mark.parametrize("use", USES)
def test_a_map_is_exactly_a_parameter(use: str) -> None:
    right = USES[use].format(map="%m1")
    assert with_map(right) == set()
    for wrong in ("%m1+64", "%m1+128", "%m1+-64", "%m1+4096", "%m2", "%m0"):
        assert with_map(USES[use].format(map=wrong)) >= {"tensor-map"}, wrong


@pytest.mark.parametrize("use", USES)
def test_a_copy_of_a_map_is_none(use: str) -> None:
    """Its bytes cannot be read either, so that no kernel knows the emulator by them."""
    assert "tensor-map" in with_map(f"{TO_GLOBAL} fence.proxy.async; {USES[use].format(map='%m2')}")
    assert with_map("ld.param.b32 %r1, [p+124]; st.global.u32 [%m2], %r1;") == {"tensor-map"}
    assert with_map("ld.param.b64 %m0, [q]; ld.param.b64 %m0, [o]; st.global.u64 [%m2], %m0;") == set()


def test_a_prefetch_of_a_box_beyond_the_tensor_takes_nothing() -> None:
    assert with_map("mov.u32 %r1, 4096; " + USES["prefetch of a box"].format(map="%m1")) == set()


def test_a_parameter_may_be_named_by_its_space() -> None:
    assert with_map("prefetch.param.tensormap [p];") == set()
    assert with_map("prefetch.param.tensormap [q];") == {"tensor-map"}
