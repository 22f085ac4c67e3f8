"""Probes of wrong kernels in host memory: each has one known fault, and the symptoms name it."""

from collections.abc import Callable

import numpy as np
import pytest

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.symptoms import Symptoms
from cudal2_agent.contract.records.task import ElementType, GemmTask
from cudal2_agent.sandbox.verification.probes.line_maps import describe_map
from cudal2_agent.sandbox.verification.probes.probing import RIGHT_NOW, ProbeRuns, with_symptoms
from cudal2_agent.sandbox.verification.probes.wrong_outputs import lines_of, wrong_places
from tests.sandbox.verification.in_memory import InMemoryExecutor, Kernel, Memory, honest, product, prove

TASK = GemmTask(m=128, n=192, k=96)
DEEP = GemmTask(m=64, n=128, k=320, element=ElementType.BF16)


def of(kernel: Kernel, task: GemmTask = TASK) -> Symptoms:
    found = ProbeRuns(InMemoryExecutor(task, kernel), task, lambda: True).symptoms()
    assert found is not None
    return found


def reading(a: Callable[[np.ndarray], np.ndarray] = lambda a: a, b: Callable[[np.ndarray], np.ndarray] = lambda b: b) -> Kernel:
    """A kernel that multiplies other elements than it should."""

    def kernel(task: GemmTask, memory: Memory) -> None:
        memory.d[:] = product(task, a(memory.a), b(memory.b))

    return kernel


def chunks_by_row(a: np.ndarray) -> np.ndarray:
    """Pieces of 8 along K exchanged by the row, as one half of an XOR swizzle does within 64 elements."""
    rows, ks = np.indices(a.shape)
    other = ks ^ (rows % 4 * 8)
    return np.where(other < a.shape[1], a[rows, np.minimum(other, a.shape[1] - 1)], 0)


def transposed_blocks(a: np.ndarray) -> np.ndarray:
    rows, ks = np.indices(a.shape)
    return a[rows // 8 * 8 + ks % 8, ks // 8 * 8 + rows % 8]


def shifted_rows(a: np.ndarray) -> np.ndarray:
    """Groups of 8 rows half as far apart as they are."""
    rows = np.arange(len(a))
    return a[rows // 64 * 64 + rows % 64 // 8 * 4 + rows % 8]


def overlapping(size: int) -> np.ndarray:
    """Groups of 8 that begin 4 apart in every 16."""
    index = np.arange(size)
    return index // 16 * 16 + index % 16 // 8 * 4 + index % 8


def without(*ks: int) -> Callable[[np.ndarray], np.ndarray]:
    def cut(a: np.ndarray) -> np.ndarray:
        a = a.copy()
        for k in ks:
            a[:, k : k + 16] = 0
        return a

    return cut


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (reading(a=shifted_rows), "A (88% of the probed elements): rows 8-15 hold 4-11, 16-23 hold 8-15"),
        (reading(a=transposed_blocks), "rows and k are exchanged within each block of 8x8: transposed"),
        (reading(a=chunks_by_row), "row 1 of every 4: k 0-7 hold 8-15, 8-15 hold 0-7, in every 16"),
        (reading(a=chunks_by_row), "pieces of 8 elements (16 bytes) along k are exchanged"),
        (reading(b=lambda b: np.roll(b, 64, axis=1)), "columns 0-63 hold 128-191, 64-191 hold 0-127"),
        (reading(b=lambda b: b[overlapping(len(b))]), "k 8-15 hold 4-11, in every 16"),
        (reading(a=without(32, 48)), "A: not added: k 32-63 (in all of D)"),
    ],
    ids=["rows", "transposed", "chunks", "swizzle", "columns", "k", "missing"],
)  # fmt: skip
def test_the_operand_and_its_elements_are_named(kernel: Kernel, said: str) -> None:
    sources = of(kernel).sources
    assert any(said in source for source in sources), sources


def test_an_operand_that_is_read_right_is_not_blamed() -> None:
    for fault in (shifted_rows, transposed_blocks, chunks_by_row):
        assert [source[0] for source in of(reading(a=fault)).sources] == ["A"]


