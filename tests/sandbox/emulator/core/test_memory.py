"""Loads and stores in every space: values bit for bit, bounds, alignment, permission, order."""

from typing import Any

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.machine import Interleaving
from tests.sandbox.emulator.launched import Array, kernel, launch

RANDOM = np.random.default_rng(20)


def words(count: int) -> Array:
    return RANDOM.integers(0, 2**32, count, dtype=np.uint32)


@pytest.mark.parametrize("races", [True, False])
@pytest.mark.parametrize("space", ["global", "generic", "shared", "generic shared", "local"])
@pytest.mark.parametrize(("vector", "kind"), [("", "b8"), ("", "b16"), ("v2.", "b16"), ("v4.", "b32"), ("v2.", "b64")])
def test_what_is_stored_is_loaded(space: str, vector: str, kind: str, races: bool) -> None:
    count, size = int(vector[1:2] or 1), int(kind[1:]) // 8
    register = {1: "%h", 2: "%h", 4: "%r", 8: "%rd"}[size]
    items = ",".join(f"{register}{i}" for i in range(count))
    mirrored = ",".join(f"{register}{i}" for i in reversed(range(count)))
    items, mirrored = (f"{{{items}}}", f"{{{mirrored}}}") if count > 1 else (items, mirrored)
    step = count * size
    through = {
        "global": ("", "global.", "[%a2]"),
        "generic": ("", "", "[%a2]"),
        "shared": (f"mov.u32 %r10, tile; mad.lo.u32 %r10, %me, {step}, %r10;", "shared.", "[%r10]"),
        "generic shared": (
            f"mov.u64 %rd10, tile; cvta.shared.u64 %rd10, %rd10; mad.lo.u64 %rd10, %wide, {step}, %rd10;",
            "",
            "[%rd10]",
        ),
        "local": ("", "local.", "[depot+16]"),
    }
    setup, qualifier, address = through[space]
    body = f"""
    mad.lo.u64 %a0, %wide, {step}, %a0; mad.lo.u64 %a1, %wide, {step}, %a1; mad.lo.u64 %a2, %wide, {step}, %a2; {setup}
    ld.global.{vector}{kind} {items}, [%a0];
    st.{qualifier}{vector}{kind} {address}, {items};
    ld.{qualifier}{vector}{kind} {mirrored}, {address};
    st.global.{vector}{kind} [%a1], {items};
    """
    given = np.frombuffer(RANDOM.bytes(32 * step), dtype=f"u{size}").copy()
    got, between = np.zeros_like(given), np.zeros_like(given)
    variables = ".shared .align 16 .b8 tile[512]; .local .align 16 .b8 depot[32];"
    found = launch(kernel(body, 3, variables), given, got, between, read_only=(0,), unwritten=(1, 2), races=races)
    assert found.kinds == []
    np.testing.assert_array_equal(got.reshape(32, count), given.reshape(32, count)[:, ::-1])


@pytest.mark.parametrize("register", [16, 32, 64])
@pytest.mark.parametrize("kind", ["u8", "s8", "b8", "u16", "s16", "u32", "s32"])
def test_a_narrow_load_fills_its_register(kind: str, register: int) -> None:
    size = int(kind[1:]) // 8
    if 8 * size > register:
        pytest.skip("a register too narrow for the type")
    name = {16: "%h1", 32: "%r1", 64: "%rd1"}[register]
    body = f"""
    mad.lo.u64 %a0, %wide, {size}, %a0; mad.lo.u64 %a1, %wide, {register // 8}, %a1;
    ld.global.{kind} {name}, [%a0]; st.global.b{register} [%a1], {name};
    """
    given = np.frombuffer(RANDOM.bytes(32 * size), dtype=f"{'i' if kind[0] == 's' else 'u'}{size}").copy()
    got = np.zeros(32, dtype=f"u{register // 8}")
    assert launch(kernel(body, 2), given, got).kinds == []
    wide = given.astype(f"i{register // 8}").view(got.dtype) if kind[0] == "s" else given.astype(got.dtype)
    np.testing.assert_array_equal(got, wide)


