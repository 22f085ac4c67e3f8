"""Two searches of the same shapes against each other."""

from pathlib import Path

import pytest

from benchmarks.h200.stability import main, pairs_of, read_rows, report
from benchmarks.h200.summary import ROWS
from cudal2_agent.agent.campaign.result_files import write_results
from cudal2_agent.contract.errors import UsageError
from tests.doubles.campaign_rows import shape_result

SHAPES = ("64x64x64", "64x64x128", "64x64x256", "64x64x512")


def rows(*ratios: float, commit: str = "abc1234") -> list:
    return [shape_result(shape, ratio, 3.0, commit=commit) for shape, ratio in zip(SHAPES, ratios, strict=False)]


def test_shares_and_mean_of_the_changes() -> None:
    text = "\n".join(report(pairs_of(rows(1.0, 1.0, 1.0, 2.0), rows(1.01, 1.1, 0.9, 1.97))))
    mean = (1.01 * 1.1 * 0.9 * 0.985) ** 0.25
    assert f"| under 4 µs | 4 | 50% | 75% | {mean:.4f} |" in text
    assert f"| all | 4 | 50% | 75% | {mean:.4f} |" in text
    assert "4–15 µs" not in text
    assert "64x64x256 nn offline: 0.900" in text
    assert "commits differ" not in text


def test_only_common_shapes_count() -> None:
    assert [pair.first.task.shape for pair in pairs_of(rows(1.0, 1.0), rows(1.0)[:1])] == ["64x64x64"]
    lost = rows(1.0)[0].model_copy(update={"best": None})
    with pytest.raises(UsageError, match="no shape in common"):
        pairs_of(rows(1.0), [lost])


def test_other_versions_are_named() -> None:
    text = "\n".join(report(pairs_of(rows(1.0), rows(1.0, commit="def5678"))))
    assert "the commits differ" in text
    assert "second: commit def5678, 48 candidates and 5.0 GPU s per shape" in text


def test_environments_are_not_compared() -> None:
    with pytest.raises(UsageError, match="2 environments"):
        pairs_of(rows(1.0), [shape_result(SHAPES[0], environment="H100")])


def test_the_rows_hold_29_shapes_twice() -> None:
    file = ROWS / "offline-2026-11-23.jsonl.gz"
    pairs = pairs_of(read_rows(f"{file}@e45dca4"), read_rows(f"{file}@557d0a4"))
    assert len(pairs) == 29
    assert (sum(pair.agrees for pair in pairs), sum(pair.no_worse for pair in pairs)) == (18, 27)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.jsonl.gz"
    write_results(file, rows(1.0, 1.5))
    monkeypatch.setattr("sys.argv", ["stability", str(file), f"{file}@abc"])
    main()
    assert "| all | 2 | 100% | 100% | 1.0000 |" in capsys.readouterr().out
    with pytest.raises(UsageError, match="has no row of commit fff"):
        read_rows(f"{file}@fff")