def test_k_that_counts_twice_is_named_in_the_rows_where_it_does() -> None:
    def kernel(task: GemmTask, memory: Memory) -> None:
        a = memory.a.copy()
        a[64:, 16:32] = 0
        twice = np.concatenate([a, a[:, 32:48]], axis=1), np.concatenate([memory.b, memory.b[32:48]])
        honest(task, memory)
        memory.d[64:] = product(task.model_copy(update={"k": task.k + 16}), *twice)[64:]

    found = of(kernel)
    assert any("added twice: k 32-47" in source and "rows 6" in source for source in found.sources), found.sources
    assert any("not added: k 16-31" in source for source in found.sources), found.sources
    assert found.places is not None
    assert (found.places.rows.first, found.places.rows.last) == (64, 127)


@pytest.mark.parametrize("task", [TASK, DEEP], ids=["f16", "bf16"])
def test_whole_tiles_that_are_not_written_are_named(task: GemmTask) -> None:
    def kernel(task: GemmTask, memory: Memory) -> None:
        left = memory.d[:32, 64:128].copy()
        honest(task, memory)
        memory.d[:32, 64:128] = left

    found = of(kernel, task)
    assert found.places is not None
    assert (found.places.tile, found.places.first_tiles) == ((32, 64), ((0, 1),))
    assert found.values == ("100% still hold what D held before the run: never written",)


def test_doubled_outputs_are_named() -> None:
    def kernel(task: GemmTask, memory: Memory) -> None:
        memory.d[:] = product(
            task.model_copy(update={"k": 2 * task.k}),
            np.concatenate([memory.a, memory.a], axis=1),
            np.concatenate([memory.b, memory.b]),
        )

    assert "100% are twice the right sum" in of(kernel).values[0]


def test_a_fault_that_whole_numbers_do_not_show_is_called_so() -> None:
    assert of(honest).values == (RIGHT_NOW,)


def test_only_failures_of_contents_are_looked_into_and_only_in_time() -> None:
    executor = InMemoryExecutor(TASK, reading(a=shifted_rows))
    failed = prove(TASK, reading(a=shifted_rows))[-1]
    assert with_symptoms(failed, executor, TASK, lambda: True).symptoms is not None
    assert with_symptoms(failed, executor, TASK, lambda: False).symptoms is None
    for other in (TestResult(tier="exact", name="x", passed=True), TestResult(tier="emulator", name="deadlock", passed=False)):
        assert with_symptoms(other, executor, TASK, lambda: True) == other


def test_residue_classes_and_ranges_are_told_apart() -> None:
    rows = np.arange(256)
    assert (lines_of(rows % 8 >= 4).modulus, lines_of(rows % 8 >= 4).residues) == (8, ((4, 7),))
    last = lines_of(rows >= 250)
    assert (last.modulus, last.first, last.last, last.count) == (None, 250, 255, 6)


def test_a_tile_is_the_largest_that_is_wrong_throughout() -> None:
    wrong = np.zeros((256, 256), dtype=bool)
    wrong[64:128, 128:256] = True
    found = wrong_places(np, wrong)
    assert (found.tile, found.wrong_tiles, found.tiles, found.first_tiles) == ((64, 128), 1, 8, ((1, 1),))
    wrong[0, 0] = True  # no tile of 8 by 8 or more is wrong throughout there
    assert wrong_places(np, wrong).tile is None


def test_a_map_is_told_by_its_period_or_its_ranges() -> None:
    assert describe_map({n: n ^ 8 for n in range(64)}) == ("0-7 hold 8-15, 8-15 hold 0-7, in every 16", True)
    assert describe_map({n: n - 64 if n >= 64 else n for n in range(128)}) == ("64-127 hold 0-63", True)
    assert describe_map({n: n ^ 8 for n in range(32)}) == ("0-7 hold 8-15, 8-15 hold 0-7, in every 16", True), "two periods"
    assert describe_map({n: n ^ 8 for n in range(16)}) == ("0-7 hold 8-15, 8-15 hold 0-7", True), "one is no period"
    assert describe_map({n: n for n in range(8)}) == ("", True)
    assert describe_map({n: n * 7 % 64 for n in range(64)})[1] is False
