"""Published solutions of a benchmark: where they are read from, the order and the shards, and what is left to measure."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.modules.published import Solution, Tasks, chosen, solutions_of, summary
from cudal2_agent.sandbox.modules.tracing.tracer import open_tracer
from tests.sandbox.modules.small_tasks import linear_relu

ROWS = [
    {"level_id": 1, "task_id": 19, "custom_code": "class ModelNew: pass", "ref_code": "class Model: pass"},
    {"level_id": 1, "task_id": 20, "custom_code": "", "ref_code": "class Model: pass"},
    {"level_id": 2, "task_id": 3, "cuda_code": "class ModelNew: ..."},
]


@pytest.mark.parametrize("as_list", [False, True])
def test_rows_with_code_are_solutions(tmp_path: Path, as_list: bool) -> None:
    text = json.dumps(ROWS) if as_list else "\n".join(map(json.dumps, ROWS))
    (tmp_path / "rows.json").write_text(text)
    found = solutions_of(tmp_path / "rows.json")
    assert [(each.name, bool(each.reference)) for each in found] == [("1/19", True), ("2/3", False)]


def test_files_of_a_folder_are_solutions(tmp_path: Path) -> None:
    (tmp_path / "level1").mkdir()
    for name in ("level1/19_ReLU.py", "2_3_conv.py", "helper.py"):
        (tmp_path / name).write_text("class ModelNew: ...")
    assert sorted(each.name for each in solutions_of(tmp_path)) == ["1/19", "2/3"]


def test_shards_share_all_and_a_part_is_drawn_over_all_levels() -> None:
    found = [Solution(level, number, "") for level in (1, 2) for number in range(50)]
    shards = [chosen(found, set(), (index, 4), None) for index in range(4)]
    assert sorted(each.name for shard in shards for each in shard) == sorted(each.name for each in found)
    assert {each.level for each in shards[0][:8]} == {1, 2}, "not in the order of the file"
    assert chosen(found, set(), (0, 1), 10) == chosen(found, set(), (0, 1), None)[:10]
    assert {each.level for each in chosen(found, {2}, (0, 1), None)} == {2}


def test_a_traced_task_comes_first(tmp_path: Path) -> None:
    task = linear_relu()
    (tmp_path / "1_19_ReLU.json").write_text(task.model_dump_json())
    with open_tracer() as tracer:
        assert Tasks(tmp_path, None, tracer, training=False).of(Solution(1, 19, "", "no Python at all (")) == task


def test_a_failed_row_is_a_line() -> None:
    assert summary({"name": "1/2", "status": "failed", "message": "load: no"}) == "1/2: failed: load: no"