def test_a_narrow_store_takes_the_low_bits_and_leaves_its_neighbours() -> None:
    given, got = words(32), np.full(64, 0xEE, np.uint8)
    body = "mad.lo.u64 %a0, %wide, 4, %a0; mad.lo.u64 %a1, %wide, 2, %a1; ld.global.u32 %r1, [%a0]; st.global.u8 [%a1+1], %r1;"
    assert launch(kernel(body, 2), given, got).kinds == []
    np.testing.assert_array_equal(got.reshape(32, 2), np.stack([np.full(32, 0xEE), given & 0xFF], axis=1))


def test_the_address_may_lie_in_a_register_of_the_result() -> None:
    given = np.arange(64, dtype=np.uint64)
    got = np.zeros(64, np.uint64)
    body = """
    mad.lo.u64 %rd1, %wide, 16, %a0; mad.lo.u64 %a1, %wide, 16, %a1;
    ld.global.v2.u64 {%rd2, %rd1}, [%rd1]; st.global.v2.u64 [%a1], {%rd2, %rd1};
    """
    assert launch(kernel(body, 2), given, got).kinds == []
    np.testing.assert_array_equal(got, given)


def test_lanes_that_are_not_asked_do_nothing() -> None:
    got = np.zeros(32, np.uint32)
    body = """
    and.b32 %r1, %me, 1; setp.eq.u32 %p1, %r1, 1; mad.lo.u64 %a0, %wide, 4, %a0;
    @%p1 st.global.u32 [%a0], 7; @!%p1 st.global.u32 [%rd9], 7;
    """
    with_bad_lanes = launch(kernel("mov.u64 %rd9, 0;" + body, 1), got)
    assert with_bad_lanes.kinds == ["global-out-of-bounds"]
    assert with_bad_lanes.findings[0].count == 16
    np.testing.assert_array_equal(got, np.arange(32) % 2 * 7)


def test_a_constant_of_the_module_is_read_and_not_written() -> None:
    table = ".const .align 4 .b32 table[4] = {11, 22, 33, 44};\n"
    got = np.zeros(32, np.uint32)
    body = """
    and.b32 %r1, %me, 1; cvt.u64.u32 %rd1, %r1; mov.u64 %rd2, table; mad.lo.u64 %rd2, %rd1, 4, %rd2;
    ld.const.u32 %r2, [%rd2+4]; ld.const.u32 %r3, [table+12]; add.u32 %r2, %r2, %r3;
    mad.lo.u64 %a0, %wide, 4, %a0; st.global.u32 [%a0], %r2;
    """
    assert launch(table + kernel(body, 1), got).kinds == []
    np.testing.assert_array_equal(got, np.where(np.arange(32) % 2, 33, 22) + 44)
    written = launch(table + kernel("mov.u64 %rd2, table; st.global.u32 [%rd2], 1;", 1), got)
    assert written.kinds == ["input-written"]


