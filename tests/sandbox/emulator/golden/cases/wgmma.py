"""Cases of wgmma: types, widths, operands from registers and shared memory, major modes, every swizzle, signs, chained steps.

Input: 16 steps of (A descriptor, B descriptor, scale-d, unused); the descriptors omit the start of shared memory. Byte 1024
starts the bytes that are copied to shared memory. Registers of A follow as [step][register][thread], then accumulators as
[register][thread].
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.sandbox.emulator.golden.boxes import swizzled
from tests.sandbox.emulator.golden.case import Buffers, Bytes, Case, Family, Swizzle, Within, raw, unwritten
from tests.sandbox.emulator.golden.draw import Draw
from tests.sandbox.emulator.golden.products import SETS, bound, operand, product, to_bits, to_values

Array = np.ndarray[Any, Any]
_HEADER, _THREADS, _M, _K = 1024, 128, 64, 16
_SWIZZLES: tuple[Swizzle, ...] = (0, 32, 64, 128)
_MODE = {0: 0, 32: 3, 64: 2, 128: 1}


@dataclass(frozen=True)
class _Form:
    """The compile-time properties of one instruction. `mn_a`, `mn_b`: whether an operand is MN-major."""

    n: int
    element: str = "f16"
    accumulator: str = "f32"
    registers_a: bool = False
    sign_a: int = 1
    sign_b: int = 1
    mn_a: bool = False
    mn_b: bool = False

    @property
    def kernel(self) -> str:
        signs = "".join("n" if sign < 0 else "p" for sign in (self.sign_a, self.sign_b))
        source = "rs" if self.registers_a else "ss"
        majors = "".join("m" if mn else "k" for mn in (self.mn_a, self.mn_b))
        return f"wgmma_n{self.n}_{self.element}_{self.accumulator}_{source}_{majors}_{signs}"

    @property
    def registers(self) -> int:
        return self.n // 2 if self.accumulator == "f32" else self.n // 4


@dataclass(frozen=True)
class _Layout:
    """The layout of an operand in shared memory. `rows`: of M or N; `k`: of all steps.

    K-major: an atom is 8 rows of `swizzle` bytes along K (16 without swizzle, when atoms are core matrices). MN-major: 8 rows,
    one a k, of `swizzle` bytes along M or N. `pad`: unused bytes behind every atom, so that strides are not the natural ones.
    """

    rows: int
    k: int
    swizzle: Swizzle
    mn: bool
    pad: int = 0

    @property
    def chunk(self) -> int:
        """Elements per row of an atom."""
        return (self.swizzle or 16) // 2

    @property
    def atom(self) -> int:
        return 8 * 2 * self.chunk + self.pad

    @property
    def strides(self) -> tuple[int, int]:
        """Byte strides between atoms along M or N, and along K. Atoms lie first along the dimension that a row spans."""
        if self.mn:
            return self.atom * (self.k // 8), self.atom
        return self.atom, self.atom * (self.rows // 8)

    @property
    def bytes(self) -> int:
        return self.atom * (self.rows * self.k // (8 * self.chunk))

    def addresses(self) -> Array:
        """Byte offset of every element (rows, k) from the start of the operand, which is aligned to 1024 bytes."""
        row, k = np.indices((self.rows, self.k))
        along_rows, along_k = self.strides
        if self.mn:
            plain = row // self.chunk * along_rows + k // 8 * along_k + k % 8 * 2 * self.chunk + row % self.chunk * 2
        else:
            plain = row // 8 * along_rows + k // self.chunk * along_k + row % 8 * 2 * self.chunk + k % self.chunk * 2
        return swizzled(plain, self.swizzle)

    def descriptor(self, start: int, step: int) -> int:
        """Of the 16 k of a step. The leading offset is not used where a step's 32 bytes lie in one swizzled row."""
        along_rows, along_k = self.strides
        if self.mn:
            begin = start + step * 2 * along_k
            leading, stride = (along_rows, along_k) if self.swizzle else (along_k, along_rows)
        else:
            begin = start + step * _K // self.chunk * along_k + step * _K % self.chunk * 2
            leading, stride = (0 if self.swizzle else along_k), along_rows
        return (begin >> 4) | leading >> 4 << 16 | stride >> 4 << 32 | _MODE[self.swizzle] << 62


