"""The rules of dispatch in their order. Decisions are pure and cached: nothing is built, loaded or launched here."""

from collections.abc import Iterable
from typing import Protocol

from pydantic import ValidationError

from cudal2.dispatch.decision import Choice, Decision, FallbackCause, GpuIdentity
from cudal2.dispatch.padded_m_rule import PaddedMRule
from cudal2.library.kernel_library import EntryRange, TaskKey
from cudal2_agent.contract.records.library import LibraryEntry, StoredAlgorithm
from cudal2_agent.contract.records.task import AccumulatorType, Activation, ElementType, GemmTask, Layout

LAYOUTS = tuple(Layout)
ELEMENTS = tuple(ElementType)
ACCUMULATORS = tuple(AccumulatorType)
ACTIVATIONS = (None, *Activation)
MAX_CACHED = 65536  # decisions; a program with more shapes than that starts anew

ProductKey = tuple[int, int, int, int]


class LibraryEntries(Protocol):
    """What dispatch asks of a library."""

    def find(self, key: TaskKey) -> LibraryEntry | None:
        """The entry of exactly this matrix product. Raises: LibraryError where it is not valid."""
        ...

    def keys(self) -> Iterable[TaskKey]: ...

    def range_of(self, key: TaskKey) -> EntryRange | None:
        """The range of M that a product lies in. Raises: LibraryError where its entry is not valid."""
        ...

    def ranges(self, key: TaskKey) -> Iterable[EntryRange]: ...

    def algorithm(self, key: TaskKey) -> StoredAlgorithm | None:
        """The algorithm of exactly this matrix product. Raises: LibraryError where it is not valid."""
        ...


def kind_code(
    layout: Layout,
    element: ElementType,
    accumulate: AccumulatorType,
    *,
    bias: bool = False,
    activation: Activation | None = None,
    gated: bool = False,
) -> int:
    """All of a product but its sizes as one small number, which decisions are cached by."""
    types = ELEMENTS.index(element) * len(ACCUMULATORS) + ACCUMULATORS.index(accumulate)
    sums = (LAYOUTS.index(layout) * len(ELEMENTS) * len(ACCUMULATORS) + types) * 2 + bias
    return (sums * len(ACTIVATIONS) + ACTIVATIONS.index(activation)) * 2 + gated


