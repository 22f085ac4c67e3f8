"""The operations of memory instructions, and the refused forms."""

import pytest

from cudal2_agent.sandbox.emulator.lowering.lowering import Lowering, Operation, width_of
from cudal2_agent.sandbox.emulator.lowering.mentions import mentions_of
from cudal2_agent.sandbox.emulator.lowering.rules.memory import RULES
from cudal2_agent.sandbox.emulator.lowering.slots import SlotFile, lives_of
from cudal2_agent.sandbox.emulator.lowering.table import Semantics, Space
from cudal2_agent.sandbox.emulator.ptx.module import Unsupported
from tests.sandbox.emulator.ptx.small_ptx import module

_DECLARED = (
    ".reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .b16 %h<9>; .reg .f64 %fd<4>; .reg .b128 %q<2>;"
    ".shared .align 16 .b8 tile[64]; .local .align 8 .b8 depot[32];"
)
_WEAK, _RELAXED, _ACQUIRE, _RELEASE, _BOTH = Semantics


def lowered(text: str) -> tuple[Lowering, list[Operation]]:
    """The operations of one instruction, of a kernel with a shared tile, a depot, a table of constants and a counter."""
    variables = ".const .align 4 .b32 table[4] = {1, 2, 3, 4};\n.global .align 4 .b32 counter;\n"
    function = module(f"{variables}.visible .entry k(.param .u64 k_param_0)\n{{\n{_DECLARED}\n{text}\n}}\n").functions["k"]
    sizes = {name: width_of(kind) for name, kind in function.registers.items()}
    lowering = Lowering(
        function=function,
        slots=SlotFile(sizes, lives_of(function, mentions_of(function), ())),
        shared={"tile": 1024},
        globals={"table": 0x1000, "counter": 0x2000},
        parameters={"k_param_0": 0},
        local={"depot": 0},
    )
    (lowering.current,) = function.instructions
    RULES[lowering.current.parts[0]](lowering, lowering.current)
    return lowering, lowering.operations


def one(text: str) -> Operation:
    (operation,) = lowered(text)[1]
    return operation


@pytest.mark.parametrize(
    ("text", "handler"),
    [
        ("ld.global.u32 %r1, [%rd1];", "ld.u32.b32.a64"),
        ("ld.global.s32 %r1, [%rd1];", "ld.u32.b32.a64"),
        ("ld.global.f32 %f1, [%rd1];", "ld.u32.b32.a64"),
        ("ld.global.f32 %rd2, [%rd1];", "ld.u32.b64.a64"),
        ("ld.shared.s8 %r1, [%r2];", "ld.s8.b32.a32"),
        ("ld.shared.u8 %h1, [%r2];", "ld.u8.b16.a32"),
        ("ld.shared.b8 %h1, [%rd2];", "ld.u8.b16.a64"),
        ("ld.s16 %rd1, [%rd2];", "ld.s16.b64.a64"),
        ("ld.global.b128 %q1, [%rd2];", "ld.u128.b128.a64"),
        ("ld.global.v4.u16 {%r1, %r2, %r3, %r4}, [%rd1];", "ld.u16.b32.a64"),
        ("ldu.global.f64 %fd1, [%rd1];", "ld.u64.b64.a64"),
        ("st.global.u8 [%rd1], %r1;", "st.b8.b32.a64"),
        ("st.shared.v2.f32 [%r1], {%f1, %f2};", "st.b32.b32.a32"),
        ("st.shared.f64 [tile+8], 0d3FF0000000000000;", "st.b64.b64.a32"),
        ("atom.shared.add.u32 %r1, [%r2], %r3;", "atom.add.u32.a32"),
        ("atom.add.acq_rel.gpu.s32 %r1, [%rd1], -4;", "atom.add.s32.a64"),
        ("red.global.add.noftz.bf16x2 [%rd1], %r1;", "atom.add.bf16x2.a64"),
        ("red.global.v4.f16.min.noftz [%rd1], {%h1, %h2, %h3, %h4};", "atom.min.f16.a64"),
        ("red.global.max.noftz.L2::cache_hint.v2.f16x2 [%rd1], {%r1, %r2}, %rd2;", "atom.max.f16x2.a64"),
        ("atom.global.cas.b16 %h1, [%rd1], 1, 2;", "atom.cas.b16.a64"),
    ],
)
def test_handlers(text: str, handler: str) -> None:
    assert one(text).handler == handler


