"""The rules of dispatch: what is chosen, and why not."""

from collections.abc import Iterable

import pytest

from contract.library import LibraryEntry, StoredAlgorithm
from contract.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from cudal2.dispatch.causes import FallbackCause
from cudal2.dispatch.decision import Choice, Decision, GpuIdentity
from cudal2.dispatch.dispatcher import Dispatcher, kind_code
from cudal2.dispatch.neighbour_rule import AllowedDistance, NeighbourTable, shipped_neighbours
from cudal2.library.kernel_library import TaskKey, key_of
from tests.doubles.libraries import library_entry, stored_algorithm

GPU = GpuIdentity(gpu="H200", driver="580.1", arch=Arch.SM_90A, sms=132)
TASK = GemmTask(m=64, n=32, k=64)
NN = kind_code(Layout.NN, ElementType.F16, AccumulatorType.F32)


class Entries:
    """A library in memory. `asked`: how often it was searched."""

    def __init__(self, *entries: LibraryEntry, algorithm: StoredAlgorithm | None = None) -> None:
        self._entries = {key_of(entry.task): entry for entry in entries}
        self._algorithm = algorithm
        self.asked = 0

    def find(self, key: TaskKey) -> LibraryEntry | None:
        self.asked += 1
        return self._entries.get(key)

    def keys(self) -> Iterable[TaskKey]:
        return self._entries.keys()

    def algorithm(self, key: TaskKey) -> StoredAlgorithm | None:
        return self._algorithm if self._algorithm is not None and key_of(self._algorithm.task) == key else None


def decide(entry: LibraryEntry | None, gpu: GpuIdentity = GPU, **parts: object) -> Decision:
    library = Entries(*([] if entry is None else [entry]))
    return Dispatcher(library, gpu, **parts).decide(TASK.m, TASK.n, TASK.k, NN)  # type: ignore[arg-type]


def test_an_entry_that_wins_here_is_chosen() -> None:
    entry = library_entry(TASK, ratio=1.3)
    decision = decide(entry)
    assert (decision.choice, decision.entry, decision.entry_id, decision.cause) == (Choice.EXACT, entry, entry.id, None)
    assert "1.300 (1.290 to 1.310)" in decision.reason


@pytest.mark.parametrize(
    ("ratio", "gpu", "cause"),
    [
        (1.005, {}, FallbackCause.NOT_FASTER),
        (1.3, {"gpu": "H100"}, FallbackCause.OTHER_GPU),
        (1.3, {"gpu": "H20"}, FallbackCause.OTHER_GPU),
        (1.3, {"driver": "580.10"}, FallbackCause.OTHER_DRIVER),
        (1.3, {"arch": Arch.SM_80}, FallbackCause.OTHER_GPU),
        (1.3, {"arch": None}, FallbackCause.OTHER_GPU),
    ],
)
def test_an_entry_that_was_not_measured_to_win_here_is_left(ratio: float, gpu: dict[str, object], cause: FallbackCause) -> None:
    decision = decide(library_entry(TASK, ratio=ratio), GPU.model_copy(update=gpu))
    assert (decision.choice, decision.entry, decision.cause) == (Choice.HEURISTIC, None, cause)
    assert decision.reason == cause.sentence


def test_a_product_without_an_entry_is_left() -> None:
    assert decide(None).cause is FallbackCause.NO_ENTRY


@pytest.mark.parametrize("sizes", [(0, 32, 64), (64, 0, 64), (64, 32, 0)])
def test_an_empty_product_is_left(sizes: tuple[int, int, int]) -> None:
    assert Dispatcher(Entries(), GPU).decide(*sizes, NN).cause is FallbackCause.EMPTY


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize(("element", "accumulate"), [("f16", "f32"), ("f16", "f16"), ("bf16", "f32")])
def test_layout_and_types_are_part_of_the_product(layout: Layout, element: str, accumulate: str) -> None:
    task = TASK.model_copy(
        update={"layout": layout, "element": ElementType(element), "accumulate": AccumulatorType(accumulate)}
    )
    entry = library_entry(TASK).model_copy(update={"task": task})
    dispatcher = Dispatcher(Entries(entry), GPU)
    kinds = [kind_code(one, kind, width) for one in Layout for kind in ElementType for width in AccumulatorType]
    assert len(set(kinds)) == 12
    served = [kind for kind in kinds if dispatcher.decide(TASK.m, TASK.n, TASK.k, kind).choice is Choice.EXACT]
    assert served == [kind_code(task.layout, task.element, task.accumulate)]


def test_a_decision_is_made_once() -> None:
    library = Entries(library_entry(TASK))
    dispatcher = Dispatcher(library, GPU)
    first = dispatcher.decide(TASK.m, TASK.n, TASK.k, NN)
    assert dispatcher.decide(TASK.m, TASK.n, TASK.k, NN) is first
    assert library.asked == 1


