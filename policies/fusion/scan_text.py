"""CUDA C++ of a scan: running sums or products along one dimension, over elements that are computed where they are read."""

from collections.abc import Mapping, Sequence

from cudal2_agent.contract.plan.plan import Launch
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.grouping import ScanStep
from cudal2_agent.policies.fusion.index_algebra import Index, Var, flat, of
from cudal2_agent.policies.fusion.kernel_text import KernelText, buffer_args, kernel_source, launched
from cudal2_agent.policies.fusion.programs import KernelProgram, Reading
from cudal2_agent.policies.fusion.reduction_rules import start
from cudal2_agent.policies.fusion.row_kernels.layouts import WARP, RowKernel
from cudal2_agent.policies.fusion.values import Reduction
from cudal2_agent.policies.fusion.writer import StatementWriter

_SIGN = {"sum": "+", "prod": "*"}
_NEUTRAL = {"sum": "0", "prod": "1"}


def scan_text(step: ScanStep, axes: Axes, buffers: Mapping[int, str], elements: Mapping[str, BufferElement]) -> KernelText:
    """`rows`: a CTA scans a row, `vector` neighbours a thread at a time. `columns`: a thread scans `vector` rows, whose
    elements lie side by side, one after another. A row in `parts` takes a launch for their totals before that of the scan.
    """
    kernel = _ScanKernel(step, axes, buffers)
    before = kernel.totals(elements) if axes.parts > 1 else None
    ctas = kernel.rows() if axes.layout == "rows" else kernel.columns()
    states = () if before is None else before.scratch
    reads = [(each, elements[each]) for each in kernel.reading.loads] + [(each.name, each.element) for each in states]
    writes = [(step.buffer, elements[step.buffer])]
    source = kernel_source(step.name, str(axes.threads), kernel.writer.lines, reads, writes)
    grid, block = (ctas, 1, 1), (axes.threads, 1, 1)
    launch = Launch(entry=step.name, grid=grid, block=block, args=buffer_args(reads, writes))
    if before is None:
        return KernelText(source, launch)
    return KernelText(f"{before.source}\n{source}", launch, (before.launch,), states)


