"""What PyTorch makes of a module: eager, eager in a CUDA graph, and compiled, of the task's arithmetic, from the task's graph.

`eager`: each call alone between two events on an idle stream, host time of the launches included, as KernelBench measures.
The others are launches of a graph, so device time only. Compilers run in the worker's own process, in its jail; their program
comes from the graph and nothing of the problem's file. All read the buffers that a candidate reads, and write memory of their
own, as PyTorch does. What they wrote is copied to the outputs' slots where it is judged, which is not timed.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.evaluation import COMPILED, EAGER, EAGER_GRAPH, MAX_AUTOTUNE, MODULE_BASELINES
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.baselines.library import LibraryContender, Unavailable
from cudal2_agent.sandbox.cuda.baselines.library_baselines import Baselines
from cudal2_agent.sandbox.cuda.contender import NamedOperands
from cudal2_agent.sandbox.cuda.modules.tensors import allocating, as_computed, view
from cudal2_agent.sandbox.cuda.modules.torch_program import program_of, read_buffers, written_buffers
from cudal2_agent.sandbox.modules.library_calls import arithmetic_of

Program = Callable[..., Sequence[torch.Tensor]]
Entered = Callable[[], contextlib.AbstractContextManager[Any]]
KEPT_BYTES = 16 * 1024**2  # of a launch's results that it keeps until they are judged; of larger ones the last launch's are
NO_REWARD = "no compiled program beside the candidate: its speedup is over eager PyTorch alone, and earns no reward"
COMPILE_S = 180.0  # of one compilation, tuning included
_MODES = {COMPILED: None, MAX_AUTOTUNE: "max-autotune-no-cudagraphs"}


class ModuleBaseline(LibraryContender):
    """A program over a task's buffers. `streamed`: whether its calls are timed with their host time, outside a graph."""

    def __init__(self, name: str, detail: str, task: ModuleTask, program: Program, *, streamed: bool = False) -> None:
        super().__init__(name, detail)
        self.streamed = streamed
        self._task, self._program = task, program

    def bind(self, operands: NamedOperands) -> "BoundProgram":
        inputs = tensors_of(self._task, operands.arrays, read_buffers(self._task))
        targets = tensors_of(self._task, operands.arrays, written_buffers(self._task))
        return BoundProgram(self._program, inputs, targets, partial(arithmetic_of, self._task.arithmetic))


def tensors_of(task: ModuleTask, arrays: Mapping[str, Any], names: Sequence[str]) -> list[torch.Tensor]:
    """The named buffers as a program takes them."""
    buffers = {buffer.name: buffer for buffer in task.buffers}
    return [as_computed(view(arrays[name], buffers[name]), buffers[name]) for name in names]


class BoundProgram:
    """A program with its tensors. Results up to `KEPT_BYTES` stay until the next call; larger ones are freed at once, as a
    program that goes on would free them; of a sample, those of the last call are still in memory.

    `switches`: torch's, as a call has them. `memory`: that its allocations come from.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        switches: Entered,
        memory: Entered = allocating,
    ) -> None:
        self._program, self._inputs, self._targets = program, inputs, targets
        self._switches, self._memory = switches, memory
        self._keeps = sum(target.nbytes for target in targets) <= KEPT_BYTES
        self._results: Sequence[torch.Tensor] = ()
        self._views: Sequence[Callable[[], torch.Tensor]] = ()

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:  # noqa: ARG002 (torch's is the worker's stream)
        with torch.no_grad(), self._switches(), self._memory():
            self._results = ()  # freed first, so that a program of large results has their memory again
            results = self._results = tuple(self._program(*self._inputs))
            if not self._keeps:
                self._results, self._views = (), [unowned(each) for each in results]
                del results

    def deliver(self, *, last: bool) -> bool:
        """Copy the results to the task's outputs; False where their memory was given to another call. `last`: of a sample."""
        if not (self._keeps or last):
            return False
        found = self._results if self._keeps else [look() for look in self._views]
        for target, result in zip(self._targets, found, strict=True):
            target.copy_(result)
        return True


