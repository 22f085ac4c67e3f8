"""The measurement of KernelBench's tasks: what is asked, what is skipped, and the tables of its rows."""

import json

import pytest

from benchmarks.modules.kernelbench import RowKeeper, drawn, main, read_tasks
from benchmarks.modules.rows import add_row, class_of, place_of, read_rows
from benchmarks.modules.summary import summary
from cudal2_agent.contract.errors import UsageError
from tests.doubles.modules import relu_of_sum


def test_the_tasks_of_max_autotune_follow_from_level_and_number_alone():
    names = [f"{level}/{number}_name" for level in (1, 2, 3) for number in range(1, 101)]
    first = drawn(names)
    assert len(first) == len(set(first)) == 60
    assert {place_of(name)[0] for name in first} == {1, 2}
    assert [name.split("_")[0] for name in drawn([name.replace("_name", "_other") for name in reversed(names)])] == [
        name.split("_")[0] for name in first
    ]
    assert first[:3] == ["1/100_name", "1/10_name", "1/13_name"], "in every process and version"


def test_a_place_is_read_from_every_form_of_a_name():
    assert {place_of(name) for name in ("1/19_ReLU", "level1/19_ReLU.py", "kernelbench:1/19")} == {(1, 19)}
    assert place_of("relu of sum") == (0, 0)


def test_tasks_of_other_levels_are_left_out_and_a_file_that_is_no_task_is_named(tmp_path):
    for name in ("1/19_ReLU", "2/1_sum"):
        (tmp_path / f"{name.replace('/', '_')}.json").write_text(relu_of_sum(name=name).model_dump_json())
    assert [task.name for _, task in read_tasks([tmp_path], [2])] == ["2/1_sum"]
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UsageError, match=r"bad\.json is no traced task"):
        list(read_tasks([tmp_path], []))


def test_a_row_after_a_killed_run_is_a_line_of_its_own(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == []
    path.write_text('{"name": "1/19"}\n{"name": "2/3"}\n{"na')
    assert [row["name"] for row in read_rows(path)] == ["1/19", "2/3"]
    for name in ("3/1", "3/2"):
        add_row(path, {"name": name})
    assert [row["name"] for row in read_rows(path)] == ["1/19", "2/3", "3/1", "3/2"]


def test_a_row_gets_the_soundness_of_its_task_and_a_line(tmp_path, capsys):
    (tmp_path / "sound.jsonl").write_text('{"name": "kernelbench:1/19", "status": "unsound"}\n')
    keep = RowKeeper(tmp_path / "rows.jsonl", tmp_path / "sound.jsonl", 0.0)
    keep({"task": "1/19_ReLU", "status": "measured", "us": 8.0, "wall_s": 3.0})
    keep({"task": "1/20_ELU", "status": "failed", "message": "in time: more than 90 s", "wall_s": 90.0})
    assert [row["soundness"] for row in read_rows(tmp_path / "rows.jsonl")] == ["unsound", None]
    assert "in time: more than 90 s 90.0 s" in capsys.readouterr().out


def test_a_dry_call_prints_what_has_no_row_yet(tmp_path, monkeypatch, capsys):
    for number in (19, 20):
        task = relu_of_sum(name=f"1/{number}_ReLU")
        (tmp_path / f"{number}.json").write_text(task.model_dump_json())
    out = tmp_path / "out"
    out.mkdir()
    add_row(out / "rows.jsonl", {"task": "1/19_ReLU", "arithmetic": "f32"})
    folders = [f"--out={out}", f"--logs={tmp_path / 'logs'}", f"--cache={tmp_path / 'cache'}"]
    files = [str(tmp_path / f"{number}.json") for number in (19, 20)]
    monkeypatch.setattr("sys.argv", ["kernelbench", "--dry", *folders, "--problems", *files])
    main()
    [line] = capsys.readouterr().out.splitlines()
    assert "1/20_ReLU: 1+0" in line


def test_a_task_has_the_class_of_its_heaviest_operation():
    assert class_of(relu_of_sum()) == "pointwise"
    summed = json.loads(relu_of_sum().model_dump_json().replace("aten.add.Tensor", "aten.cumsum.default"))
    assert class_of(type(relu_of_sum()).model_validate(summed)) == "scan"


def row(task: str, ratio: float | None, **more: object) -> dict[str, object]:
    if ratio is None:
        return {"task": task, "level": place_of(task)[0], "class": "pointwise", "status": "wrong", **more}
    us = 10.0 / ratio
    speedup = [ratio, ratio * 0.99, ratio * 1.01]
    baselines = {"eager": {"us": 20.0, "speedup": [2 * ratio] * 3}, "compiled": {"us": 10.0, "speedup": speedup}}
    return {**row(task, None), "status": "measured", "us": us, "baselines": baselines, "speedup": speedup, **more}


def test_the_mean_takes_nothing_better_as_one_and_leaves_unsound_tasks_out():
    rows = [row("1/1", 4.0), row("1/2", 0.25), row("2/1", None), row("2/2", 16.0, soundness="unsound")]
    text = summary(rows, 5)
    assert text.startswith("4 of 5 tasks have a row.")
    by_level, _, _ = text.partition("| class")
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in by_level.split("\n") if line.startswith("|")]
    cells = {line[0]: line[1:] for line in lines}
    assert cells["all"] == ["4", "2", "1", "1", "1.587", "1.000", "4.25", "5.00"]
    assert cells["1"] == ["2", "2", "1", "1", "2.000", "1.000", "4.25", "5.00"]
    assert cells["2"][:5] == ["2", "0", "0", "0", "1.000"]