@pytest.mark.parametrize("races", [True, False])
@pytest.mark.parametrize(
    ("statement", "kind", "lanes"),
    [
        ("st.global.u32 [%a0], 5;", "input-written", 0xFFFFFFFF),
        ("ld.global.u32 %r2, [%a1+4];", "global-out-of-bounds", 0x80000000),
        ("ld.global.u32 %r2, [%a1+-4];", "global-out-of-bounds", 0x00000001),
        ("ld.global.v2.u32 {%r2, %r3}, [%a1];", "misaligned", None),
        ("st.u16 [%a1+1], 5;", "misaligned", 0xFFFFFFFF),
        ("ld.u32 %r2, [%rd19];", "global-out-of-bounds", 0xFFFFFFFF),
        ("st.local.u32 [%rd19], 1;", "local-out-of-bounds", 0xFFFFFFFF),
        ("ld.local.u32 %r2, [depot+29];", "local-out-of-bounds", 0xFFFFFFFF),
        ("ld.local.u32 %r2, [depot+27];", "misaligned", 0xFFFFFFFF),
        ("ld.param.u64 %rd2, [p1+1];", "param-out-of-bounds", 0xFFFFFFFF),
        ("ld.shared.u32 %r2, [tile+64];", "shared-out-of-bounds", 0xFFFFFFFF),
        ("st.shared.u32 [tile+-4], 1;", "shared-out-of-bounds", 0xFFFFFFFF),
        ("st.shared.v4.u32 [tile+8], {1, 1, 1, 1};", "misaligned", 0xFFFFFFFF),
        ("mov.u32 %r1, 16778240; st.shared.u32 [%r1], 1;", "shared-out-of-bounds", 0xFFFFFFFF),
        ("mov.u32 %r1, 16778240; st.shared::cluster.u32 [%r1], 1;", "shared-out-of-bounds", 0xFFFFFFFF),
        ("mov.u32 %r1, -1; ld.shared.b64 %rd2, [%r1+1];", "shared-out-of-bounds", 0xFFFFFFFF),
        ("red.global.add.u32 [%a0], 1;", "input-written", 0xFFFFFFFF),
        ("atom.global.add.u32 %r1, [%a1+2], 1;", "misaligned", None),
        ("mov.u32 %r1, 4092; atom.shared.add.u32 %r2, [%r1], 1;", "shared-out-of-bounds", 0xFFFFFFFF),
    ],
)
def test_what_reaches_outside_is_reported_and_not_done(statement: str, kind: str, lanes: int | None, races: bool) -> None:
    """Lane i has word i of both buffers; %rd19 has every bit."""
    variables = ".shared .align 16 .b8 tile[64]; .local .align 8 .b8 depot[32];"
    first, second = words(32), words(32)
    kept = first.copy(), second.copy()
    body = f"mov.u64 %rd19, -1; mad.lo.u64 %a0, %wide, 4, %a0; mad.lo.u64 %a1, %wide, 4, %a1; {statement}"
    found = launch(kernel(body, 2, variables), first, second, read_only=(0,), races=races)
    assert kind in found.kinds
    if lanes is not None:
        (finding,) = found.findings
        assert finding.count == lanes.bit_count()
        assert finding.lanes & ~lanes == 0
    np.testing.assert_array_equal(first, kept[0])
    np.testing.assert_array_equal(second, kept[1])


def test_a_read_that_must_not_be_made_gives_poison() -> None:
    got = np.zeros(64, np.uint32)
    body = """
    mad.lo.u64 %a1, %wide, 8, %a1; mov.u64 %rd1, 0;
    ld.global.u8 %r1, [%rd1]; ld.global.s16 %r2, [%rd1]; st.global.v2.u32 [%a1], {%r1, %r2};
    """
    assert set(launch(kernel(body, 2), words(1), got).kinds) == {"global-out-of-bounds"}
    np.testing.assert_array_equal(got.reshape(32, 2), np.tile(np.array([0xFF, 0xFFFFFFFF], np.uint32), (32, 1)))


def test_shared_memory_that_nobody_wrote_is_suspect() -> None:
    got = np.zeros(32, np.uint32)
    body = "ld.shared.u32 %r1, [tile]; mad.lo.u64 %a0, %wide, 4, %a0; st.global.u32 [%a0], %r1;"
    found = launch(kernel(body, 1, ".shared .align 16 .b8 tile[64];"), got)
    assert found.kinds == ["uninitialised-read"]
    assert found.findings[0].suspect
    assert (got == 0xFFFFFFFF).all()


_TURN = "mov.u32 %r9, tile; mad.lo.u32 %r1, %me, 4, %r9; xor.b32 %r2, %me, 32; mad.lo.u32 %r2, %r2, 4, %r9;"
_TILE = ".shared .align 16 .b8 tile[256];"


@pytest.mark.parametrize("interleaving", list(Interleaving))
def test_what_another_warp_wrote_is_read_behind_a_barrier(interleaving: Interleaving) -> None:
    got = np.zeros(64, np.uint32)
    body = f"""
    {_TURN} st.shared.u32 [%r1], %me; bar.sync 0; ld.shared.u32 %r3, [%r2];
    mad.lo.u64 %a0, %wide, 4, %a0; st.global.u32 [%a0], %r3;
    """
    assert launch(kernel(body, 1, _TILE), got, block=(64, 1, 1), interleaving=interleaving).kinds == []
    np.testing.assert_array_equal(got, np.arange(64) ^ 32)