class Dispatcher:
    """Decides for one GPU and one library. Safe to share between threads: equal calls give equal decisions.

    `rule`: when an entry serves a smaller M, its padded M being its own; without it, only exact entries are chosen.
    """

    def __init__(self, library: LibraryEntries, gpu: GpuIdentity, rule: PaddedMRule | None = None) -> None:
        self._library, self._gpu, self._rule = library, gpu, rule
        self._decided: dict[ProductKey, Decision] = {}

    def decide(self, m: int, n: int, k: int, kind: int) -> Decision:
        """What runs a matrix product. `kind`: from `kind_code`. Raises: LibraryError where its entry is not valid."""
        found = self._decided.get((m, n, k, kind))
        return found if found is not None else self._keep(m, n, k, kind)

    def ranges(self, n: int, k: int, kind: int) -> list[EntryRange]:
        """The ranges of M of a weight that may be used here. Raises: LibraryError where an entry is not valid."""
        return [one for one in self._library.ranges(_key(0, n, k, kind)) if self._usable(one)]

    def serves(self, m: int | None, n: int, k: int, kind: int) -> bool:
        """Whether an entry runs a matrix product; for an M that is not known, those of some M. Raises: as `decide`."""
        if m is not None:
            return self.decide(m, n, k, kind).entry is not None
        weight = _key(0, n, k, kind)
        entries = (self._library.find(key) for key in self._library.keys() if key._replace(m=0) == weight)  # noqa: SIM118
        return any(entry is not None and self._why_not(entry) is None for entry in entries)

    def _keep(self, m: int, n: int, k: int, kind: int) -> Decision:
        decision = self._choose(_key(m, n, k, kind))
        if len(self._decided) >= MAX_CACHED:
            self._decided.clear()
        self._decided[m, n, k, kind] = decision
        return decision

    def _choose(self, key: TaskKey) -> Decision:
        if min(key.m, key.n, key.k) < 1:
            return Decision(choice=Choice.HEURISTIC, cause=FallbackCause.EMPTY)
        entry = self._library.find(key)
        if entry is None:
            return self._in_range(key) or self._padded(key) or self._of_cublaslt(key, FallbackCause.NO_ENTRY)
        cause = self._why_not(entry)
        return self._of_cublaslt(key, cause) if cause else Decision(choice=Choice.EXACT, entry=entry, task=entry.task)

    def _why_not(self, entry: LibraryEntry) -> FallbackCause | None:
        """Why an entry may not be chosen here."""
        environment = entry.evaluation.environment
        differs = self._elsewhere(entry.task, environment) or self._gpu.compiled(environment)
        return differs or (None if entry.wins else FallbackCause.NOT_FASTER)

    def _elsewhere(self, task: GemmTask, environment: str) -> FallbackCause | None:
        """Whether a measurement was taken elsewhere than here."""
        differs = self._gpu.measured(environment)
        return differs or (None if task.arch is self._gpu.arch else FallbackCause.OTHER_GPU)

    def _why_not_run(self, algorithm: StoredAlgorithm) -> FallbackCause | None:
        """Why an algorithm may not be run here. It belongs to one version of cuBLAS."""
        differs = self._elsewhere(algorithm.task, algorithm.environment)
        if differs is None and not self._gpu.cublas:
            differs = FallbackCause.NO_CUBLASLT
        return differs or (None if algorithm.cublas == self._gpu.cublas else FallbackCause.OTHER_CUBLAS)

    def _in_range(self, key: TaskKey) -> Decision | None:
        """An entry in whose range of M the product lies, where the range was measured here."""
        found = self._library.range_of(key)
        if found is None or not self._usable(found) or (task := _task(key, self._gpu)) is None:
            return None
        entry, m_range = found
        return Decision(choice=Choice.PADDED_M, entry=entry, task=task, m_range=m_range, cause=FallbackCause.NO_ENTRY)

    def _usable(self, found: EntryRange) -> bool:
        environment = found.m_range.environment
        return self._why_not(found.entry) is None and not (self._gpu.measured(environment) or self._gpu.compiled(environment))

    def _padded(self, key: TaskKey) -> Decision | None:
        """An entry of a padded M, where the rule was measured on this GPU with this driver and NVRTC. Of products alone."""
        rule = self._rule
        if rule is None or key.bias or key.activation is not None or (task := _task(key, self._gpu)) is None:
            return None
        if self._gpu.measured(rule.measured) or self._gpu.compiled(rule.measured):
            return None
        larger = [other for other in self._library.keys() if other[1:] == key[1:] and other.m > key.m]  # noqa: SIM118
        entries = [entry for other in larger if (entry := self._library.find(other)) is not None]
        entry = rule.best_entry([one for one in entries if self._why_not(one) is None], task)
        if entry is None:
            return None
        return Decision(choice=Choice.PADDED_M, entry=entry, task=task, cause=FallbackCause.NO_ENTRY)

    def _of_cublaslt(self, key: TaskKey, cause: FallbackCause) -> Decision:
        """The stored algorithm of cuBLASLt where one may be run here, else its heuristic. `cause`: why no entry is chosen."""
        algorithm = self._library.algorithm(key)
        if algorithm is None:
            return Decision(choice=Choice.HEURISTIC, cause=cause)
        if refused := self._why_not_run(algorithm):
            return Decision(choice=Choice.HEURISTIC, cause=refused)
        return Decision(choice=Choice.AUTOTUNED, algorithm=algorithm, cause=cause)


def _key(m: int, n: int, k: int, kind: int) -> TaskKey:
    rest, gated = divmod(kind, 2)
    rest, activation = divmod(rest, len(ACTIVATIONS))
    rest, bias = divmod(rest, 2)
    rest, accumulate = divmod(rest, len(ACCUMULATORS))
    layout, element = divmod(rest, len(ELEMENTS))
    types = LAYOUTS[layout], ELEMENTS[element], ACCUMULATORS[accumulate]
    return TaskKey(m, n, k, *types, bool(bias), ACTIVATIONS[activation], bool(gated))


def _task(key: TaskKey, gpu: GpuIdentity) -> GemmTask | None:
    """None for a matrix product that no `GemmTask` describes."""
    if gpu.arch is None:
        return None
    try:
        return GemmTask(**key._asdict(), arch=gpu.arch)
    except ValidationError:
        return None
