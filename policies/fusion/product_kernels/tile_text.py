"""CUDA C++ of a product in f32 by tiles: a thread keeps `tm` x `tn` sums in registers, operands go through shared memory.

The next tile is loaded from memory while the present one is multiplied, into the other of two buffers.
"""

from collections.abc import Mapping
from typing import Literal

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.plan.plan import Launch, TensorArg
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index, Var, of
from cudal2_agent.policies.fusion.kernel_text import KernelText
from cudal2_agent.policies.fusion.product_kernels.contraction import Contraction, Operand
from cudal2_agent.policies.fusion.programs import KernelProgram, Reading, step_of
from cudal2_agent.policies.fusion.writer import STORED, StatementWriter

_WIDE = 4  # elements of a vector load, and of a read from shared memory


class SumTile(Record):
    """A CTA computes m x n of the result, k terms at a time; a thread tm x tn of it. `split`: parts of the sum."""

    m: int
    n: int
    k: int
    tm: int
    tn: int

    @property
    def threads(self) -> int:
        return self.m // self.tm * (self.n // self.tn)

    def text(self) -> str:
        return f"tile {self.m}x{self.n}x{self.k} {self.tm}x{self.tn}"

    @classmethod
    def parse(cls, text: str) -> "SumTile":
        """Raises: ValueError."""
        _, tile, own = text.split()
        m, n, k = map(int, tile.split("x"))
        tm, tn = map(int, own.split("x"))
        return cls(m=m, n=n, k=k, tm=tm, tn=tn)


