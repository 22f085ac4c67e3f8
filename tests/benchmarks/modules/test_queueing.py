"""Which task comes next: by work from both ends, by memory, and alone where it was short."""

from pathlib import Path

from benchmarks.modules.queueing import JUDGE_BYTES, TIMED_BYTES, Board, Item, need_bytes
from tests.doubles.modules import relu_of_sum


def item(name: str, work_s: float, need: int) -> Item:
    return Item(work_s, name, Path(name), need)


def taken(board: Board, gpu: int) -> str | None:
    found = board._fitting(gpu)
    return None if found is None else board.take(gpu).name  # type: ignore[union-attr]


def test_half_of_the_gpus_begin_with_most_work_and_half_with_least():
    board = Board([item("a", 1, 1), item("b", 2, 1), item("c", 3, 1)], gpus=2, capacity_bytes=10)
    assert [taken(board, 0), taken(board, 1), taken(board, 0)] == ["c", "a", "b"]
    assert taken(board, 0) is None


def test_a_task_waits_for_memory_and_small_ones_fill_the_room_beside_a_large_one():
    board = Board([item("large", 9, 8), item("next", 8, 8), item("small", 1, 2), item("tiny", 0.5, 1)], 1, 10)
    assert taken(board, 0) == "large"
    assert taken(board, 0) == "small", "the next large one cannot begin before the first has ended"
    running = {each.name: each for each in board._running[0]}
    board.done(0, running["large"])
    assert taken(board, 0) == "next"
    board.done(0, running["small"])
    assert taken(board, 0) == "tiny"


def test_nothing_is_put_in_the_place_that_a_large_task_waits_for():
    board = Board([item("large", 9, 10), item("a", 1, 3), item("b", 0.5, 3)], gpus=1, capacity_bytes=10)
    board._running[0].append(item("small", 1, 3))
    assert taken(board, 0) is None


def test_a_task_that_lacked_memory_beside_others_comes_again_alone():
    board = Board([item("a", 2, 3), item("b", 1, 3)], gpus=1, capacity_bytes=10)
    first, _ = board.take(0), board.take(0)
    assert first is not None
    board.done(0, first, again_alone=True)
    assert taken(board, 0) is None, "another one runs"
    board.done(0, board._running[0][0])
    assert taken(board, 0) == "a"
    board._waiting.append(item("c", 0.1, 1))
    assert taken(board, 0) is None, "it is alone"


def test_an_empty_board_ends_its_workers_when_nothing_can_come_again():
    board = Board([item("a", 1, 1)], gpus=1, capacity_bytes=10)
    first = board.take(0)
    assert first is not None
    board.done(0, first)
    assert board.take(0) is None


def test_the_memory_of_a_task_grows_with_it_as_far_as_it_is_not_cut():
    small, large, huge = (need_bytes(relu_of_sum(rows=rows)) for rows in (1 << 10, 1 << 20, 1 << 26))
    operands = 3 * 64 * 4 << 26
    assert small < TIMED_BYTES < large < huge
    assert 4 * operands < huge - JUDGE_BYTES < 12 * operands, "sets of values for timing, and a few copies for verification"
