"""A kernel of a pool whose windows share columns: each column of a line of windows is reduced once, in shared memory."""

from collections.abc import Mapping, Sequence

from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.expressions import Expr
from cudal2_agent.policies.fusion.index_algebra import Index, Var, flat, of, unflat
from cudal2_agent.policies.fusion.programs import KernelProgram, MustStore, Reading, cone
from cudal2_agent.policies.fusion.row_kernels.kernel_body import KernelBody
from cudal2_agent.policies.fusion.values import LineWindow, Map, Unplanned, Value

_MOST_COLUMNS = 8192  # of a CTA


def line_window(program: KernelProgram, buffers: Mapping[int, str]) -> LineWindow | None:
    """The only pool that a kernel without a reduction computes, where each of its elements needs one window of its line."""
    values = [value for store in program.stores for value in cone(store.value, buffers).values()]
    windows = {id(value): value.by_line for value in values if isinstance(value, Map) and value.by_line is not None}
    if program.anchor is not None or len(windows) != 1:
        return None
    (window,) = windows.values()
    if window.size > _MOST_COLUMNS:
        return None
    line, place = _line(program, window)
    reading = _LineReading(program, buffers, window, line)
    reading.row = line * window.windows + place
    try:
        for store in program.stores:
            reading.stored(store)
    except MustStore:
        return None
    return window


def _line(program: KernelProgram, window: LineWindow) -> tuple[Index, Index]:
    return of(Var("line_at", program.rows // window.windows)), of(Var("place_at", window.windows))


class _LineReading(Reading):
    """Expressions at the place of a line, over its columns in shared memory. Raises: MustStore for those of another line."""

    def __init__(self, program: KernelProgram, buffers: Mapping[int, str], window: LineWindow, line: Index) -> None:
        super().__init__(program, buffers)
        self._window, self._line = window, line

    def _read(self, value: Value, index: Sequence[Index]) -> Expr:
        if value is self._window.columns:
            if flat(index[:-1], value.shape[:-1]) != self._line:
                raise MustStore(value)
            return self.pool.call(f"columns_of[{index[-1]} - base_at]", value.ctype)
        if isinstance(value, Map) and value.by_line is self._window:
            return self._window.at(self, index)
        return super()._read(value, index)


class WindowKernel(KernelBody):
    """A CTA computes `threads` times `items` neighbouring windows of a line."""

    def __init__(self, program: KernelProgram, axes: Axes, buffers: Mapping[int, str]) -> None:
        super().__init__(program, axes, buffers)
        window = line_window(program, buffers)
        if window is None:
            raise Unplanned(program.name, "a pool by lines")
        self._window = window
        self._columns = self.reading
        self._line, self._place = _line(program, window)
        self.reading = _LineReading(program, buffers, window, self._line)
        self.reading.pool, self.reading.loads = self._columns.pool, self._columns.loads

    def write(self) -> None:
        window, threads = self._window, self.axes.threads
        most = max((_MOST_COLUMNS - window.size) // window.stride, 1)
        count = min(threads * self.axes.items, window.windows, most)
        pieces = -(-window.windows // count)
        columns = (count - 1) * window.stride + window.size
        self.ctas = self.program.rows // window.windows * pieces
        self.line(f"__shared__ {window.columns.ctype} columns_of[{columns}];")
        self.line(f"const unsigned line_at = blockIdx.x / {pieces}u, first_at = blockIdx.x % {pieces}u * {count}u;")
        self.line(f"const unsigned base_at = first_at * {window.stride}u;")
        with self.writer.block(f"for (unsigned c_at = threadIdx.x; c_at < {columns}u; c_at += {threads}u)"):
            self.line("const unsigned column_at = base_at + c_at;")
            shape = window.columns.shape
            index = [*unflat(self._line, shape[:-1]), of(Var("column_at", shape[-1]))]
            self.line(f"columns_of[c_at] = {self.writer.write(self._columns.read(window.columns, index))};")
        self.line("__syncthreads();")
        with self.writer.block(f"for (unsigned p_at = threadIdx.x; p_at < {count}u; p_at += {threads}u)"):
            self.line("const unsigned place_at = first_at + p_at;")
            if window.windows % count:
                self.line(f"if (place_at >= {window.windows}u) break;")
            self.store([(self._line * window.windows + self._place, Index(), 0)], None, by_row=True)