def test_what_another_warp_wrote_is_a_race_without_one() -> None:
    body = f"{_TURN} st.shared.u32 [%r1], %me; ld.shared.u32 %r3, [%r2];"
    assert "shared-race" in launch(kernel(body, 0, _TILE), block=(64, 1, 1), races=True).kinds


_FLAG = """
setp.ne.u32 %p1, %ctaid.x, 0; @%p1 bra WAIT;
st.global.u32 [%a0], 42; {publish}
bra DONE;
WAIT: {observe} setp.ne.u32 %p2, %r1, 1; @%p2 bra WAIT; {after}
ld.global.u32 %r2, [%a0]; st.global.u32 [%a0+4], %r2;
DONE:
"""


@pytest.mark.parametrize(
    ("publish", "observe", "after", "ordered"),
    [
        ("st.release.gpu.global.u32 [%a1], 1;", "ld.acquire.gpu.global.u32 %r1, [%a1];", "", True),
        ("fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%a1], 1;", "ld.acquire.gpu.u32 %r1, [%a1];", "", True),
        (
            "fence.acq_rel.gpu; st.volatile.global.u32 [%a1], 1;",
            "ld.volatile.global.u32 %r1, [%a1];",
            "fence.acq_rel.gpu;",
            True,
        ),
        ("red.release.gpu.global.add.u32 [%a1], 1;", "atom.acquire.gpu.global.or.b32 %r1, [%a1], 0;", "", True),
        ("membar.gl; red.global.inc.u32 [%a1], 5;", "atom.global.or.b32 %r1, [%a1], 0;", "membar.gl;", True),
        ("st.relaxed.gpu.global.u32 [%a1], 1;", "ld.acquire.gpu.global.u32 %r1, [%a1];", "", False),
        ("st.release.gpu.global.u32 [%a1], 1;", "ld.relaxed.gpu.global.u32 %r1, [%a1];", "", False),
        ("red.global.add.u32 [%a1], 1;", "atom.acquire.gpu.global.or.b32 %r1, [%a1], 0;", "", False),
        ("st.release.gpu.global.u32 [%a1], 1;", "ld.global.u32 %r1, [%a1];", "", False),
    ],
)
@pytest.mark.parametrize("interleaving", list(Interleaving))
def test_a_flag_orders_what_was_written_before_it_if_it_says_so(
    publish: str, observe: str, after: str, ordered: bool, interleaving: Interleaving
) -> None:
    data, flag = np.zeros(2, np.uint32), np.zeros(1, np.uint32)
    body = _FLAG.format(publish=publish, observe=observe, after=after)
    found = launch(kernel(body, 2), data, flag, grid=(2, 1, 1), block=(1, 1, 1), interleaving=interleaving)
    assert ("global-race" in found.kinds) is not ordered
    if ordered:
        assert found.kinds == []
        assert list(data) == [42, 42]


@pytest.mark.parametrize("wide", ["cta", "cluster", "gpu"])
@pytest.mark.parametrize("narrow", ["cta", "cluster", "gpu"])
@pytest.mark.parametrize("distance", ["cta", "cluster", "gpu"])
@pytest.mark.parametrize(
    ("publish", "observe", "after"),
    [
        ("st.release.{0}.global.u32 [%a1], 1;", "ld.acquire.{1}.global.u32 %r1, [%a1];", ""),
        ("st.release.{1}.global.u32 [%a1], 1;", "ld.acquire.{0}.global.u32 %r1, [%a1];", ""),
        ("fence.acq_rel.{0}; st.relaxed.{1}.global.u32 [%a1], 1;", "ld.acquire.{1}.u32 %r1, [%a1];", ""),
        ("fence.acq_rel.{1}; st.relaxed.{0}.global.u32 [%a1], 1;", "ld.acquire.{1}.u32 %r1, [%a1];", ""),
        ("red.release.{1}.global.add.u32 [%a1], 1;", "atom.relaxed.{1}.global.or.b32 %r1, [%a1], 0;", "fence.acq_rel.{0};"),
        ("red.release.{1}.global.add.u32 [%a1], 1;", "atom.relaxed.{0}.global.or.b32 %r1, [%a1], 0;", "fence.acq_rel.{1};"),
    ],
)
def test_a_memory_order_reaches_as_far_as_its_scope(
    publish: str, observe: str, after: str, distance: str, narrow: str, wide: str
) -> None:
    """Between two warps of one CTA, two CTAs of one cluster, and two clusters; each scope takes each part."""
    scopes = ["cta", "cluster", "gpu"]
    body = _FLAG.format(
        publish=publish.format(narrow, wide), observe=observe.format(narrow, wide), after=after.format(narrow, wide)
    )
    shape: dict[str, Any] = {"grid": (2, 1, 1), "block": (1, 1, 1), "cluster": (2 if distance == "cluster" else 1, 1, 1)}
    if distance == "cta":
        body = "shr.u32 %r5, %me, 5;" + body.replace("%ctaid.x", "%r5")
        shape = {"block": (64, 1, 1)}
    found = launch(kernel(body, 2), np.zeros(2, np.uint32), np.zeros(1, np.uint32), **shape)
    reaches = min(scopes.index(narrow), scopes.index(wide)) >= scopes.index(distance)
    assert ("global-race" in found.kinds) is not reaches


