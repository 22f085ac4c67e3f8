"""Atomics: every operation and type against numpy, bit for bit, and many lanes on one address."""

from collections.abc import Callable

import numpy as np
import pytest

from cudal2_agent.sandbox.emulator.lowering.lowering import width_of
from tests.sandbox.emulator.launched import Array, kernel, launch

_EDGES = {
    2: [0, 0x8000, 1, 0x8001, 0x7C00, 0xFC00, 0x7E00, 0x7BFF, 0x3C00, 0x7F80, 0xFF80, 0x7F7F, 0xFFFF],
    4: [0, 2**31, 1, 2**31 + 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF, 0x00800000, 0x80800001, 2**32 - 1],
    8: [0, 2**63, 1, 2**63 + 1, 0x7FF0000000000000, 0xFFF0000000000000, 0x0010000000000000, 2**64 - 1],
}


def operands(size: int, draw: str, seed: int) -> tuple[Array, Array, Array]:
    """32 old values, operands and swapped-in values: random bits, small numbers, edges, or operands equal to the old ones."""
    random = np.random.default_rng(seed)
    kind = np.dtype(f"u{size}")
    if draw == "small":
        old, b, c = random.integers(0, 4, (3, 32)).astype(kind)
    elif draw == "edges":
        old, b, c = random.choice(np.array(_EDGES[size], kind), (3, 32))
    else:
        old, b, c = np.frombuffer(random.bytes(96 * size), kind).reshape(3, 32).copy()
    if draw == "equal":
        b[::2] = old[::2]
    return old.copy(), b.copy(), c.copy()


def to_float(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat(values: Array) -> Array:
    bits = values.view(np.uint32).astype(np.uint64)
    return np.where(np.isnan(values), 0x7FFF, bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)


def flushed(values: Array) -> Array:
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)


def add_f32(old: Array, b: Array, shared: bool) -> Array:
    x, y = old.view(np.float32), b.view(np.float32)
    total = x + y if shared else flushed(flushed(x) + flushed(y))
    return np.where(np.isnan(total), np.uint32(0x7FFFFFFF), total.view(np.uint32))


def add_f16(old: Array, b: Array, _: bool) -> Array:
    total = (old.view(np.float16).astype(np.float64) + b.view(np.float16).astype(np.float64)).astype(np.float16)
    return np.where(np.isnan(total), np.uint16(0x7FFF), total.view(np.uint16))


def add_bf16(old: Array, b: Array, _: bool) -> Array:
    return to_bfloat(to_float(old.view(np.uint16)) + to_float(b.view(np.uint16)))


def pick_f16(name: str) -> Callable[[Array, Array], Array]:
    """fmin or fmax of halves; numpy leaves the sign of a zero open."""

    def pick(old: Array, b: Array) -> Array:
        x, y = old.view(np.float16), b.view(np.float16)
        chosen = {"min": np.fmin, "max": np.fmax}[name](x, y).view(np.uint16)
        zeros = {"min": old | b, "max": old & b}[name]
        return np.where(np.isnan(x) & np.isnan(y), np.uint16(0x7FFF), np.where(x == y, zeros, chosen))

    return pick


def typed(kind: str, operation: Callable[[Array, Array], Array]) -> Callable[[Array, Array, Array, bool], Array]:
    """An integer operation on bits read as a PTX type."""
    numbers = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{width_of(kind)}")
    return lambda old, b, _, __: operation(old.view(numbers), b.view(numbers)).astype(numbers).view(old.dtype)