@pytest.mark.parametrize(
    ("text", "space", "semantics", "own"),
    [
        ("ld.global.nc.L1::no_allocate.L2::128B.u32 %r1, [%rd1];", Space.GLOBAL, _WEAK, 0),
        ("ld.global.cg.L2::cache_hint.u32 %r1, [%rd1], %rd2;", Space.GLOBAL, _WEAK, 0),
        ("ld.u32 %r1, [%rd1];", Space.GENERIC, _WEAK, 0),
        ("ld.shared.u32 %r1, [%r2];", Space.SHARED, _WEAK, 1),
        ("ld.volatile.shared::cta.u32 %r1, [%r2];", Space.SHARED, _RELAXED, 1),
        ("ld.shared::cluster.u32 %r1, [%r2];", Space.SHARED, _WEAK, 0),
        ("ld.param.u64 %rd1, [k_param_0];", Space.PARAM, _WEAK, 0),
        ("ld.const.u32 %r1, [table+4];", Space.CONST, _WEAK, 0),
        ("ld.local.u32 %r1, [depot];", Space.LOCAL, _WEAK, 0),
        ("ld.acquire.gpu.global.u32 %r1, [%rd1];", Space.GLOBAL, _ACQUIRE, 0),
        ("ld.relaxed.sys.u32 %r1, [%rd1];", Space.GENERIC, _RELAXED, 0),
        ("st.release.gpu.global.u32 [%rd1], %r1;", Space.GLOBAL, _RELEASE, 0),
        ("st.mmio.relaxed.sys.global.u32 [%rd1], %r1;", Space.GLOBAL, _RELAXED, 0),
        ("st.global.wt.u32 [counter], 1;", Space.GLOBAL, _WEAK, 0),
        ("atom.global.add.u32 %r1, [%rd1], 1;", Space.GLOBAL, _RELAXED, 0),
        ("red.release.gpu.global.add.u32 [%rd1], 1;", Space.GLOBAL, _RELEASE, 0),
        ("atom.acq_rel.cta.shared::cluster.add.u32 %r1, [%r2], 1;", Space.SHARED, _BOTH, 0),
    ],
)
def test_space_and_order(text: str, space: Space, semantics: int, own: int) -> None:
    given = one(text).operands
    assert (given["space"], given["semantics"], given["own_shared"]) == (space, semantics, own)


def test_an_offset_wraps_to_64_bits() -> None:
    assert one("ld.global.u32 %r1, [%rd1+-16];").operands["address"].offset == -16
    assert one("ld.global.u32 %r1, [%rd1+18446744073709551600];").operands["address"].offset == -16


def test_values_stand_in_the_list_in_their_order() -> None:
    lowering, (operation,) = lowered("st.global.v4.b32 [%rd1], {%r1, 7, %r2, %r1};")
    first, second, third, fourth = operation.operands["values"]
    assert first == fourth == lowering.slots.register("%r1")
    assert (second, third) == (lowering.slots.constant(7, 4), lowering.slots.register("%r2"))


def test_results_operands_and_swaps_stand_in_the_list() -> None:
    lowering, (operation,) = lowered("atom.global.cas.b32 %r1, [%rd1], %r2, %r3;")
    given = [operation.operands[name] for name in ("results", "operands", "replacements")]
    assert given == [[lowering.slots.register(f"%r{i}")] for i in (1, 2, 3)]


def test_a_vector_reduction_has_as_many_results_as_operands() -> None:
    operation = one("red.global.add.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};")
    results, operands = operation.operands["results"], operation.operands["operands"]
    assert len(results) == len(operands) == 4
    assert set(results).isdisjoint(operands)


def test_advice_does_nothing() -> None:
    assert lowered("applypriority.global.L2::evict_normal [%rd1], 128;")[1] == []


@pytest.mark.parametrize(
    ("text", "handler", "space"),
    [
        ("prefetch.global.L2::evict_last [%rd1+8];", "prefetch", Space.GLOBAL),
        ("prefetchu.L1 [%rd1];", "prefetch", Space.GENERIC),
        ("prefetch.tensormap [%rd1];", "prefetch.map", Space.GENERIC),
    ],
)
def test_a_prefetch_is_looked_at(text: str, handler: str, space: Space) -> None:
    operation = one(text)
    assert (operation.handler, operation.operands["space"]) == (handler, space)


