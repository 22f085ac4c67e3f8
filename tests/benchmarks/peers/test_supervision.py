"""Workers that crash, hang and lie, as small programs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import supervision
from benchmarks.peers.supervision import ShapeJob, TimeAllowance, supervise
from cudal2_agent.contract.errors import UsageError

_HEAD = """
import json, os, sys, time
request = json.loads(sys.stdin.readline())
def tell(**what):
    print(json.dumps(what), flush=True)
tell(environment={"key": "here"})
for job in request["jobs"]:
    for peer in ("one", "two"):
        if peer not in job["without"]:
            tell(begins=peer)
            misbehave(job["shape"], peer)
    tell(row={"shape": job["shape"], "failures": job["without"]})
"""
JOBS = [ShapeJob(shape="a"), ShapeJob(shape="b"), ShapeJob(shape="c")]


def worker(tmp_path: Path, misbehaviour: str) -> list[str]:
    file = tmp_path / "worker.py"
    file.write_text(f"def misbehave(shape, peer):\n    {misbehaviour}\n{_HEAD}")
    return [sys.executable, str(file)]


def test_all_rows_of_a_worker_that_works(tmp_path: Path) -> None:
    outcome = supervise(worker(tmp_path, "pass"), JOBS, {}, TimeAllowance(60))
    assert [row["shape"] for row in outcome.rows] == ["a", "b", "c"]
    assert (outcome.left, outcome.troubles, outcome.environment) == ([], [], {"key": "here"})


def test_after_a_crash_the_shape_is_taken_again_without_that_peer(tmp_path: Path) -> None:
    outcome = supervise(worker(tmp_path, "if (shape, peer) == ('b', 'two'): os._exit(3)"), JOBS, {}, TimeAllowance(60))
    assert [row["shape"] for row in outcome.rows] == ["a", "b", "c"]
    assert [row["failures"] for row in outcome.rows] == [{}, {"two": "the worker ended with status 3"}, {}]
    assert outcome.troubles == ["b, two: the worker ended with status 3"]


def test_a_peer_that_crashes_everywhere_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "CRASHES", 2)
    outcome = supervise(worker(tmp_path, "if peer == 'two': os._exit(1)"), JOBS, {}, TimeAllowance(60))
    assert [set(row["failures"]) for row in outcome.rows] == [{"two"}, {"two"}, {"two"}]
    assert len(outcome.troubles) == 2


def test_a_hang_is_a_crash(tmp_path: Path) -> None:
    code = "if (shape, peer) == ('a', 'one'): time.sleep(60)"
    outcome = supervise(worker(tmp_path, code), JOBS, {}, TimeAllowance(60, peer_seconds=1.0))
    assert outcome.troubles == ["a, one: no answer in time"]
    assert len(outcome.rows) == 3


def test_what_time_does_not_reach_is_named(tmp_path: Path) -> None:
    jobs = [*JOBS, ShapeJob(shape="c", element="bf16")]
    outcome = supervise(worker(tmp_path, "time.sleep(0.5 if shape == 'a' else 60)"), jobs, {}, TimeAllowance(2.5))
    assert [row["shape"] for row in outcome.rows] == ["a"]
    assert (outcome.left, outcome.troubles) == (["b", "c", "c bf16"], [])


def test_the_worker_tells_why_it_ends(tmp_path: Path) -> None:
    code = "if (shape, peer) == ('a', 'one'): tell(failed='the context is lost'); os._exit(2)"
    outcome = supervise(worker(tmp_path, code), JOBS[:1], {}, TimeAllowance(60))
    assert outcome.rows[0]["failures"] == {"one": "the worker ended with status 2: the context is lost"}


def test_what_is_heard_comes_with_its_job(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    supervise(worker(tmp_path, "pass"), JOBS[:2], {}, TimeAllowance(60), lambda job, told: heard.append((job.shape, *told)))
    assert heard == [("a", "environment"), *[(shape, kind) for shape in "ab" for kind in ("begins", "begins", "row")]]


def test_what_refuses_to_go_on_ends_the_worker(tmp_path: Path) -> None:
    def refuse(_job: ShapeJob, _told: dict[str, Any]) -> None:
        raise UsageError("another machine")

    with pytest.raises(UsageError, match="another machine"):
        supervise(worker(tmp_path, "time.sleep(60)"), JOBS, {}, TimeAllowance(60), refuse)


def test_a_worker_without_a_gpu_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    out = tmp_path / "peers.json"
    command = [sys.executable, "-m", "benchmarks.peers", "--shapes", "64x64x64", "--out", str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, timeout=120)
    assert done.returncode == 1
    (trouble,) = json.loads(out.read_text())["troubles"]
    assert trouble.startswith("64x64x64, start: the worker ended with status 1: DeviceUnavailable: ")
    assert f"- crash or hang: {trouble}" in done.stdout


def test_a_worker_that_does_not_start_ends_the_run() -> None:
    outcome = supervise([sys.executable, "-c", "raise SystemExit(5)"], JOBS, {}, TimeAllowance(60))
    assert outcome.rows == []
    assert outcome.troubles == ["a, start: the worker ended with status 5"]