def unowned(result: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Looks at a tensor's memory after it was freed. Nothing else allocates from the pool before the sample is judged."""
    import cupy

    shape, strides, dtype = result.shape, result.stride(), result.dtype
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if result.numel() else 0
    pointer, size_bytes, index = result.data_ptr(), extent * result.element_size(), result.device.index

    def look() -> torch.Tensor:
        memory = cupy.cuda.UnownedMemory(pointer, max(size_bytes, 1), None, index)
        array = cupy.ndarray((max(size_bytes, 1),), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
        return torch.from_dlpack(array)[:size_bytes].view(dtype).as_strided(shape, strides)

    return look


def place_of(index: int) -> torch.device:
    """A GPU as torch names it."""
    return torch.device("cuda", index)


class ModuleBaselines:
    """Opens a module's baselines on first use and keeps them. `sample`: one sample, judged the first time.

    `example`: operands that a compiled program may run on. `known` and `tuned` are those of matrix products, None here.
    """

    known: TunedBaseline | None = None
    tuned: TunedBaseline | None = None

    def __init__(
        self, task: ModuleTask, device: int, sample: Callable[[Any], float], example: Callable[[], NamedOperands]
    ) -> None:
        self._task, self._device, self._sample, self._example = task, place_of(device), sample, example
        self._opened: dict[str, tuple[ModuleBaseline, ...] | Unavailable] = {}
        self._program: Any = None

    @staticmethod
    def wanted(options: TimeOptions) -> tuple[str, ...]:
        """All, or without what a program cannot be: eager has host time, and tuning takes minutes."""
        names = MODULE_BASELINES if options.all_baselines else (EAGER_GRAPH, COMPILED, MAX_AUTOTUNE)
        tuned = options.max_autotune and (options.all_baselines or options.heuristic)
        return tuple(name for name in names if tuned or name != MAX_AUTOTUNE)

    def open(self, names: Sequence[str]) -> Baselines:
        """The baselines of these names that run here and are right; notes on the rest."""
        for name in names:
            if name not in self._opened:
                self._opened[name] = self._open(name)
        opened = {name: self._opened[name] for name in names}
        contenders: dict[str, tuple[LibraryContender, ...]] = {
            name: found for name, found in opened.items() if isinstance(found, tuple)
        }
        notes = [f"baseline {name} left out: {why}" for name, why in opened.items() if isinstance(why, Unavailable)]
        if not contenders.keys() & {COMPILED, MAX_AUTOTUNE}:
            notes.append(NO_REWARD)
        return Baselines(contenders=contenders, notes=tuple(notes))

    def forget(self, name: str) -> None:
        """Open a baseline anew the next time."""
        self._opened.pop(name, None)

    def _open(self, name: str) -> tuple[ModuleBaseline, ...] | Unavailable:
        try:
            made = self._made(name)
            self._sample(made)
        except Unavailable as exc:
            return exc
        except RuntimeError as exc:  # torch's own, such as too little memory
            return Unavailable(" ".join(str(exc).split())[:300])
        return (made,)

    def _made(self, name: str) -> ModuleBaseline:
        if self._program is None:
            self._program = program_of(self._task, self._device)
        version = f"torch {torch.__version__}"
        if name in (EAGER, EAGER_GRAPH):
            return ModuleBaseline(name, version, self._task, self._program, streamed=name == EAGER)
        begin = time.monotonic()
        program = self._compiled(name)
        return ModuleBaseline(name, f"{version}, compiled in {time.monotonic() - begin:.0f} s", self._task, program)

    def _compiled(self, name: str) -> Program:
        """Compile, and run the result once on the memory of `example`. Raises: Unavailable."""
        arrays = self._example().arrays
        try:
            program: Program = torch.compile(self._program, fullgraph=True, dynamic=False, mode=_MODES[name])
            with torch.no_grad(), arithmetic_of(self._task.arithmetic), within(COMPILE_S):
                program(*tensors_of(self._task, arrays, read_buffers(self._task)))
        except Exception as exc:  # a compiler may fail in any way
            reason = " ".join(str(exc).split())[:300]
            raise Unavailable(f"it does not compile: {type(exc).__name__}: {reason}") from exc
        return program


class TookTooLong(Exception):
    """A compilation that was stopped."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Stop work in the main thread after this time, as far as Python code gets to run. Raises: TookTooLong."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: Any) -> None:
        raise TookTooLong(f"more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