@dataclass(frozen=True)
class _Plan:
    """One case. `scales`: scale-d of every step; 0 discards the previous sums."""

    form: _Form
    scales: tuple[int, ...] = (1,)
    swizzle_a: Swizzle = 128
    swizzle_b: Swizzle = 128
    choice: str = "integers"
    pad: int = 0

    @property
    def layouts(self) -> tuple[_Layout, _Layout]:
        k, form = _K * len(self.scales), self.form
        k_a, k_b = (k if mn else -(-2 * k // max(swizzle, 16)) * max(swizzle, 16) // 2 for mn, swizzle in self._modes)
        rows_b = -(-form.n // (max(self.swizzle_b, 16) // 2)) * (max(self.swizzle_b, 16) // 2) if form.mn_b else form.n
        a = _Layout(_M, k_a, self.swizzle_a, form.mn_a, self.pad)
        return a, _Layout(rows_b, k_b, self.swizzle_b, form.mn_b, self.pad)

    @property
    def _modes(self) -> tuple[tuple[bool, Swizzle], tuple[bool, Swizzle]]:
        return (self.form.mn_a, self.swizzle_a), (self.form.mn_b, self.swizzle_b)

    @property
    def start_b(self) -> int:
        return 0 if self.form.registers_a else -(-self.layouts[0].bytes // 1024) * 1024

    @property
    def smem(self) -> int:
        return -(-(self.start_b + self.layouts[1].bytes) // 1024) * 1024

    @property
    def name(self) -> str:
        form = self.form
        signs = f" signs {form.sign_a} {form.sign_b}" if (form.sign_a, form.sign_b) != (1, 1) else ""
        a = "registers" if form.registers_a else f"{'mn' if form.mn_a else 'k'}{self.swizzle_a}"
        b = f"{'mn' if form.mn_b else 'k'}{self.swizzle_b}"
        scales = "".join(str(scale) for scale in self.scales)
        pad = f" pad {self.pad}" if self.pad else ""
        return f"wgmma/n{form.n} {form.element} {form.accumulator} A {a} B {b} scales {scales}{signs}{pad} {self.choice}"


def wgmma_family() -> Family:
    plans = tuple(dict.fromkeys(_plans()))
    forms = dict.fromkeys(plan.form for plan in plans)
    source = '#include "golden.cuh"\n\n' + _HELPERS + "\n".join(_kernel(form) for form in forms)
    return Family("wgmma", source, tuple(_case(plan) for plan in plans))


def _plans() -> Iterator[_Plan]:
    for n in (8, 16, 24, 64, 96, 128, 192, 256):
        yield _Plan(_Form(n))
        yield _Plan(_Form(n, mn_b=True), swizzle_b=128 if n % 64 == 0 else 64 if n % 32 == 0 else 32 if n % 16 == 0 else 0)
    for n in (8, 64, 128, 256):
        yield _Plan(_Form(n, "bf16"))
        yield _Plan(_Form(n, "f16", "f16"))
    for swizzle_a, swizzle_b in itertools.product(_SWIZZLES, repeat=2):
        for mn_a, mn_b in itertools.product((False, True), repeat=2):
            if swizzle_a == swizzle_b or (mn_a, mn_b) == (False, True):
                yield _Plan(_Form(64, mn_a=mn_a, mn_b=mn_b), (1,) * 4, swizzle_a, swizzle_b)
    for swizzle, mn in itertools.product(_SWIZZLES, (False, True)):
        yield _Plan(_Form(64, mn_a=mn, mn_b=mn), (1, 1), swizzle, swizzle, pad=1024)
        yield _Plan(_Form(128, "bf16", mn_a=mn, mn_b=not mn), (0, 1, 1, 1, 1, 1), swizzle, swizzle)
    yield from _register_plans()
    for sign_a, sign_b in ((-1, 1), (1, -1), (-1, -1)):
        yield _Plan(_Form(16, sign_a=sign_a, sign_b=sign_b), (1, 1))
        yield _Plan(_Form(16, registers_a=True, sign_a=sign_a, sign_b=sign_b))
        yield _Plan(_Form(16, "bf16", sign_a=sign_a, sign_b=sign_b), choice="normals")
    for scales in ((0,), (0, 1), (1, 0), (1, 1, 0, 1), (0, 0, 1, 1)):
        yield _Plan(_Form(16), scales)
        yield _Plan(_Form(16, "f16", "f16"), scales)
    for element, accumulator in (("f16", "f32"), ("bf16", "f32"), ("f16", "f16")):
        for choice in SETS[1:]:
            yield _Plan(_Form(8, element, accumulator), choice=choice)
            yield _Plan(_Form(16, element, accumulator), (0, 1, 1, 1), choice=choice)
            yield _Plan(_Form(8, element, accumulator), (0,), choice=choice)


def _register_plans() -> Iterator[_Plan]:
    for element, accumulator in (("f16", "f32"), ("bf16", "f32"), ("f16", "f16")):
        for mn_b in (False, True):
            form = _Form(64, element, accumulator, registers_a=True, mn_b=mn_b)
            for swizzle in (32, 128):
                yield _Plan(form, (1, 1, 1, 1), swizzle_b=swizzle)
        yield _Plan(_Form(8, element, accumulator, registers_a=True), choice="normals")


_HELPERS = """__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

"""


def _kernel(form: _Form) -> str:
    """Numbers: steps, bytes of shared memory, byte of the registers of A, byte of the accumulators."""
    count, letter, kind = form.registers, *(("f", "float") if form.accumulator == "f32" else ("r", "unsigned"))
    listed = "{" + ",".join(f"%{at}" for at in range(count)) + "}"
    a_operands = 4 if form.registers_a else 1
    a = "{" + ",".join(f"%{count + at}" for at in range(4)) + "}" if form.registers_a else f"%{count}"
    b, scale = count + a_operands, count + a_operands + 1
    majors = f"{int(form.mn_b)}" if form.registers_a else f"{int(form.mn_a)}, {int(form.mn_b)}"
    opcode = f"wgmma.mma_async.sync.aligned.m64n{form.n}k16.{form.accumulator}.{form.element}.{form.element}"
    flags = f"p, {form.sign_a}, {form.sign_b}, {majors}"
    text = f"{{.reg .pred p; setp.ne.b32 p, %{scale}, 0; {opcode} {listed}, {a}, %{b}, {flags};}}"
    outs = ", ".join(f'"+{letter}"(d[{at}])' for at in range(count))
    a_in = ", ".join(f'"r"(a[{at}])' for at in range(4)) if form.registers_a else '"l"(steps[4 * s] + base)'
    load_a = (
        "    unsigned a[4];\n"
        "    for (int r = 0; r < 4; ++r) a[r] = ((const unsigned*)(in + n.v[2]))[(4 * s + r) * 128 + threadIdx.x];\n"
        '    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n'
    )
    return (
        f'extern "C" __global__ void __launch_bounds__(128)\n{form.kernel}'
        "(const byte* in, byte* out, const __grid_constant__ Numbers n) {\n"
        "  extern __shared__ __align__(1024) byte tiles[];\n"
        "  copy_words(tiles, in + 1024, n.v[1]);\n"
        f"  {kind} d[{count}];\n"
        f"  for (int r = 0; r < {count}; ++r) d[r] = ((const {kind}*)(in + n.v[3]))[r * 128 + threadIdx.x];\n"
        '  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n  __syncthreads();\n'
        "  const unsigned long long* steps = (const unsigned long long*)in;\n"
        "  const unsigned long long base = (shared_address(tiles) & 0x3FFFF) >> 4;\n"
        '  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n'
        "#pragma unroll 1\n  for (int s = 0; s < n.v[0]; ++s) {\n"
        + (load_a if form.registers_a else "")
        + f'    asm volatile("{text}" : {outs}\n'
        + f'                 : {a_in}, "l"(steps[4 * s + 1] + base), "r"((int)steps[4 * s + 2]) : "memory");\n'
        + ("    wait_products();\n" if form.registers_a else "")
        + "  }\n  wait_products();\n"
        + f"  for (int r = 0; r < {count}; ++r) (({kind}*)out)[r * 128 + threadIdx.x] = d[r];\n}}\n"
    )


def _case(plan: _Plan) -> Case:
    form, steps = plan.form, len(plan.scales)
    a_bytes = steps * 4 * _THREADS * 4 if form.registers_a else 0
    c_bytes = form.registers * _THREADS * 4

    def build(draw: Draw) -> Buffers:
        a, b, c = (operand(draw, count, kind, plan.choice) for count, kind in _counts(plan))
        header = np.zeros((_HEADER // 32, 4), np.uint64)
        shared = draw.bits(plan.smem // 2, 16)
        layout_a, layout_b = plan.layouts
        for at, scale in enumerate(plan.scales):
            first = 0 if form.registers_a else layout_a.descriptor(0, at)
            header[at] = first, layout_b.descriptor(plan.start_b, at), scale, 0
        if not form.registers_a:
            shared[layout_a.addresses()[:_M, : steps * _K] // 2] = a.reshape(_M, steps * _K)
        shared[(plan.start_b + layout_b.addresses()[: form.n, : steps * _K]) // 2] = b.reshape(form.n, steps * _K)
        registers = [_to_registers(a.reshape(_M, steps * _K))] if form.registers_a else []
        return raw(header, shared, *registers, c), unwritten(c_bytes)

    def results(given: Bytes) -> tuple[Array, Array]:
        """Exact D and the sum of magnitudes, in the order of the registers."""
        a, b, c = _read(plan, given)
        rows, columns = _d_places(form)
        total = np.zeros((_M, form.n))
        total[rows, columns] = c
        size = np.abs(total)
        for at, scale in enumerate(plan.scales):
            part = slice(at * _K, (at + 1) * _K)
            with np.errstate(all="ignore"):
                new, magnitude = product(a[:, part] * form.sign_a * form.sign_b, b[:, part].T, np.zeros((_M, form.n)))
                total, size = (total + new, size + magnitude) if scale else (new, magnitude)
        return total[rows, columns], size[rows, columns]

    def slack(given: Bytes, _: Bytes) -> Array:
        return bound(results(given)[1], form.accumulator, steps)

    exact = plan.choice == "integers"
    start_a = _HEADER + plan.smem
    within = Within("f32" if form.accumulator == "f32" else "f16", slack, "one alignment a step; see products.bound")
    return Case(
        name=plan.name,
        kernel=form.kernel,
        build=build,
        block=(_THREADS, 1, 1),
        smem=plan.smem,
        numbers=(steps, plan.smem, start_a, start_a + a_bytes),
        comparison=None if exact else within,
        expected=None if plan.choice == "edges" else lambda given, _: raw(to_bits(results(given)[0], form.accumulator)),
        expected_element=form.accumulator,
        check=None if exact else slack,
    )


def _counts(plan: _Plan) -> Sequence[tuple[int, str]]:
    k, form = _K * len(plan.scales), plan.form
    return (_M * k, form.element), (form.n * k, form.element), (_M * form.n, form.accumulator)


def _read(plan: _Plan, given: Bytes) -> tuple[Array, Array, Array]:
    """A (64, k) and B (n, k) as values, and C in register order, back from a case's input."""
    form, k = plan.form, _K * len(plan.scales)
    shared = given[_HEADER : _HEADER + plan.smem].view(np.uint16)
    rest = given[_HEADER + plan.smem :]
    layout_a, layout_b = plan.layouts
    b = shared[(plan.start_b + layout_b.addresses()[: form.n, :k]) // 2]
    if form.registers_a:
        size = len(plan.scales) * 4 * _THREADS * 4
        a, rest = _from_registers(rest[:size].view(np.uint16), len(plan.scales)), rest[size:]
    else:
        a = shared[layout_a.addresses()[:_M, :k] // 2]
    c = rest.view(np.uint32 if form.accumulator == "f32" else np.uint16)
    return to_values(a, form.element), to_values(b, form.element), to_values(c, form.accumulator)


def _a_places(steps: int) -> tuple[Array, Array]:
    """Row and k of every half of [step][register][thread][half]: as mma.m16n8k16, a warp having 16 rows."""
    step, register, thread, half = np.indices((steps, 4, _THREADS, 2))
    lane = thread % 32
    return thread // 32 * 16 + lane // 4 + 8 * (register % 2), step * _K + 2 * (lane % 4) + half + 8 * (register // 2)


def _to_registers(a: Array) -> Array:
    return a[_a_places(a.shape[1] // _K)]


def _from_registers(halves: Array, steps: int) -> Array:
    a = np.zeros((_M, steps * _K), np.uint16)
    places = _a_places(steps)
    a[places] = halves.reshape(places[0].shape)
    return a


def _d_places(form: _Form) -> tuple[Array, Array]:
    """Row and column of every element of D in register order."""
    if form.accumulator == "f32":
        register, thread = np.indices((form.registers, _THREADS)).reshape(2, -1)
        pair, upper, half = register // 4, register % 4 // 2, register % 2
    else:
        register, thread, half = np.indices((form.registers, _THREADS, 2)).reshape(3, -1)
        pair, upper = register // 2, register % 2
    lane = thread % 32
    return thread // 32 * 16 + lane // 4 + 8 * upper, 8 * pair + 2 * (lane % 4) + half
