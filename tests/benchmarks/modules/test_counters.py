"""What is counted where the traced tasks are not those of the rows."""

import json
from pathlib import Path

import pytest

from benchmarks.modules import counters
from cudal2_agent.contract.errors import UsageError
from tests.doubles.modules import relu_of_sum


def test_rows_of_other_tasks_leave_nothing_to_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, problem = tmp_path / "rows.jsonl", tmp_path / "1_20.json"
    row = {"task": "1/19_ReLU", "class": "pointwise", "status": "measured", "speedup": [1, 1, 1], "bytes": 1}
    rows.write_text(json.dumps(row) + "\n")
    problem.write_text(relu_of_sum(name="1/20_sum").model_dump_json())
    words = [str(rows), f"--problems={problem}", f"--out={tmp_path / 'out.jsonl'}", f"--cache={tmp_path / 'cache'}"]
    monkeypatch.setattr("sys.argv", ["counters", *words])
    with pytest.raises(UsageError, match="none of the tasks that were chosen"):
        counters.main()