def tile_text(
    name: str, sums: Contraction, tile: SumTile, out: str, buffers: Mapping[int, str], elements: Mapping[str, BufferElement]
) -> KernelText:
    """The kernel and its launch. `out`: the buffer of the result."""
    kernel = _Tiled(name, sums, tile, out, buffers, elements[out])
    kernel.write()
    reads = list(kernel.reading.loads)
    parameters = [f"const {STORED[elements[each]]}* __restrict__ {each}" for each in reads]
    parameters.append(f"{STORED[elements[out]]}* __restrict__ {out}")
    head = f'extern "C" __global__ void __launch_bounds__({tile.threads}) {name}(\n    '
    source = head + ",\n    ".join(parameters) + ") {\n" + "\n".join(kernel.writer.lines) + "\n}\n"
    columns, rows = -(-sums.n // tile.n), -(-sums.m // tile.m)
    args = (*(TensorArg(tensor=each) for each in reads), TensorArg(tensor=out, access="write"))
    grid = (columns * rows, 1, sums.batches)
    return KernelText(source, Launch(entry=name, grid=grid, block=(tile.threads, 1, 1), args=args))


class _Tiled:
    def __init__(
        self, name: str, sums: Contraction, tile: SumTile, out: str, buffers: Mapping[int, str], element: BufferElement
    ) -> None:
        self.sums, self.tile, self.out, self.element = sums, tile, out, element
        self.reading = Reading(KernelProgram(name, 1, 1, None, []), buffers)
        self.writer = StatementWriter(self.reading.pool)
        self.line = self.writer.line
        self._batch = of(Var("batch", sums.batches))
        self._accumulator = "double" if element is BufferElement.F64 else "float"

    def write(self) -> None:
        sums, tile, kind = self.sums, self.tile, self._accumulator
        rows = -(-sums.m // tile.m)
        self.line(f"__shared__ {kind} as[2][{tile.k}][{tile.m + _WIDE}], bs[2][{tile.k}][{tile.n + _WIDE}];")
        self.line("const unsigned t = threadIdx.x, batch = blockIdx.z;")
        # CTAs that run together share columns, which are the longer side as a rule.
        self.line(f"const unsigned m0 = blockIdx.x % {rows}u * {tile.m}u, n0 = blockIdx.x / {rows}u * {tile.n}u;")
        across = tile.n // tile.tn
        self.line(f"const unsigned tx = t % {across}u, ty = t / {across}u;")
        sides = [_Side(self, "a", sums.a, sums.m, tile.m), _Side(self, "b", sums.b, sums.n, tile.n)]
        for side in sides:
            side.declare()
        self.line(f"{kind} acc[{tile.tm}][{tile.tn}] = {{}};")
        with self.writer.block(""):
            self.line("const unsigned from = 0;")
            for side in sides:
                side.load()
        for side in sides:
            side.keep("0")
        self.line("__syncthreads();")
        with self.writer.block(f"for (unsigned k0 = 0, now = 0; k0 < {sums.k}u; k0 += {tile.k}u, now ^= 1u)"):
            self.line(f"const unsigned from = k0 + {tile.k}u;")
            self.line(f"const bool more = from < {sums.k}u;")
            with self.writer.block("if (more)"):
                for side in sides:
                    side.load()
            self._multiply()
            with self.writer.block("if (more)"):
                for side in sides:
                    side.keep("now ^ 1u")
                self.line("__syncthreads();")
        self._store()

    def _multiply(self) -> None:
        tile, kind = self.tile, self._accumulator
        self.line("#pragma unroll")
        with self.writer.block(f"for (unsigned kk = 0; kk < {tile.k}u; ++kk)"):
            self.line(f"{kind} a[{tile.tm}], b[{tile.tn}];")
            for name, count, thread, step in (("a", tile.tm, "ty", tile.m), ("b", tile.tn, "tx", tile.n)):
                wide = min(count, _WIDE)
                spread = step * wide // count  # neighbouring threads read neighbours: a quarter-warp all banks
                for at in range(count // wide):
                    where = f"{name}s[now][kk] + {thread} * {wide}u + {at * spread}u"
                    self.line(f"*reinterpret_cast<Pack<{kind}, {wide}>*>({name} + {at * wide}) = load_pack<{wide}>({where});")
            self.line("#pragma unroll")
            with self.writer.block(f"for (unsigned i = 0; i < {tile.tm}u; ++i)"):
                self.line("#pragma unroll")
                self.line(f"for (unsigned j = 0; j < {tile.tn}u; ++j) acc[i][j] += a[i] * b[j];")

    def _store(self) -> None:
        sums, tile = self.sums, self.tile
        high, wide = min(tile.tm, _WIDE), min(tile.tn, _WIDE)
        self.line("#pragma unroll")
        with self.writer.block(f"for (unsigned i = 0; i < {tile.tm}u; ++i)"):
            self.line(f"const unsigned m = m0 + i / {high}u * {tile.m * high // tile.tm}u + ty * {high}u + i % {high}u;")
            row = of(Var("m", sums.m))
            self.line(f"if (m >= {sums.m}u) continue;")
            for at in range(tile.tn // wide):
                self.line(f"const unsigned g{at}n = n0 / {wide}u + tx + {at * (tile.n // tile.tn)}u;")
                whole = sums.n % wide == 0
                group = of(Var(f"g{at}n", -(-sums.n // wide)))
                places = [sums.place(self._batch, row, group * wide + lane) for lane in range(wide)]
                texts = [f"acc[i][{at * wide + lane}]" for lane in range(wide)]
                if whole and not any(self._guards(inside) for _, inside in places):
                    with self.writer.block(f"if (g{at}n < {sums.n // wide}u)"):
                        self.writer.store(self.out, self.element, [place for place, _ in places], texts)
                    continue
                for lane, ((place, inside), text) in enumerate(zip(places, texts, strict=True)):
                    limits = [f"g{at}n * {wide}u + {lane}u < {sums.n}u", *self._guards(inside)]
                    with self.writer.block(f"if ({' && '.join(limits)})"):
                        self.writer.store(self.out, self.element, [place], [text])

    @staticmethod
    def _guards(inside: tuple[tuple[Index, int], ...]) -> list[str]:
        return [f"({index}) < {size}u" for index, size in inside if index.low < 0 or index.high >= size]


class _Side:
    """How the threads of a CTA load a tile of one operand."""

    def __init__(self, kernel: _Tiled, name: str, operand: Operand, size: int, extent: int) -> None:
        self.kernel, self.name, self.operand, self.size, self.extent = kernel, name, operand, size, extent
        self.along: Literal["k", "s"]
        self.along, self.wide = self._pattern()
        tile = kernel.tile
        per_line = (tile.k if self.along == "k" else extent) // self.wide
        self.per_line = max(per_line, 1)
        self.groups = tile.k * extent // self.wide
        self.each = -(-self.groups // tile.threads)

    def _pattern(self) -> tuple[Literal["k", "s"], int]:
        """Along which index neighbours lie in memory, and how many a thread loads at once."""
        kernel = self.kernel
        side, k = of(Var("side", self.size)), of(Var("inner", kernel.sums.k))
        probe = Reading(KernelProgram("", 1, 1, None, []), kernel.reading.buffers)
        read = self.operand(probe, kernel._batch, side, k)
        index = probe.pool.loads()[0].data[1]
        index = index.replace({var: expr.data for var, expr in probe.pool.given.items() if expr.kind == "index"})
        for along, variable, count in (("k", k, kernel.sums.k), ("s", side, self.size)):
            if variable.terms and step_of(index, variable) == 1:
                whole = read.kind == "load" and count % _WIDE == 0
                return along, _WIDE if whole else 1  # type: ignore[return-value]
        return "s", 1

    def declare(self) -> None:
        """What does not change along k: the places of a thread on its side, clamped to the operand."""
        kernel, name = self.kernel, self.name
        self._line(f"{kernel._accumulator} r{name}[{self.each * self.wide}];")
        for at in range(self.each):
            group = f"(t + {at * kernel.tile.threads}u)"
            line, place = f"{group} / {self.per_line}u", f"{group} % {self.per_line}u"
            own, other = (line, place) if self.along == "k" else (place, line)
            wide = self.wide if self.along == "s" else 1
            first = f"{'m0' if name == 'a' else 'n0'} / {wide}u + {own}"
            self._line(f"const unsigned s{name}{at} = min({first}, {-(-self.size // wide) - 1}u), q{name}{at} = {other};")

    def load(self) -> None:
        """From memory to registers, the tile that begins at `from`."""
        kernel, name, sums = self.kernel, self.name, self.kernel.sums
        wide_k = self.wide if self.along == "k" else 1
        wide_s = self.wide if self.along == "s" else 1
        lasts, uneven = -(-sums.k // wide_k), sums.k % kernel.tile.k
        for at in range(self.each):
            variable = Var(f"k{name}{at}", lasts)
            with kernel.writer.block(""):
                wanted = f"from / {wide_k}u + q{name}{at}"
                self._line(f"const unsigned w{name}{at} = {wanted}, {variable} = min({wanted}, {lasts - 1}u);")
                side = of(Var(f"s{name}{at}", -(-self.size // wide_s)))
                exprs: list[Expr] = []
                for lane in range(self.wide):
                    k = of(variable) * wide_k + (lane if wide_k > 1 else 0)
                    s = side * wide_s + (lane if wide_s > 1 else 0)
                    exprs.append(self.operand(kernel.reading, kernel._batch, s, k))
                kernel.writer.load(exprs, self.wide)
                for lane, expr in enumerate(exprs):
                    text = kernel.writer.write(expr)
                    text = f"w{name}{at} < {lasts}u ? {text} : 0" if uneven else text
                    self._line(f"r{name}[{at * self.wide + lane}] = {text};")

    def keep(self, buffer: str) -> None:
        """From registers to shared memory, by k."""
        name = self.name
        for at in range(self.each):
            group = f"(t + {at * self.kernel.tile.threads}u)"
            line, place = f"{group} / {self.per_line}u", f"{group} % {self.per_line}u"
            limit = f"if ({group} < {self.groups}u) " if self.groups % self.kernel.tile.threads else ""
            for lane in range(self.wide):
                value = f"r{name}[{at * self.wide + lane}]"
                if self.along == "k":
                    self._line(f"{limit}{name}s[{buffer}][{place} * {self.wide}u + {lane}u][{line}] = {value};")
                else:
                    self._line(f"{limit}{name}s[{buffer}][{line}][{place} * {self.wide}u + {lane}u] = {value};")

    def _line(self, text: str) -> None:
        self.kernel.line(text)