def test_polling_with_stores_that_change_nothing_is_no_progress() -> None:
    flag = np.zeros(2, np.uint32)
    body = "L: st.volatile.global.u32 [%a0+4], 0; atom.global.cas.b32 %r1, [%a0], 1, 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"
    assert launch(kernel(body, 1), flag, block=(1, 1, 1), most_instructions=20_000).stopped


@pytest.mark.parametrize("generic", [True, False])
def test_shared_memory_of_a_peer(generic: bool) -> None:
    """Every CTA writes its rank to the next CTA's shared memory."""
    got = np.zeros(4, np.uint32)
    by_generic_address = """
    mov.u64 %rd1, tile; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd1, %rd1, %r2; st.u32 [%rd1], %r1; getctarank.u64 %r3, %rd1;
    """
    by_shared_address = """
    mapa.shared::cluster.u32 %r4, tile, %r2; st.shared::cluster.u32 [%r4], %r1; getctarank.shared::cluster.u32 %r3, %r4;
    """
    body = f"""
    mov.u32 %r1, %cluster_ctarank; add.u32 %r2, %r1, 1; and.b32 %r2, %r2, 3;
    {by_generic_address if generic else by_shared_address}
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    ld.shared.u32 %r5, [tile]; mad.lo.u32 %r5, %r3, 16, %r5; cvt.u64.u32 %rd2, %r1; mad.lo.u64 %a0, %rd2, 4, %a0;
    st.global.u32 [%a0], %r5;
    """
    found = launch(kernel(body, 1, _TILE), got, grid=(4, 1, 1), cluster=(4, 1, 1), block=(1, 1, 1))
    assert found.kinds == []
    np.testing.assert_array_equal(got, [16 + 3, 32 + 0, 48 + 1, 0 + 2])


@pytest.mark.parametrize("rank", [4, 255, 256, 2**31])
def test_a_peer_that_is_not_there(rank: int) -> None:
    body = f"mapa.shared::cluster.u32 %r4, tile, {rank}; st.shared::cluster.u32 [%r4], 1;"
    assert launch(kernel(body, 0, _TILE), grid=(4, 1, 1), cluster=(4, 1, 1)).kinds == ["shared-out-of-bounds"]


def test_what_was_discarded_is_undefined() -> None:
    data = np.zeros(64, np.uint32)
    assert launch(kernel("discard.global.L2 [%a0+128], 128;", 1), data, block=(1, 1, 1)).kinds == []
    np.testing.assert_array_equal(data, np.repeat(np.array([0, 0xFFFFFFFF], np.uint32), 32))