_FORMS: dict[str, Callable[[Array, Array, Array, bool], Array]] = {
    **{f"add.{kind}": typed(kind, np.add) for kind in ("u32", "s32", "u64")},
    **{f"min.{kind}": typed(kind, np.minimum) for kind in ("u32", "s32", "u64", "s64")},
    **{f"max.{kind}": typed(kind, np.maximum) for kind in ("u32", "s32", "u64", "s64")},
    **{f"and.{kind}": typed(kind, np.bitwise_and) for kind in ("b32", "b64")},
    **{f"or.{kind}": typed(kind, np.bitwise_or) for kind in ("b32", "b64")},
    **{f"xor.{kind}": typed(kind, np.bitwise_xor) for kind in ("b32", "b64")},
    **{f"exch.{kind}": lambda _, b, __, ___: b for kind in ("b32", "b64")},
    **{f"cas.{kind}": lambda old, b, c, _: np.where(old == b, c, old) for kind in ("b16", "b32", "b64")},
    "inc.u32": typed("u32", lambda old, b: np.where(old >= b, 0, old + np.uint32(1))),
    "dec.u32": typed("u32", lambda old, b: np.where((old == 0) | (old > b), b, old - np.uint32(1))),
    "add.f32": lambda old, b, _, shared: add_f32(old, b, shared),
    "add.noftz.f16": lambda old, b, _, shared: add_f16(old, b, shared),
    "add.noftz.f16x2": lambda old, b, _, shared: add_f16(old, b, shared).view(np.uint32),
    "add.noftz.bf16": lambda old, b, _, shared: add_bf16(old, b, shared),
    "add.noftz.bf16x2": lambda old, b, _, shared: add_bf16(old, b, shared).view(np.uint32),
}
_SPACES = {
    "global": ("", ".global", "[%a0]", ""),
    "generic": ("", "", "[%a0]", ""),
    "shared": ("mov.u32 %r10, tile; mad.lo.u32 %r10, %me, {size}, %r10;", ".shared", "[%r10]", ".shared"),
    "generic shared": (
        "mov.u64 %rd10, tile; cvta.shared.u64 %rd10, %rd10; mad.lo.u64 %rd10, %wide, {size}, %rd10;",
        "",
        "[%rd10]",
        "",
    ),
}


@pytest.mark.parametrize("operation", ["cas", "exch"])
def test_atomics_of_128_bits(operation: str) -> None:
    """Every second lane expects what is there; of the others the upper half differs."""
    draw = np.random.default_rng(3)
    old, new = (draw.integers(0, 2**63, (32, 2)).astype(np.uint64) for _ in range(2))
    expected = old.copy()
    expected[1::2, 1] += np.uint64(1)
    returned, memory = np.zeros_like(old), old.copy()
    swapped = ", %q2" if operation == "cas" else ""
    given = "%q1" if operation == "cas" else "%q2"
    body = f"""{{ .reg .b128 %q<4>;
    {" ".join(f"mad.lo.u64 %a{i}, %wide, 16, %a{i};" for i in range(4))}
    ld.global.b128 %q1, [%a1]; ld.global.b128 %q2, [%a2];
    atom.global.{operation}.b128 %q3, [%a0], {given}{swapped}; st.global.b128 [%a3], %q3; }}"""
    assert launch(kernel(body, 4), memory, expected, new, returned).kinds == []
    np.testing.assert_array_equal(returned, old)
    swaps = np.arange(32)[:, None] % 2 == 0 if operation == "cas" else np.ones((32, 1), bool)
    np.testing.assert_array_equal(memory, np.where(swaps, new, old))
    misplaced = body.replace("atom.global", "add.u64 %a0, %a0, 8; atom.global")
    assert "misaligned" in launch(kernel(misplaced, 4), memory, expected, new, returned).kinds


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("space", list(_SPACES))
@pytest.mark.parametrize("form", list(_FORMS))
def test_an_atomic_gives_the_old_value_and_leaves_the_new(form: str, space: str) -> None:
    size = width_of(form.split(".")[-1])
    register = {2: "%h", 4: "%r", 8: "%rd"}[size]
    bits = f"b{8 * size}"
    setup, qualifier, address, moved = _SPACES[space]
    swapped = f", {register}3" if form.startswith("cas") else ""
    body = f"""
    {" ".join(f"mad.lo.u64 %a{i}, %wide, {size}, %a{i};" for i in range(4))} {setup.format(size=size)}
    ld.global.{bits} {register}1, [%a0]; ld.global.{bits} {register}2, [%a1]; ld.global.{bits} {register}3, [%a2];
    {f"st{moved}.{bits} {address}, {register}1;" if "shared" in space else ""}
    atom{qualifier}.{form} {register}4, {address}, {register}2{swapped};
    st.global.{bits} [%a3], {register}4;
    {f"ld{moved}.{bits} {register}5, {address}; st.global.{bits} [%a0], {register}5;" if "shared" in space else ""}
    """
    text = kernel(body, 4, ".shared .align 16 .b8 tile[256];")
    for seed, draw in enumerate(("random", "small", "edges", "equal")):
        old, b, c = operands(size, draw, seed)
        memory, returned = old.copy(), np.zeros_like(old)
        assert launch(text, memory, b, c, returned).kinds == []
        np.testing.assert_array_equal(returned, old)
        np.testing.assert_array_equal(memory, _FORMS[form](old, b, c, "shared" in space), err_msg=draw)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("red", [True, False])