STORED = stored_algorithm(TASK)
WITH_CUBLAS = GPU.model_copy(update={"cublas": "13.1.0"})


def decide_beside(entry: LibraryEntry | None, **gpu: object) -> Decision:
    """Of a library that holds an algorithm for the task."""
    library = Entries(*([] if entry is None else [entry]), algorithm=STORED)
    return Dispatcher(library, WITH_CUBLAS.model_copy(update=gpu)).decide(TASK.m, TASK.n, TASK.k, NN)


@pytest.mark.parametrize("ratio", [None, 0.9])
def test_the_stored_algorithm_is_run_where_no_entry_wins(ratio: float | None) -> None:
    decision = decide_beside(None if ratio is None else library_entry(TASK, ratio=ratio))
    cause = FallbackCause.NO_ENTRY if ratio is None else FallbackCause.NOT_FASTER
    assert (decision.choice, decision.algorithm, decision.entry, decision.cause) == (Choice.AUTOTUNED, STORED, None, cause)
    assert decision.reason.endswith(f"the stored algorithm of cuBLASLt is run: {STORED.words}")


def test_an_entry_that_wins_comes_before_an_algorithm() -> None:
    assert decide_beside(library_entry(TASK, ratio=1.3)).choice is Choice.EXACT


@pytest.mark.parametrize(
    ("gpu", "cause"),
    [
        ({"cublas": "13.1.1"}, FallbackCause.OTHER_CUBLAS),
        ({"cublas": "13.1"}, FallbackCause.OTHER_CUBLAS),
        ({"cublas": ""}, FallbackCause.NO_CUBLASLT),
        ({"gpu": "H100"}, FallbackCause.OTHER_GPU),
        ({"driver": "999"}, FallbackCause.OTHER_DRIVER),
        ({"arch": Arch.SM_80}, FallbackCause.OTHER_GPU),
    ],
)
def test_an_algorithm_of_elsewhere_is_not_run(gpu: dict[str, object], cause: FallbackCause) -> None:
    decision = decide_beside(None, **gpu)
    assert (decision.choice, decision.algorithm, decision.cause) == (Choice.HEURISTIC, None, cause)


TABLE = NeighbourTable(
    measured="H200 driver-580.1 toolkit-13.0 cublas-13.1",
    allowed=(AllowedDistance(layout=Layout.NN, min_m=32, max_m=128, low=0.5, high=1.0),),
)


def neighbours(table: NeighbourTable, m: int, *entries: LibraryEntry) -> Decision:
    return Dispatcher(Entries(*entries), GPU, table).decide(m, TASK.n, TASK.k, NN)


def test_no_neighbour_is_chosen_until_distances_are_measured() -> None:
    assert shipped_neighbours().allowed == ()
    assert neighbours(shipped_neighbours(), 48, library_entry(TASK)).cause is FallbackCause.NO_ENTRY
    assert neighbours(TABLE, 48, library_entry(TASK)).choice is Choice.COMPATIBLE


def test_a_neighbour_is_launched_for_the_product_in_question() -> None:
    near, far = library_entry(TASK), library_entry(TASK.model_copy(update={"m": 80}))
    decision = neighbours(TABLE, 48, far, near)
    assert decision.entry_id == near.id
    assert decision.entry == near.model_copy(update={"task": TASK.model_copy(update={"m": 48})})
    assert "neighbouring" in decision.reason


@pytest.mark.parametrize(
    ("table", "m", "entry"),
    [
        (TABLE, 31, library_entry(TASK)),
        (TABLE, 65, library_entry(TASK)),
        (TABLE.model_copy(update={"measured": "H100 driver-580.1 toolkit-13.0 cublas-13.1"}), 48, library_entry(TASK)),
        (TABLE, 48, library_entry(TASK.model_copy(update={"n": 48}))),
        (TABLE, 48, library_entry(TASK.model_copy(update={"layout": Layout.TN}))),
        (TABLE, 48, library_entry(TASK, ratio=1.0)),
        (TABLE, 48, library_entry(TASK).model_copy(update={"schedule": None, "source": "its sizes may be constants"})),
    ],
    ids=["below", "above", "table of another chip", "another N", "another layout", "no winner", "free source"],
)
def test_a_neighbour_beyond_the_rule_is_left(table: NeighbourTable, m: int, entry: LibraryEntry) -> None:
    assert neighbours(table, m, entry).cause is FallbackCause.NO_ENTRY


def test_every_cause_has_a_sentence() -> None:
    assert all(cause.sentence for cause in FallbackCause)
