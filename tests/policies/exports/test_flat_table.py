"""The flat table holds every step, withheld rewards as null and earlier measurements marked."""

import json
from pathlib import Path

import pytest

from cudal2_agent.contract.records.evaluation import CompileFailed
from cudal2_agent.policies.exports.columns import PARQUET
from cudal2_agent.policies.exports.dataset import export_dataset
from cudal2_agent.policies.exports.flat_table import ROW_GROUP, table_rows
from cudal2_agent.policies.exports.formats import ExportOptions
from tests.doubles import ENVIRONMENT, measured, unmeasured
from tests.policies.exports.runs import PROMPTS, RunOfTests, kernel, many


def run_of_all() -> RunOfTests:
    run = RunOfTests(versions={"numpy": "2.4.6"})
    observation = run.round(1)
    for number, evaluation in (
        (1, measured(5.0)),
        (2, CompileFailed(message="no", log="")),
        (3, unmeasured(2.0)),
        (1, measured(8.0)),
    ):
        run.add(observation, kernel(number), evaluation)
    written = kernel(4, policy="chat")
    run.add(observation, written, measured(4.0))
    run.ask(observation, written, "reply")
    return run


def test_every_step_is_a_row() -> None:
    run = run_of_all()
    rows = list(table_rows(run.trajectory))
    assert all(list(row) == list(PARQUET) for row in rows)
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["latest"] for row in rows] == [False, True, True, True, True]
    assert [row["status"] for row in rows] == ["measured", "compile_failed", "unmeasured", "measured", "measured"]
    assert [row["reward"] for row in rows] == [step.reward for step in run.steps]
    assert [row["reward"] is None for row in rows] == [False, False, True, False, True]
    assert [row["speedup"] for row in rows] == [2.0, None, None, 1.25, 2.5]
    assert [row["verified"] for row in rows] == [True, False, False, True, False]
    assert [row["fault"] for row in rows] == [None, "no", None, None, None]
    assert {row["environment"] for row in rows} == {ENVIRONMENT.key}
    assert json.loads(rows[0]["schedule"])["block_m"] == 65
    assert json.loads(rows[0]["evaluation"])["timing"]["samples_us"] == [5.0] * 5
    assert (rows[4]["model"], rows[4]["schedule"], json.loads(rows[4]["exchange"])["reply"]) == ("test", None, "reply")


def test_the_file_is_read_back_with_its_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra: pip install 'cudal2-agent[data]'")
    run = run_of_all()
    export_dataset([run.trajectory], "parquet", tmp_path / "steps.parquet", ExportOptions(), PROMPTS)
    assert parquet.read_table(tmp_path / "steps.parquet").to_pylist() == list(table_rows(run.trajectory))


def test_a_large_table_is_written_in_groups(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra: pip install 'cudal2-agent[data]'")
    runs = ROW_GROUP // 8 + 1
    export_dataset(many(runs), "parquet", tmp_path / "out", ExportOptions(test_shapes=("64x128x256",)), PROMPTS)
    train = parquet.ParquetFile(tmp_path / "out" / "train.parquet")
    assert train.metadata.num_rows == 8 * (runs - 1)
    export_dataset(many(runs), "parquet", tmp_path / "all.parquet", ExportOptions(), PROMPTS)
    assert parquet.ParquetFile(tmp_path / "all.parquet").metadata.num_row_groups == 2
