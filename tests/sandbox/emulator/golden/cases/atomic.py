"""Cases of atom and red in global and shared memory: one slot per thread, and many threads on one slot."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden import exact
from tests.sandbox.emulator.golden.case import Buffers, Bytes, Case, Family, raw, unwritten
from tests.sandbox.emulator.golden.cases.integers import signed
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.exact import FORMATS, decode, encode
from tests.sandbox.emulator.golden.lanes import width_of

Array = np.ndarray[Any, Any]
Update = Callable[[int, int, int], int]
_THREADS = 128
_LETTER = {16: "h", 32: "r", 64: "l"}
_TYPE = {16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}


@dataclass(frozen=True)
class _Form:
    """`rest` is what follows the state space: operation, modifiers and type.

    `update`: old, operand, second operand → new. `update_shared`: the same where shared memory differs from global memory.
    """

    rest: str
    kind: str
    update: Update
    prefix: str = ""
    operands: int = 1
    red: bool = True
    ordered: bool = False  # whether the final value depends on the order
    update_shared: Update | None = None

    @property
    def kernel(self) -> str:
        return f"atom{self.prefix}_{self.rest}".replace(".", "_")


def atomic_family() -> Family:
    forms = tuple(_forms())
    source = '#include "golden.cuh"\n\n' + "\n".join(_kernel(form) for form in forms) + _VECTORS
    return Family("atomics", source, (*(_case(form) for form in forms), *_vector_cases()))


def _forms() -> Iterator[_Form]:
    for kind in ("u32", "s32", "u64"):
        yield _Form(f"add.{kind}", kind, _integer("add", kind))
    for kind in ("u32", "s32", "u64", "s64"):
        yield _Form(f"min.{kind}", kind, _integer("min", kind))
        yield _Form(f"max.{kind}", kind, _integer("max", kind))
    yield _Form("inc.u32", "u32", lambda old, b, _: 0 if old >= b else old + 1, ordered=True)
    yield _Form("dec.u32", "u32", lambda old, b, _: b if old == 0 or old > b else old - 1, ordered=True)
    for width in ("32", "64"):
        yield _Form(f"and.b{width}", f"u{width}", lambda old, b, _: old & b)
        yield _Form(f"or.b{width}", f"u{width}", lambda old, b, _: old | b)
        yield _Form(f"xor.b{width}", f"u{width}", lambda old, b, _: old ^ b)
        yield _Form(f"exch.b{width}", f"u{width}", lambda _, b, __: b, red=False, ordered=True)
    for width in ("16", "32", "64"):
        yield _Form(f"cas.b{width}", f"u{width}", lambda old, b, c: c if old == b else old, operands=2, red=False, ordered=True)
    for kind in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2"):
        flush = "" if kind in ("f32", "f64") else "noftz."
        here, there = _float_add(kind, ftz=kind == "f32"), _float_add(kind)  # atomics in L2 flush f32 subnormals
        yield _Form(f"add.{flush}{kind}", kind, here, ordered=True, update_shared=there)
    for prefix in (".relaxed.gpu", ".acquire.gpu", ".release.sys", ".acq_rel.cta", ".relaxed.cluster"):
        yield _Form("add.u32", "u32", _integer("add", "u32"), prefix=prefix, red="acq" not in prefix)


def _integer(name: str, kind: str) -> Update:
    width, sign = int(kind[1:]), kind[0] == "s"
    operations: dict[str, Callable[..., int]] = {"add": lambda a, b: a + b, "min": min, "max": max}
    operation = operations[name]

    def update(old: int, b: int, _: int) -> int:
        return operation(*(signed(one, width) if sign else one for one in (old, b))) & ((1 << width) - 1)

    return update


def _float_add(kind: str, *, ftz: bool = False) -> Update:
    form = FORMATS[kind.removesuffix("x2")]

    def one(old: int, b: int) -> int:
        return encode(exact.add(decode(old, form, ftz=ftz), decode(b, form, ftz=ftz)), form, ftz=ftz)

    if not kind.endswith("x2"):
        return lambda old, b, _: one(old, b)
    return lambda old, b, _: one(old & 0xFFFF, b & 0xFFFF) | one(old >> 16, b >> 16) << 16


def _kernel(form: _Form) -> str:
    """out: returned from global, from shared; then final global, shared, of red, of contention in global and in shared."""
    kind = _TYPE[width_of(form.kind)]
    body = _atom(form, "global", "d", "to + 2 * 128 + i", "l") + _atom(form, "shared", "e", "shared_address(slots + i)", "r")
    if form.red:
        body += _red(form, "global", "to + 4 * 128 + i", "l")
    if form.red and not form.ordered:
        body += _red(form, "global", "to + 5 * 128 + i / 32", "l")
        body += _red(form, "shared", "shared_address(slots + 128 + i / 32)", "r")
    return (
        f"GOLDEN({form.kernel}) {{\n  __shared__ {kind} slots[256];\n  const int i = threadIdx.x;\n"
        f"  const {kind}* from = (const {kind}*)in;\n  {kind}* to = ({kind}*)out;\n"
        f"  const {kind} old = from[i], b = from[128 + i], c = from[256 + i];\n  {kind} d, e;\n  (void)c;\n"
        "  slots[i] = slots[128 + i] = old;\n"
        "  for (int copy = 2; copy < 6; ++copy) to[copy * 128 + i] = old;\n  __syncthreads();\n"
        f"{body}  __syncthreads();\n  to[i] = d, to[128 + i] = e;\n"
        "  to[3 * 128 + i] = slots[i], to[6 * 128 + i] = slots[128 + i];\n}\n"
    )


def _atom(form: _Form, space: str, result: str, pointer: str, constraint: str) -> str:
    letter = _LETTER[width_of(form.kind)]
    operands = ", ".join(f"%{at + 2}" for at in range(form.operands))
    text = f"atom{form.prefix}.{space}.{form.rest} %0, [%1], {operands};"
    return f'  asm volatile("{text}" : "={letter}"({result}) : "{constraint}"({pointer}), {_values(form)} : "memory");\n'


def _red(form: _Form, space: str, pointer: str, constraint: str) -> str:
    text = f"red{form.prefix}.{space}.{form.rest} [%0], %1;"
    return f'  asm volatile("{text}" ::"{constraint}"({pointer}), {_values(form)} : "memory");\n'


def _values(form: _Form) -> str:
    letter = _LETTER[width_of(form.kind)]
    return ", ".join(f'"{letter}"({name})' for name in ("b", "c")[: form.operands])


def _case(form: _Form) -> Case:
    width = width_of(form.kind)

    def build(draw: Draw) -> Buffers:
        old, b, c = (draw.column(form.kind, _THREADS, turn) for turn in range(3))
        if form.operands == 2:  # a swap that succeeds in every second lane
            b = np.where(np.arange(_THREADS) % 2 == 0, old, b).astype(b.dtype)
        return raw(old, b, c), unwritten(7 * _THREADS * width // 8)

    def expected(given: Bytes, _: Bytes) -> Bytes:
        old, b, c = given.view(f"u{width // 8}").reshape(3, _THREADS)
        new = exact.lanes(form.update, old, b, c, width=width)
        shared = exact.lanes(form.update_shared or form.update, old, b, c, width=width)
        crowded = old.copy()
        if form.red and not form.ordered:
            for at in range(_THREADS):
                crowded[at // 32] = form.update(int(crowded[at // 32]), int(b[at]), 0)
        return raw(old, old, new, shared, new if form.red else old, crowded, crowded)

    name = f"atomics/{'atom' + form.prefix}.{form.rest}"
    return Case(name, form.kernel, build, block=(_THREADS, 1, 1), expected=expected, expected_element=form.kind)


_VECTORS = """
#define VECTOR(NAME, COUNT, ...)                                                          \\
  GOLDEN(NAME) {                                                                                          \\
    const int i = threadIdx.x;                                                                            \\
    const unsigned* b = (const unsigned*)in + (32 + i) * COUNT;                                           \\
    unsigned* d = (unsigned*)out + i * COUNT;                                                             \\
    unsigned* slot = (unsigned*)out + (32 + i) * COUNT;                                                   \\
    unsigned* other = (unsigned*)out + (64 + i) * COUNT;                                                  \\
    for (int j = 0; j < COUNT; ++j) slot[j] = other[j] = ((const unsigned*)in)[i * COUNT + j];            \\
    __syncwarp();                                                                                         \\
    float r[COUNT], v[COUNT];                                                                             \\
    for (int j = 0; j < COUNT; ++j) v[j] = __uint_as_float(b[j]);                                         \\
    __VA_ARGS__                                                                                           \\
    for (int j = 0; j < COUNT; ++j) d[j] = __float_as_uint(r[j]);                                         \\
  }

