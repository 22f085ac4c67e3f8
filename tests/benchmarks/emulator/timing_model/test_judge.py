"""CPU seconds of predictions: the fastest of several traces counts, and none is refused."""

from pathlib import Path

import pytest

from benchmarks.emulator.timing_model import judge, predicting
from benchmarks.emulator.timing_model.sources import scheduled


def test_the_fastest_of_several_traces_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, real, extra_s = next(iter(scheduled())), predicting._prepared, iter([200.0, 100.0, 300.0])

    def slower(*args: object) -> predicting.Prepared:
        made = real(*args)
        return predicting.Prepared(made.task, made.traced, made.inspection, (next(extra_s), 0.0))

    monkeypatch.setattr(predicting, "_prepared", slower)
    [(position, made)] = predicting.prepared([(kernel.candidate, kernel.task)], tmp_path, 1, repeats=3)
    assert (position, made.seconds) == (0, (100.0, 0.0))


def test_no_trace_at_all_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["judge", "rows.jsonl", "--repeats", "0"])
    with pytest.raises(SystemExit, match="2"):
        judge.main()
    assert capsys.readouterr().err.splitlines()[-1].endswith("--repeats: at least 1")