def test_functions_compiled_apart_compute_what_they_would_inlined() -> None:
    """A structure by value, a loop, an early return and a call within a guarded call."""
    functions = """
.func (.param .b32 func_retval0) scale(.param .b32 scale_param_0, .param .b32 scale_param_1)
{
  .reg .pred %p<3>; .reg .b32 %r<4>;
  ld.param.u32 %r1, [scale_param_0]; ld.param.u32 %r2, [scale_param_1];
  setp.ne.u32 %p1, %r2, 0; @%p1 bra LOOP;
  st.param.b32 [func_retval0], %r1; ret;
LOOP:
  mad.lo.u32 %r1, %r1, 3, 1; sub.u32 %r2, %r2, 1; setp.ne.u32 %p2, %r2, 0; @%p2 bra LOOP;
  st.param.b32 [func_retval0], %r1;
  ret;
}
.func (.param .align 8 .b8 func_retval0[16]) swap(.param .align 8 .b8 swap_param_0[16])
{
  .reg .b32 %r<5>; .reg .b64 %rd<2>;
  ld.param.v2.u32 {%r1, %r2}, [swap_param_0]; ld.param.u64 %rd1, [swap_param_0+8];
  { .param .b32 param0; st.param.b32 [param0], %r2; .param .b32 param1; st.param.b32 [param1], 2; .param .b32 retval0;
    call.uni (retval0), scale, (param0, param1); ld.param.b32 %r3, [retval0]; }
  st.param.u64 [func_retval0], %rd1; st.param.v2.b32 [func_retval0+8], {%r3, %r1};
  ret;
}
"""
    body = """
    and.b32 %r1, %me, 3; setp.eq.u32 %p1, %r1, 3; mov.u32 %r2, 0; mov.u64 %rd3, 0;
    { .param .b32 param0; st.param.b32 [param0], %me; .param .b32 param1; st.param.b32 [param1], %r1; .param .b32 retval0;
      call (retval0), scale, (param0, param1); ld.param.b32 %r2, [retval0]; }
    @!%p1 bra OUT;
    { .param .align 8 .b8 param0[16]; st.param.v2.b32 [param0], {%me, %r2}; st.param.u64 [param0+8], %wide;
      .param .align 8 .b8 retval0[16]; @%p1 call (retval0), swap, (param0);
      ld.param.u64 %rd3, [retval0]; ld.param.u32 %r2, [retval0+8]; }
OUT: mad.lo.u64 %a0, %wide, 8, %a0; cvt.u32.u64 %r3, %rd3; st.global.v2.u32 [%a0], {%r2, %r3};
    """
    got = np.zeros(64, np.uint32)
    assert launch(functions + kernel(body, 1), got).kinds == []

    def scale(value: int, times: int) -> int:
        return value if not times else scale(3 * value + 1, times - 1)

    expected = []
    for lane in range(32):
        first = scale(lane, lane % 4)
        expected.append((scale(first, 2), lane) if lane % 4 == 3 else (first, 0))
    np.testing.assert_array_equal(got.reshape(32, 2), expected)


BYTE_OF_A_CTA = "mov.u32 %r1, %ctaid.x; cvt.u64.u32 %rd1, %r1; add.u64 %rd1, %rd1, %a0; st.global.u8 [%rd1+{at}], {value};"


@pytest.mark.parametrize(("element_bytes", "at", "kinds"), [(1, 0, []), (1, 1, []), (2, 0, ["global-race"])])
def test_writers_of_neighbouring_bytes_are_told_apart_where_elements_are_bytes(element_bytes, at, kinds):
    """CTA i writes byte i, as a row of booleans of odd length begins where the row before it ends."""
    body = kernel(BYTE_OF_A_CTA.format(at=at, value=1), 1)
    written = np.zeros(9, np.uint8)
    assert launch(body, written, grid=(8, 1, 1), block=(1, 1, 1), piece_bytes=element_bytes).kinds[:1] == kinds
    assert written.sum() == 8


def test_two_writers_of_one_byte_race():
    body = kernel("st.global.u8 [%a0+3], 1;", 1)
    found = launch(body, np.zeros(9, np.uint8), grid=(2, 1, 1), block=(1, 1, 1), piece_bytes=1)
    assert found.kinds == ["global-race"]


def test_the_byte_beside_a_written_one_is_not_taken_for_its_writers():
    """Of nine unwritten bytes one is written with old contents: those of the byte beside it were never stored."""
    body = kernel("ld.global.u8 %r1, [%a1]; st.global.u8 [%a0+8], %r1;", 2)
    arrays = np.zeros(9, np.uint8), np.zeros(1, np.uint8)
    found = launch(body, *arrays, unwritten=(0, 1), block=(1, 1, 1), taint=True, piece_bytes=1)
    assert [(offset, size) for offset, size, _, _ in found.tainted] == [(8, 1)]