@pytest.mark.parametrize(
    ("form", "count", "update"),
    [
        ("v2.f32.add", 2, lambda old, b: add_f32(old, b, False)),
        ("add.v4.f32", 4, lambda old, b: add_f32(old, b, False)),
        ("add.noftz.v8.f16", 8, lambda old, b: add_f16(old, b, False)),
        ("v4.bf16x2.add.noftz", 4, lambda old, b: add_bf16(old, b, False).view(np.uint32)),
        ("min.noftz.v2.f16", 2, pick_f16("min")),
        ("max.noftz.v4.f16", 4, pick_f16("max")),
    ],
)
def test_a_vector_updates_each_element(form: str, count: int, update: Callable[[Array, Array], Array], red: bool) -> None:
    """The results lie in the registers of the operands, in reverse."""
    size = 2 if "16" in form and "x2" not in form else 4
    register = {2: "%h", 4: "%r"}[size]
    values = ", ".join(f"{register}{i}" for i in range(count))
    results = ", ".join(f"{register}{i}" for i in reversed(range(count)))
    loads = " ".join(f"ld.global.b{8 * size} {register}{i}, [%a1+{i * size}];" for i in range(count))
    stores = " ".join(f"st.global.b{8 * size} [%a2+{i * size}], {register}{count - 1 - i};" for i in range(count))
    update_all = f"red.global.{form} [%a0], {{{values}}};" if red else f"atom.global.{form} {{{results}}}, [%a0], {{{values}}};"
    body = f"{' '.join(f'mad.lo.u64 %a{i}, %wide, {count * size}, %a{i};' for i in range(3))} {loads} {update_all} {stores}"
    random = np.random.default_rng(count)
    old, b = random.choice(np.array(_EDGES[size], f"u{size}"), (2, 32 * count))
    memory, returned = old.copy(), np.zeros_like(old)
    assert launch(kernel(body, 3), memory, b, returned).kinds == []
    np.testing.assert_array_equal(memory, update(old, b))
    np.testing.assert_array_equal(returned, b.reshape(32, count)[:, ::-1].reshape(-1) if red else old)


def test_lanes_on_one_address_take_their_turn_by_number() -> None:
    counter, turns = np.full(1, 5, np.uint32), np.zeros(32, np.uint32)
    body = "atom.global.add.u32 %r1, [%a0], %me; mad.lo.u64 %a1, %wide, 4, %a1; st.global.u32 [%a1], %r1;"
    assert launch(kernel(body, 2), counter, turns).kinds == []
    np.testing.assert_array_equal(turns, 5 + np.concatenate([[0], np.cumsum(np.arange(31))]))
    assert counter[0] == 5 + 31 * 16


def test_warps_and_ctas_lose_no_update() -> None:
    total = np.zeros(1, np.uint32)
    body = "red.global.add.u32 [%a0], 1; atom.global.add.u32 %r1, [%a0], 2;"
    assert launch(kernel(body, 1), total, grid=(5, 1, 1), block=(96, 1, 1)).kinds == []
    assert total[0] == 3 * 5 * 96


def test_a_ticket_counter_hands_out_every_number_once() -> None:
    """Increments that wrap, as reductions over splits use them."""
    counter, tickets = np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    body = "atom.global.inc.u32 %r1, [%a0], 15; mad.lo.u64 %a1, %wide, 4, %a1; st.global.u32 [%a1], %r1;"
    assert launch(kernel(body, 2), counter, tickets, block=(64, 1, 1)).kinds == []
    np.testing.assert_array_equal(np.sort(tickets), np.repeat(np.arange(16), 4))
    assert counter[0] == 0


def test_an_ordinary_store_beside_atomics_is_a_race() -> None:
    body = "setp.lt.u32 %p1, %me, 32; @%p1 st.global.u32 [%a0], 1; @!%p1 red.global.add.u32 [%a0], 1;"
    assert launch(kernel(body, 1), np.zeros(1, np.uint32), block=(64, 1, 1)).kinds == ["global-race"]
