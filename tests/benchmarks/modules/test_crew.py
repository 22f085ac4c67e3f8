"""Workers that hang, crash and answer: every task has a row, and a fault costs its own process only."""

import sys
import time
from pathlib import Path

import pytest

from benchmarks.modules.crew import Crew, _Gone, _WorkerProcess, lacks_memory
from benchmarks.modules.queueing import Board, Item

# Answers each task by what its name says.
WORKER = """
import json, os, subprocess, sys, time
print(json.dumps({"ready": {}}), flush=True)
for line in sys.stdin:
    name = line.strip()
    print(json.dumps({"stage": "verify"}), flush=True)
    if name.startswith("hangs"):
        time.sleep(60)
    if name.startswith("crashes"):
        child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
        open(sys.argv[1] + ".child", "w").write(str(child.pid))
        os._exit(139)
    row = {"task": name, "status": "measured", "us": 1.0, "wall_s": 0.0, "pid": os.getpid()}
    if name.startswith("full") and not os.path.exists(sys.argv[1]):
        open(sys.argv[1], "w").close()
        row = {"task": name, "status": "failed", "message": "MachineError: too little free memory", "wall_s": 0.0}
    print(json.dumps({"row": row}), flush=True)
"""


def crew_rows(tmp_path, names, *, worker=WORKER, workers=1, seconds=30.0, limit_s=1.0):
    rows: list[dict] = []
    board = Board([Item(float(i), name, Path(name), 1) for i, name in enumerate(reversed(names))], 1, 10)
    crew = Crew(
        board,
        gpus=1,
        workers=workers,
        command=lambda _: [sys.executable, "-c", worker, str(tmp_path / "mark")],
        head=lambda item: {"task": item.name, "level": 1},
        say=rows.append,
        logs=tmp_path,
        limit_s=limit_s,
    )
    return crew.run(seconds), rows


def ended(process: int, within_s: float = 5.0) -> bool:
    """Whether a process has ended: it is gone, or waits to be reaped."""
    stat, until = Path(f"/proc/{process}/stat"), time.monotonic() + within_s
    while stat.exists() and stat.read_text().split()[2] != "Z":
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_a_task_that_hangs_or_crashes_is_a_row_and_others_are_measured(tmp_path):
    complete, rows = crew_rows(tmp_path, ["a", "hangs", "b", "crashes", "c"])
    assert complete
    assert [row["task"] for row in rows] == ["a", "hangs", "b", "crashes", "c"]
    found = {row["task"]: row for row in rows}
    assert found["hangs"]["message"] == "in verify: more than 1 s"
    assert found["crashes"]["message"] == "in verify: the process ended with 139"
    assert {found[name]["status"] for name in "abc"} == {"measured"}
    assert len({found[name]["pid"] for name in "abc"}) == 3, "each fault cost one process"
    assert ended(int((tmp_path / "mark.child").read_text())), "a crashed worker leaves no child behind"


def test_a_worker_that_the_end_of_the_run_has_reaped_is_gone(tmp_path):
    process = _WorkerProcess([sys.executable, "-c", "pass"], {}, tmp_path / "log")
    process.kill()
    with pytest.raises(_Gone, match="the process ended with"):
        process.answer(5.0)


def test_a_task_that_lacks_memory_is_tried_again_alone(tmp_path):
    complete, rows = crew_rows(tmp_path, ["full", "b"], workers=2)
    assert complete
    assert sorted((row["task"], row["status"]) for row in rows) == [("b", "measured"), ("full", "measured")]


def test_time_that_is_over_leaves_the_rest_without_a_row(tmp_path):
    complete, rows = crew_rows(tmp_path, ["a", "hangs", "b"], seconds=2.0, limit_s=30.0)
    assert not complete
    assert [row["task"] for row in rows] == ["a"]


def test_workers_that_never_become_ready_end_the_measurement(tmp_path):
    complete, rows = crew_rows(tmp_path, ["a"], worker="raise SystemExit(1)")
    assert not complete
    assert rows == []


def test_only_device_memory_is_tried_again():
    assert lacks_memory({"status": "failed", "message": "MachineError: too little free memory to evaluate"})
    assert not lacks_memory({"status": "failed", "message": "too much shared memory"})
    assert not lacks_memory({"status": "wrong", "message": "memory was changed"})