VECTOR(atom_v2_f32, 2,
  asm volatile("atom.global.v2.f32.add {%0,%1}, [%2], {%3,%4};" : "=f"(r[0]), "=f"(r[1])
               : "l"(slot), "f"(v[0]), "f"(v[1]) : "memory");
  asm volatile("red.global.v2.f32.add [%0], {%1,%2};" :: "l"(other), "f"(v[0]), "f"(v[1]) : "memory");)

VECTOR(atom_v4_f32, 4,
  asm volatile("atom.global.v4.f32.add {%0,%1,%2,%3}, [%4], {%5,%6,%7,%8};" : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3])
               : "l"(slot), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
  asm volatile("red.global.v4.f32.add [%0], {%1,%2,%3,%4};" :: "l"(other),
               "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");)
"""


def _vector_cases() -> Iterator[Case]:
    for count in (2, 4):
        words = 32 * count

        def build(draw: Draw, words: int = words) -> Buffers:
            return raw(draw.wide(2 * words, "f32", 8)), unwritten(3 * 4 * words)

        def expected(given: Bytes, _: Bytes) -> Bytes:
            old, b = given.view(np.float32).reshape(2, -1)
            return raw(old, old + b, old + b)

        yield Case(f"atomics/atom.v{count}.f32.add", f"atom_v{count}_f32", build, expected=expected)