def test_a_policy_is_some_number() -> None:
    lowering, (operation,) = lowered("createpolicy.fractional.L2::evict_first.b64 %rd1, 1.0;")
    assert operation.operands["result"] == lowering.slots.register("%rd1")


def test_addresses_of_peers() -> None:
    assert one("mapa.shared::cluster.u32 %r1, tile, %r2;").handler == "mapa.u32"
    assert one("mapa.u64 %rd1, %rd2, 1;").handler == "mapa.u64"
    assert one("getctarank.shared::cluster.u32 %r1, %r2;").handler == "getctarank.u32"
    assert one("getctarank.u64 %r1, %rd2;").handler == "getctarank.u64"


@pytest.mark.parametrize(
    "text",
    [
        "ld;",
        "ld.global.u32 %r1;",
        "ld.global.u32 %r1, [%rd1], %rd2;",
        "ld.global.u32 %r1, %rd1;",
        "ld.global.L2::cache_hint.u32 %r1, [%rd1];",
        "ld.global.wrong.u32 %r1, [%rd1];",
        "ld.global.u24 %r1, [%rd1];",
        "ld.global.f16 %h1, [%rd1];",
        "ld.global.u64 %r1, [%rd1];",
        "ld.global.u32 %p1, [%rd1];",
        "ld.global.b128 %rd1, [%rd1];",
        "ld.global.u32 %q1, [%rd1];",
        "ld.global.u32 %r1, [%h1];",
        "ld.global.v2.u32 {%r1, %r2, %r3}, [%rd1];",
        "ld.global.v2.u32 {%r1, %rd2}, [%rd1];",
        "ld.global.v2.u32 %r1, [%rd1];",
        "ld.global.u32 {%r1, %r2}, [%rd1];",
        "ld.global.v8.b64 {%rd1, %rd1, %rd1, %rd1, %rd1, %rd1, %rd1, %rd1}, [%rd1];",
        "ld.global.u32 7, [%rd1];",
        "ld.param::func.u32 %r1, [%rd1];",
        "ld.shared.u32 %r1, [counter];",
        "ld.u32 %r1, [tile];",
        "ld.local.u32 %r1, [k_param_0];",
        "ld.global.u32 %r1, [k];",
        "st.param.u64 [k_param_0], %rd1;",
        "st.const.u32 [table], 1;",
        "st.global.u32 [%rd1], _;",
        "st.global.u32 [%rd1], %p1;",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [%r1], %r2, [%r3];",
        "atom;",
        "atom.u32 %r1, [%rd1], 1;",
        "atom.global.add.s64 %rd1, [%rd1], 1;",
        "atom.global.inc.s32 %r1, [%rd1], 1;",
        "atom.global.and.b128 %q1, [%rd1], %q1;",
        "atom.global.cas.b32 %r1, [%rd1], 1;",
        "atom.global.sub.u32 %r1, [%rd1], 1;",
        "atom.global.add.f16x2 %r1, [%rd1], %r2;",
        "atom.global.add.noftz.f32 %f1, [%rd1], %f2;",
        "atom.global.min.noftz.f16x2 %r1, [%rd1], %r2;",
        "atom.global.add.v8.f32 {%f1}, [%rd1], {%f1};",
        "atom.shared.add.v2.f32 {%f1, %f2}, [%r1], {%f1, %f2};",
        "atom.global.v2.add.u32 {%r1, %r2}, [%rd1], {%r1, %r2};",
        "atom.local.add.u32 %r1, [%rd1], 1;",
        "atom.global.add.u32 %rd1, [%rd1], 1;",
        "atom.global.add.sat.u32 %r1, [%rd1], 1;",
        "atom.global.ex.ch.b32 %r1, [%rd1], 1;",
        "atom.global.add.u32.s32 %r1, [%rd1], 1;",
        "atom.noftz.f16 %h1, [%rd1], %h2;",
        "discard.global.L2 [%r1], 128;",
        "discard.global.L1 [%rd1], 128;",
        "discard.global.L2;",
        "createpolicy.fractional.L2::evict_first.b64;",
        "mapa;",
        "mapa.u32 %r1, %r2, %r3;",
        "mapa.u64 %rd1, tile, 1;",
        "mapa.shared::cluster.u32 %r1, counter, 1;",
        "mapa.shared::cluster.u32 %r1, %r2;",
        "getctarank;",
        "getctarank.shared::cluster.u32 %rd1, %r2;",
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(Unsupported):
        lowered(text)
