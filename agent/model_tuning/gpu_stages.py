"""What runs on the GPU, in a child process: its context is lost with a kernel that fails, and `tune` goes on with another.

Rows come as they are measured; the parent keeps them, so that a child that dies loses the product in hand alone.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cudal2.dispatch.decision import GpuIdentity
from cudal2.library.kernel_library import EntryRange
from cudal2_agent.agent.library.algorithms.tuned_products import TunedProduct
from cudal2_agent.agent.model_tuning.tune_records import JudgedProduct, JudgedRange, PassTimes, Way
from cudal2_agent.contract.errors import Cudal2Error, DeviceUnavailable, UsageError, WorkerError
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.processes.child import Child, ChildLost, ChildPlan, ParentLine

_One = TypeVar("_One")
_Row = TypeVar("_Row")
PRODUCT_S, PASS_S = 180.0, 1800.0  # without a message, after which a child counts as stuck


class Identify(NamedTuple):
    """Asks what the GPU is: `(GpuIdentity, environment)`."""


class Judge(NamedTuple):
    """Asks for a `JudgedProduct` of each entry. `cache`: the folder of built kernels."""

    entries: tuple[LibraryEntry, ...]
    cache: Path


class JudgeRanges(NamedTuple):
    """Asks for a `JudgedRange` of each entry, down to the smallest M of its range. `cache`: the folder of built kernels."""

    asked: tuple[EntryRange, ...]
    cache: Path


class TuneAlgorithms(NamedTuple):
    """Asks for a `TunedProduct` of each task."""

    tasks: tuple[GemmTask, ...]


class TimePass(NamedTuple):
    """Asks for `PassTimes` of a model, after each way.

    `every`: numbers of tokens that are tuned, for which it is opened again from its path. Other fields as of `TimedPass`.
    """

    path: Path
    every: tuple[int, ...]
    tokens: int | None
    training: bool
    library: Path
    library_sha256: str
    ways: tuple[Way, ...]


class RefusedModel(NamedTuple):
    """The request failed by the user's fault or the machine's, in one line."""

    line: str


class BrokenGpu(NamedTuple):
    """The request failed in a way after which the GPU may be in any state, so that the process ends."""

    line: str


class GpuStages:
    """The child and its requests, on the first GPU that PyTorch sees."""

    def __init__(self) -> None:
        self._child = Child(ChildPlan("tune", serve))
        self._running = False

    def __enter__(self) -> "GpuStages":
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end()

    def identity(self) -> tuple[GpuIdentity, str]:
        """The GPU, and its `Environment.key`. The process ends, so that searches have the GPU. Raises: DeviceUnavailable."""
        try:
            [found] = self._asked(Identify(), PASS_S)
        except (ChildLost, UsageError) as exc:
            raise DeviceUnavailable(f"the GPU cannot be used: {exc}") from exc
        finally:
            self._child.end()
            self._running = False
        identity, environment = found
        return identity, environment

    def judged(self, entries: Sequence[LibraryEntry], cache: Path) -> Iterator[JudgedProduct]:
        """Raises: ChildLost with the first entry that has no row in hand, UsageError."""
        yield from self._asked(Judge(tuple(entries), cache), PRODUCT_S)

    def ranged(self, asked: Sequence[EntryRange], cache: Path) -> Iterator[JudgedRange]:
        """Raises: ChildLost with the first entry that has no row in hand, UsageError."""
        yield from self._asked(JudgeRanges(tuple(asked), cache), PRODUCT_S)

    def tuned(self, tasks: Sequence[GemmTask]) -> Iterator[TunedProduct]:
        """Raises: ChildLost with the first task that has no row in hand, UsageError."""
        yield from self._asked(TuneAlgorithms(tuple(tasks)), PRODUCT_S)

    def timed(self, asked: TimePass) -> Iterator[PassTimes]:
        """A row after each way. Raises: UsageError for a model that does not run; WorkerError where the process ended."""
        try:
            yield from self._asked(asked, PASS_S)
        except ChildLost as exc:
            raise WorkerError(f"the process that ran the model ended: {exc}") from exc

    def _asked(self, request: object, within_s: float) -> Iterator[Any]:
        if not self._running:
            self._child.start()
            self._running = True
        self._child.send(request)
        try:
            while (answer := self._child.receive(within_s)) is not None:
                if isinstance(answer, RefusedModel):
                    raise UsageError(answer.line)
                if isinstance(answer, BrokenGpu):
                    raise ChildLost(answer.line, self._child.end())
                yield answer
        except ChildLost:
            self._running = False
            raise


def serve(line: ParentLine) -> None:
    """Main function of the child: the answers of each request, then None."""
    for request in line:
        try:
            for answer in _answers(request):
                line.send(answer)
            line.send(None)
        except Cudal2Error as exc:
            line.send(RefusedModel(" ".join(str(exc).split())))
        except Exception as exc:  # noqa: BLE001 (the parent goes on with another process)
            line.send(BrokenGpu(f"{type(exc).__name__}: {' '.join(str(exc).split())[:300]}"))
            return


def _answers(request: object) -> Iterator[object]:
    from cudal2_agent.agent.library.algorithms.suggested_algorithms import CudaProductBench, environment_of, open_platform

    platform, identity = open_platform()
    environment = environment_of(identity)
    if isinstance(request, Identify):
        yield identity, environment
    elif isinstance(request, Judge):
        from cudal2.library.prepared_kernels import PreparedKernels
        from cudal2_agent.agent.model_tuning.judged_products import judge_products

        yield from judge_products(request.entries, PreparedKernels(request.cache), platform, identity)
    elif isinstance(request, JudgeRanges):
        from cudal2.library.prepared_kernels import PreparedKernels
        from cudal2_agent.agent.model_tuning.judged_ranges import judge_ranges

        yield from judge_ranges(request.asked, PreparedKernels(request.cache), platform, identity)
    elif isinstance(request, TuneAlgorithms):
        from cudal2_agent.agent.library.algorithms.tuned_products import tune_product

        for task in request.tasks:
            yield tune_product(task, lambda one: CudaProductBench(one, platform, identity), identity.gpu, environment)
    elif isinstance(request, TimePass):
        from cudal2_agent.agent.model_tuning.model_timing import TimedPass, time_pass
        from cudal2_agent.agent.model_tuning.tuned_model import open_model

        model = open_model(request.path, request.every)
        yield from time_pass(
            TimedPass(
                model=model,
                tokens=request.tokens,
                training=request.training,
                library=request.library,
                library_sha256=request.library_sha256,
                environment=environment,
                ways=request.ways,
            )
        )


def survived(
    waiting: Sequence[_One], ask: Callable[[Sequence[_One]], Iterator[_Row]], lost: Callable[[_One, str], _Row]
) -> Iterator[_Row]:
    """A row for each. After a process that ended, the one in hand has the row of `lost`, and the next process goes on."""
    left = list(waiting)
    while left:
        try:
            for row in ask(tuple(left)):
                left.pop(0)
                yield row
        except ChildLost as exc:
            yield lost(left.pop(0), f"the process that measured it ended: {exc}")
