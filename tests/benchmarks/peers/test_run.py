"""A run of the comparison: its command, its shapes and its table."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.__main__ import PeersFile, jobs_of
from benchmarks.peers.shapes import COUNT, chosen_shapes, default_shapes
from benchmarks.peers.supervision import ShapeJob
from benchmarks.peers.table import tables
from benchmarks.speed.grid import grid_shapes, held_out
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.evaluation import AUTOTUNED

# ---- a run's result file: what is done is not done again, and every row is on disk at once ---------------------------------
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


# ---- the shapes ------------------------------------------------------------------------------------------------------------
def test_the_default_shapes_are_of_the_grid_and_none_is_held_out() -> None:
    shapes = default_shapes()
    assert len(set(shapes)) == COUNT
    assert set(shapes) <= set(grid_shapes()) - held_out()
    assert chosen_shapes([]) == shapes == default_shapes()


def test_held_out_and_too_many_shapes_are_refused() -> None:
    apart = sorted(held_out())[0]
    with pytest.raises(UsageError, match=f"{apart}: held out"):
        chosen_shapes(["64x64x64", apart])
    with pytest.raises(UsageError, match="41 shapes are too many"):
        chosen_shapes(["64x64x64"] * 41)
    assert chosen_shapes(["64_64_64"]) == ["64x64x64"]


# ---- the table -------------------------------------------------------------------------------------------------------------
def row(shape: str, element: str = "f16", failures: dict[str, str] | None = None, **ratios: float) -> dict[str, Any]:
    peers = {name: {"speedup": {"ratio": ratio}} for name, ratio in {AUTOTUNED: 1.0, **ratios}.items()}
    return {"shape": shape, "element": element, "autotuned_us": 4.0, "peers": peers, "failures": failures or {}}


def test_a_column_for_each_peer_with_a_time_and_a_line_for_the_others() -> None:
    rows = [
        row("64x64x64", triton=0.5, failures={"cutlass": "no library"}),
        row("64x64x128", triton=2.0, failures={"cutlass": "no library"}),
    ]
    text = "\n".join(tables({"rows": rows, "troubles": ["64x64x64, cuda-l2-paper: hang"], "left": ["1x1x1"]}))
    assert "| shape | AutoTuning, µs | triton |" in text
    assert "| 64x64x128 | 4.00 | 2.000 |" in text
    assert "| geometric mean, all shapes |  | **1.000**, 1 of 2 faster |" in text
    assert "- cutlass: every shape: no library" in text
    assert "- crash or hang: 64x64x64, cuda-l2-paper: hang" in text
    assert "- not reached in time: 1x1x1" in text


def test_a_peer_that_lacks_one_shape_has_a_dash_and_the_reason() -> None:
    rows = [row("64x64x64", triton=0.5), row("64x64x128", failures={"triton": "too large"})]
    text = "\n".join(tables({"rows": rows}))
    assert "| 64x64x128 | 4.00 | — |" in text
    assert "- triton: 64x64x128: too large" in text


def test_types_have_tables_of_their_own() -> None:
    rows = [row("64x64x64", triton=0.5, failures={"deepgemm": "it is timed in BF16"}), row("64x64x64", "bf16", deepgemm=1.5)]
    text = "\n".join(tables({"rows": rows}))
    assert "same rounds, F16:" in text
    assert "same rounds, BF16:" in text
    assert "timed in BF16" not in text


def test_a_run_without_a_row_says_why() -> None:
    assert list(tables({"rows": [], "troubles": ["a, start: no GPU"]})) == ["- crash or hang: a, start: no GPU"]


def test_wrong_outputs_and_sums_of_kernels_are_marked() -> None:
    rows = [row("64x64x64", triton=1.0, paper=0.5), row("64x64x128", triton=1.0, paper=2.0)]
    for one, fault, clock in zip(rows, ("sums are narrow", ""), ("graph", "kernels"), strict=True):
        one["peers"]["cuda-l2-paper"] = one["peers"].pop("paper") | {"fault": fault, "clock": clock}
    text = "\n".join(tables({"rows": rows}))
    assert "| shape | AutoTuning, µs | triton | cuda-l2-paper | cuda-l2-paper: outputs |" in text
    assert "| 64x64x64 | 4.00 | 1.000 | 0.500 | wrong |" in text
    assert "| 64x64x128 | 4.00 | 1.000 | 2.000† | right |" in text
    assert "| geometric mean, all shapes |  | **1.000**, 0 of 2 faster | **1.000**, 1 of 2 faster |  |" in text
    assert "| geometric mean, shapes with right outputs |  | **1.000**, 0 of 2 faster | **2.000**, 1 of 1 faster |  |" in text
    assert "- cuda-l2-paper, 64x64x64, wrong: sums are narrow" in text
    assert "- cuda-l2-paper: † sum of its kernels' durations, because no graph holds its launches: 64x64x128" in text
