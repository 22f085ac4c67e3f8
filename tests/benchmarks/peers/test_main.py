"""A run's result file: what is done is not done again, and every row is on disk at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.__main__ import PeersFile, jobs_of
from benchmarks.peers.supervision import ShapeJob
from cudal2_agent.contract.errors import UsageError

F16, BF16 = ShapeJob(shape="64x64x64"), ShapeJob(shape="64x64x64", element="bf16")
ROW: dict[str, Any] = {"shape": "64x64x64", "element": "f16", "peers": {"triton": {"speedup": {"ratio": 0.5}}}}
HERE, ELSEWHERE = {"key": "here"}, {"key": "elsewhere"}


def record(file: Path) -> PeersFile:
    return PeersFile(file, {"command": "command", "commit": "abc"})


def test_a_row_is_written_at_once_and_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peers.json"
    first = record(file)
    assert first.missing([F16, BF16]) == [F16, BF16]
    for told in ({"environment": HERE}, {"begins": "triton"}, {"row": ROW}):
        first.hear(F16, told)
    assert json.loads(file.read_text())["rows"] == [ROW]
    progress = capsys.readouterr().err
    assert "64x64x64: triton" in progress
    assert "64x64x64: done: triton 0.500" in progress
    again = record(file)
    assert again.missing([F16, BF16]) == [BF16]
    again.hear(BF16, {"environment": HERE})
    again.hear(BF16, {"row": ROW | {"element": "bf16"}})
    assert "64x64x64 bf16: done" in capsys.readouterr().err
    again.end(["a trouble"], ["128x128x128"])
    written = json.loads(file.read_text())
    assert [row["element"] for row in written["rows"]] == ["f16", "bf16"]
    assert (written["environment"], written["troubles"], written["left"]) == (HERE, ["a trouble"], ["128x128x128"])


def test_rows_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    first = record(file)
    first.hear(F16, {"environment": HERE})
    first.hear(F16, {"row": ROW})
    with pytest.raises(UsageError, match="holds rows of here, this is elsewhere"):
        record(file).hear(BF16, {"environment": ELSEWHERE})


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "notes.json"
    file.write_text("no JSON")
    with pytest.raises(UsageError, match="is not a result of this benchmark"):
        record(file)


def test_both_types_of_a_shape_follow_each_other() -> None:
    jobs = jobs_of(["a", "b"], ("cuda-l2-paper", "deepgemm"), deep_gemm=True)
    assert [(job.shape, job.element) for job in jobs] == [("a", "f16"), ("a", "bf16"), ("b", "f16"), ("b", "bf16")]
    assert jobs[1].without == {"cuda-l2-paper": "timed in FP16"}
    assert [job.element for job in jobs_of(["a"], ("deepgemm",), deep_gemm=True)] == ["bf16"]
    assert [job.element for job in jobs_of(["a"], ("triton", "deepgemm"), deep_gemm=False)] == ["f16"]
