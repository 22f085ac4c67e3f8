"""How rows are divided among threads: `rows` whose elements lie side by side, `columns` whose rows do."""

from collections.abc import Callable

from cudal2_agent.policies.fusion.index_algebra import Index, Var, of
from cudal2_agent.policies.fusion.row_kernels.passes import Fields, ReducingKernel
from cudal2_agent.policies.fusion.values import Unplanned

WARP = 32


class RowKernel(ReducingKernel):
    """`lanes` threads share a row: a part of a warp, or whole warps."""

    def write(self) -> None:
        axes, program = self.axes, self.program
        self.place_lanes, self.groups = axes.vector, program.length // axes.vector
        per_cta = axes.threads // axes.lanes
        self.ctas = -(-program.rows // per_cta) * self.share
        self.first = "lane"
        block = f"blockIdx.x / {self.share}u" if self.share > 1 else "blockIdx.x"
        self.line(f"const unsigned lane = threadIdx.x % {axes.lanes}u;")
        self.line(f"const unsigned wanted = {block} * {per_cta}u + threadIdx.x / {axes.lanes}u;")
        self.live(program.rows, per_cta, "row")
        self.rows()

    def writes_row(self, *, once: bool = False) -> str:
        first = "piece == 0u" if once and self.share > 1 else ""
        return " && ".join(filter(None, ("lane == 0u", first, self.live_rows)))

    def state_index(self, part: str, lane: int) -> str:  # noqa: ARG002 (one row a thread)
        return f"row * {self.axes.parts}u + {part}"

    def row(self, lane: int) -> Index:  # noqa: ARG002 (one row a thread)
        return of(Var("row", self.program.rows))

    def place(self, group: Index, lane: int) -> Index:
        return group * self.place_lanes + lane

    def combine(self, state: str, fields: Fields, merge: Callable[[str, str], str]) -> None:
        axes, own = self.axes, f"{state}_0_0"
        self._in_warp(own, fields, merge, min(axes.lanes, WARP))
        if axes.lanes <= WARP:
            return
        warps, of_row = axes.threads // WARP, axes.lanes // WARP
        for name, kind in fields:
            self.line(f"__shared__ {kind} {state}_{name}[{warps}];")
        with self.writer.block("if (threadIdx.x % 32u == 0u)"):
            for name, _ in fields:
                self.line(f"{state}_{name}[threadIdx.x / 32u] = {own}_{name};")
        self.line("__syncthreads();")
        begin = "" if of_row == warps else f"threadIdx.x / {axes.lanes}u * {of_row}u + "
        for name, _ in fields:
            self.line(f"{own}_{name} = {state}_{name}[{begin}threadIdx.x % {of_row}u];")
        self._in_warp(own, fields, merge, of_row)

    def combine_cluster(self, state: str, fields: Fields, merge: Callable[[str, str], str]) -> None:
        axes, own = self.axes, f"{state}_0_0"
        rows, at, width = axes.threads // axes.lanes, f"threadIdx.x / {axes.lanes}u", 1 << (axes.cluster - 1).bit_length()
        for name, kind in fields:
            self.line(f"__shared__ {kind} {state}_all_{name}[{rows}];")
            self.line(f"if ({self.first} == 0u) {state}_all_{name}[{at}] = {own}_{name};")
        self.line("cluster_sync();")
        rank = f"min(threadIdx.x % {width}u, {axes.cluster - 1}u)"
        for name, _ in fields:
            self.line(f"{own}_{name} = *of_rank(&{state}_all_{name}[{at}], {rank});")
        self._in_warp(own, fields, merge, width, axes.cluster)

    def _in_warp(
        self, own: str, fields: Fields, merge: Callable[[str, str], str], width: int, count: int | None = None
    ) -> None:
        """Merge the states of `count` threads of each `width` in the order of a tree; all of them have the result."""
        inside = f"if (threadIdx.x % {width}u + d < {count}u) " if count not in (None, width) else ""
        with self.writer.block(f"for (unsigned d = {width // 2}u; d > 0u; d >>= 1)"):
            for name, kind in fields:
                self.line(f"const {kind} o_{name} = __shfl_down_sync(0xffffffffu, {own}_{name}, d, {width});")
            merged = merge(own, "o")
            self.line(f"{inside}{{ {merged} }}" if inside else merged)
        for name, _ in fields:
            self.line(f"{own}_{name} = __shfl_sync(0xffffffffu, {own}_{name}, 0, {width});")


class ColumnKernel(ReducingKernel):
    """Neighbouring rows lie side by side in memory: a thread takes `vector` of them, and `lanes` threads share the length."""

    def write(self) -> None:
        axes, program = self.axes, self.program
        self.row_lanes, self.groups = axes.vector, program.length
        across = axes.threads // axes.lanes
        self._columns = program.rows // axes.vector
        self.ctas = -(-self._columns // across) * self.share
        self.first = "lane"
        block = f"blockIdx.x / {self.share}u" if self.share > 1 else "blockIdx.x"
        self.line(f"const unsigned across = threadIdx.x % {across}u, lane = threadIdx.x / {across}u;")
        self.line(f"const unsigned wanted = {block} * {across}u + across;")
        self.live(self._columns, across, "column")
        self.rows()

    def writes_row(self, *, once: bool = False) -> str:
        first = "piece == 0u" if once and self.share > 1 else ""
        return " && ".join(filter(None, ("lane == 0u" if self.axes.lanes > 1 else "", first, self.live_rows)))

    def state_index(self, part: str, lane: int) -> str:
        return f"{part} * {self.program.rows}u + column * {self.row_lanes}u + {lane}u"

    def row(self, lane: int) -> Index:
        return of(Var("column", self._columns)) * self.row_lanes + lane

    def place(self, group: Index, lane: int) -> Index:  # noqa: ARG002 (one element at a time)
        return group

    def combine(self, state: str, fields: Fields, merge: Callable[[str, str], str]) -> None:
        axes = self.axes
        across = axes.threads // axes.lanes
        own = [f"{state}_{each}_0" for each in range(self.row_lanes)]
        places = [f"across + {each * across}u" for each in range(self.row_lanes)]
        for name, kind in fields:
            self.line(f"__shared__ {kind} {state}_{name}[{axes.lanes}][{across * axes.vector}];")
            for place, each in zip(places, own, strict=True):
                self.line(f"{state}_{name}[lane][{place}] = {each}_{name};")
        self.line("__syncthreads();")
        for place, each in zip(places, own, strict=True):
            for name, _ in fields:
                self.line(f"{each}_{name} = {state}_{name}[0][{place}];")
        with self.writer.block(f"for (unsigned w = 1; w < {axes.lanes}u; ++w)"):
            for at, (place, each) in enumerate(zip(places, own, strict=True)):
                for name, kind in fields:
                    self.line(f"const {kind} o{at}_{name} = {state}_{name}[w][{place}];")
                self.line(merge(each, f"o{at}"))

    def combine_cluster(self, state: str, fields: Fields, merge: Callable[[str, str], str]) -> None:  # noqa: ARG002 (none)
        raise Unplanned("a reduction", "of rows side by side in a cluster")
