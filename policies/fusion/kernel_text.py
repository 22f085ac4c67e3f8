"""CUDA C++ of one program for one set of axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cudal2_agent.contract.plan.plan import Launch, Scratch, TensorArg
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.index_algebra import Index, Var, of
from cudal2_agent.policies.fusion.programs import KernelProgram
from cudal2_agent.policies.fusion.row_kernels.kernel_body import KernelBody
from cudal2_agent.policies.fusion.row_kernels.layouts import ColumnKernel, RowKernel
from cudal2_agent.policies.fusion.row_kernels.window_kernel import WindowKernel
from cudal2_agent.policies.fusion.writer import STORED

Parameter = tuple[str, BufferElement]  # a buffer that a kernel reads or writes


@dataclass(frozen=True)
class KernelText:
    """A kernel and its launch. `before`: launches that it needs before its own; `scratch`: what they hand on."""

    source: str
    launch: Launch
    before: tuple[Launch, ...] = ()
    scratch: tuple[Scratch, ...] = ()


def kernel_text(
    program: KernelProgram, axes: Axes, buffers: Mapping[int, str], elements: Mapping[str, BufferElement]
) -> KernelText:
    """`elements`: of each buffer by name. A row in parts takes a launch for each stage, and one for what is stored."""
    if axes.layout in ("flat", "lines"):
        whole = FlatKernel if axes.layout == "flat" else WindowKernel
        return launched(whole(program, axes, buffers), program.name, elements)
    kind = RowKernel if axes.layout == "rows" else ColumnKernel
    if axes.parts == 1:
        return launched(kind(program, axes, buffers), program.name, elements)
    last = len(program.stages)
    phases = [
        launched(
            kind(program, phase_axes(program, axes, at), buffers, at),
            f"{program.name}_{at}" if at < last else program.name,
            elements,
        )
        for at in range(last + 1)
    ]
    scratch = {each.name: each for phase in phases for each in phase.scratch}
    source = "\n".join(phase.source for phase in phases)
    return KernelText(source, phases[-1].launch, tuple(each.launch for each in phases[:-1]), tuple(scratch.values()))


def phase_axes(program: KernelProgram, axes: Axes, phase: int) -> Axes:
    """Of a launch of a row in parts: threads that only merge states and store rows are as many as there are states."""
    if phase < len(program.stages) or axes.layout == "columns" or any(not store.by_row for store in program.stores):
        return axes
    lanes = min(1 << max(axes.parts - 1, 1).bit_length(), axes.lanes)
    return axes.model_copy(update={"lanes": lanes, "threads": min(max(lanes, 128), axes.threads)})


def launched(body: KernelBody, name: str, elements: Mapping[str, BufferElement]) -> KernelText:
    """One kernel with its launch."""
    body.write()
    program, axes = body.program, body.axes
    stored = [store.buffer for store in program.stores]
    states = [(each.name, each.element) for each in body.states_read]
    reads = [(each, elements[each]) for each in body.reading.loads if each not in stored] + states
    writes = [(each.name, each.element) for each in body.states_written]
    if not writes:
        writes = [(each, elements[each]) for each in dict.fromkeys(stored)]
    shared = ["  extern __shared__ __align__(16) unsigned char kept_bytes[];"] if body.shared_bytes else []
    source = kernel_source(name, str(axes.threads), [*shared, *body.writer.lines], reads, writes)
    cluster = (axes.cluster, 1, 1)
    shape = {"grid": (body.ctas, 1, 1), "block": (axes.threads, 1, 1), "cluster": cluster, "dynamic_smem": body.shared_bytes}
    scratch = (*body.states_read, *body.states_written)
    return KernelText(source, Launch(entry=name, args=buffer_args(reads, writes), **shape), scratch=scratch)


def kernel_source(
    name: str,
    bounds: str,
    lines: Sequence[str],
    reads: Sequence[Parameter],
    writes: Sequence[Parameter],
    maps: Sequence[str] = (),
) -> str:
    """A kernel in C++ from its statements. `bounds`: for its launches. `maps`: its parameters of TMA, which come first."""
    parameters = [f"const __grid_constant__ cudal2::TensorMap {each}" for each in maps]
    parameters += [f"const {STORED[element]}* __restrict__ {each}" for each, element in reads]
    parameters += [f"{STORED[element]}* __restrict__ {each}" for each, element in writes]
    head = f'extern "C" __global__ void __launch_bounds__({bounds}) {name}(\n    '
    return head + ",\n    ".join(parameters) + ") {\n" + "\n".join(lines) + "\n}\n"


def buffer_args(reads: Sequence[Parameter], writes: Sequence[Parameter]) -> tuple[TensorArg, ...]:
    """The arguments of a launch of `kernel_source`."""
    return (*(TensorArg(tensor=each) for each, _ in reads), *(TensorArg(tensor=each, access="write") for each, _ in writes))


class FlatKernel(KernelBody):
    """No reduction: every thread computes `items` groups of `vector` neighbours."""

    def write(self) -> None:
        axes, groups = self.axes, self.program.rows // self.axes.vector
        step = axes.threads * axes.items
        self.ctas = -(-groups // step)
        self.line(f"const unsigned first = blockIdx.x * {step}u + threadIdx.x;")
        if axes.items == 1:
            self._group(Var("first", groups), step)
            return
        self.line("#pragma unroll")
        with self.writer.block(f"for (unsigned item = 0; item < {axes.items}u; ++item)"):
            self.line(f"const unsigned q_at = first + item * {axes.threads}u;")
            self._group(Var("q_at", groups), step)

    def _group(self, group: Var, step: int) -> None:
        vector = self.axes.vector
        lanes = [(of(group) * vector + lane, Index(), 0) for lane in range(vector)]
        if group.extent % step == 0:
            self.store(lanes, None, by_row=True)
            return
        with self.writer.block(f"if ({group} < {group.extent}u)"):
            self.store(lanes, None, by_row=True)