class _ScanKernel:
    def __init__(self, step: ScanStep, axes: Axes, buffers: Mapping[int, str]) -> None:
        self.step, self.axes = step, axes
        scan = step.scan
        shape = tuple(size for dim, size in enumerate(scan.shape) if dim != scan.dim)
        self._along = Reduction(scan.name, shape, scan.element, scan.operation, scan.source, (scan.dim,))
        own = {key: name for key, name in buffers.items() if name != step.buffer}
        self._program = KernelProgram(step.name, self._along.numel, self._along.length, self._along, [], [[self._along]])
        self._own = own
        self.reading = Reading(self._program, own)
        self.writer = StatementWriter(self.reading.pool)
        self.line = self.writer.line
        self._sign, self._kind = _SIGN[scan.operation], scan.ctype

    def totals(self, elements: Mapping[str, BufferElement]) -> KernelText:
        """The kernel that reduces each part of a row."""
        axes = self.axes.model_copy(update={"lanes": self.axes.threads, "items": 2})
        return launched(RowKernel(self._program, axes, self._own, 0), f"{self.step.name}_0", elements)

    def rows(self) -> int:
        """The statements; how many CTAs there are."""
        axes, length, kind = self.axes, self._along.length, self._kind
        groups, warps = length // axes.vector, axes.threads // WARP
        neutral = start(_NEUTRAL[self.step.scan.operation], kind)
        wide = "double" if kind == "float" else kind  # of what comes before a thread, which may be thousands of elements
        self.line(f"__shared__ {wide} sums[2][{warps}];")
        row_at, parts = ("blockIdx.x", 1) if axes.parts == 1 else (f"blockIdx.x / {axes.parts}u", axes.parts)
        self.line(f"const unsigned row = {row_at}, lane = threadIdx.x % 32u, warp = threadIdx.x / 32u;")
        self.line(f"{wide} before = {neutral};")
        chunk, begin, end = -(-groups // parts), "0u", f"{groups}u"
        if parts > 1:
            begin, end = "begin", "end"
            self.line(f"const unsigned piece = blockIdx.x % {parts}u;")
            self.line(f"const unsigned begin = piece * {chunk}u, end = min(begin + {chunk}u, {groups}u);")
            total = f"{self.step.name}_state0_0_v[row * {parts}u + w]"
            self.line(f"for (unsigned w = 0; w < piece; ++w) before = before {self._sign} {total};")
        uneven = chunk % axes.threads or groups % chunk
        with self.writer.block(f"for (unsigned first = {begin}, now = 0; first < {end}; first += {axes.threads}u, now ^= 1u)"):
            bound = f"wanted < {end}" if uneven else None
            self.line("const unsigned wanted = first + threadIdx.x;")
            self.line(f"const unsigned k = {f'min(wanted, {groups - 1}u)' if uneven else 'wanted'};")
            row, group = of(Var("row", self._along.numel)), of(Var("k", groups))
            places = [(row, group * axes.vector + lane) for lane in range(axes.vector)]
            texts = self._elements(places, bound)
            for lane, text in enumerate(texts):
                chosen = f"(wanted < {end} ? {text} : {neutral})" if uneven else text
                running = f"v{lane - 1} {self._sign} {chosen}" if lane else chosen
                self.line(f"const {kind} v{lane} = {running};")
            last = f"v{axes.vector - 1}"
            self.line(f"{wide} up_to = {last};")
            with self.writer.block("for (unsigned d = 1; d < 32u; d <<= 1)"):
                self.line(f"const {wide} other = __shfl_up_sync(0xffffffffu, up_to, d);")
                self.line(f"if (lane >= d) up_to = other {self._sign} up_to;")
            self.line("if (lane == 31u) sums[now][warp] = up_to;")
            self.line("__syncthreads();")
            self.line(f"{wide} offset = before, all = before;")
            with self.writer.block(f"for (unsigned w = 0; w < {warps}u; ++w)"):
                self.line("if (w == warp) offset = all;")
                self.line(f"all = all {self._sign} sums[now][w];")
            self.line(f"const {wide} left = __shfl_up_sync(0xffffffffu, up_to, 1);")
            self.line(f"if (lane > 0u) offset = offset {self._sign} left;")
            self.line("before = all;")
            with self.writer.block(f"if ({bound})" if uneven else ""):
                self._store(places, [f"({kind})(offset {self._sign} v{lane})" for lane in range(axes.vector)])
        return self._along.numel * parts

    def columns(self) -> int:
        """The statements; how many CTAs there are."""
        axes, kind = self.axes, self._kind
        columns = self._along.numel // axes.vector
        self.line(f"const unsigned column = blockIdx.x * {axes.threads}u + threadIdx.x;")
        if columns % axes.threads:
            self.line(f"if (column >= {columns}u) return;")
        neutral = start(_NEUTRAL[self.step.scan.operation], kind)
        for lane in range(axes.vector):
            self.line(f"{'double' if kind == 'float' else kind} v{lane} = {neutral};")
        self.line("#pragma unroll 4")
        with self.writer.block(f"for (unsigned k = 0; k < {self._along.length}u; ++k)"):
            place = of(Var("k", self._along.length))
            places = [(of(Var("column", columns)) * axes.vector + lane, place) for lane in range(axes.vector)]
            for lane, text in enumerate(self._elements(places, None)):
                self.line(f"v{lane} = v{lane} {self._sign} {text};")
            self._store(places, [f"({kind})v{lane}" for lane in range(axes.vector)])
        return -(-columns // axes.threads)

    def _elements(self, places: Sequence[tuple[Index, Index]], bound: str | None) -> list[str]:
        exprs = []
        for row, place in places:
            self.reading.row, self.reading.place, self.reading.bound = row, place, bound
            exprs.append(self.reading.element(self._along))
        self.writer.load(exprs, self.axes.vector)
        return [self.writer.write(each) for each in exprs]

    def _store(self, places: Sequence[tuple[Index, Index]], texts: Sequence[str]) -> None:
        targets = []
        for row, place in places:
            self.reading.row, self.reading.place = row, place
            targets.append(flat(self.step.target(self.reading.full(self._along)), self.step.stored.shape))
        if self.axes.vector > 1 and targets[0] - targets[1] == Index((), 1):  # a flipped row
            targets, texts = targets[::-1], list(texts)[::-1]
        self.writer.store(self.step.buffer, self.step.scan.element, targets, texts)
