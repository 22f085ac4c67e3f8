import gzip
import json
from datetime import timedelta
from pathlib import Path

import pytest

from cudal2_agent.agent.campaign.report.figures import CLASSES, figures_of
from cudal2_agent.agent.campaign.result_files import counting, read_results, write_results
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import Explanation
from tests.doubles.campaign_rows import START, campaign_rows, shape_result

LOST = shape_result("64x64x64", best=None, best_without=None, gpu_seconds=1.0)


def test_geometric_means_and_shares() -> None:
    figures = figures_of([shape_result("64x64x64", 2.0, plain=1.0), shape_result("64x64x128", 0.5, plain=0.25), LOST])
    assert (figures.shapes, figures.without_result, figures.plain_shapes) == (2, 1, 2)
    assert (figures.geomean, figures.geomean_without_programmatic, figures.faster_share) == (1.0, 0.5, 0.5)
    assert figures.gpu_seconds == pytest.approx(11 / 3, abs=1e-4)


def test_a_shape_counts_as_wholly_faster_only_with_its_interval() -> None:
    rows = [shape_result("64x64x64", ratio) for ratio in (1.2, 1.0001, 0.9999, 0.8)]
    figures = figures_of(rows)
    assert (figures.faster_share, figures.wholly_faster_share, figures.wholly_slower_share) == (0.5, 0.25, 0.25)


@pytest.mark.parametrize(
    ("time_us", "name"),
    [
        (3.99, "under_4us"),
        (4.0, "4_to_15us"),
        (15.0, "15_to_60us"),
        (59.9, "15_to_60us"),
        (60.0, "over_60us"),
        (2000.0, "over_60us"),
    ],
)
def test_a_class_includes_its_lower_bound(time_us: float, name: str) -> None:
    figures = figures_of([shape_result("64x64x64", 1.5, time_us)])
    assert figures.classes == {each: 1.5 if each == name else None for each in CLASSES}
    assert figures.class_shapes[name] == 1


def test_a_shape_without_a_plain_kernel_is_counted_apart() -> None:
    figures = figures_of([shape_result("64x64x64", 2.0, plain=None), shape_result("64x64x128", 2.0, plain=1.5)])
    assert (figures.shapes, figures.plain_shapes, figures.geomean_without_programmatic) == (2, 1, 1.5)


def test_figures_of_nothing_are_absent() -> None:
    figures = figures_of([LOST])
    assert figures.shapes == 0
    assert (figures.geomean, figures.geomean_without_programmatic, figures.faster_share) == (None, None, None)
    assert set(figures.classes.values()) == {None}


def test_only_what_the_emulator_ran_is_proved() -> None:
    said = ("agreed", "in-part", "unavailable: no core", "")
    assert figures_of([shape_result("64x64x64", witness=each) for each in said]).proved == 2


def test_rows_survive_the_file_in_the_order_of_their_tasks(tmp_path: Path) -> None:
    rows = [shape_result("128x64x64"), shape_result("64x64x64", plain=None)]
    write_results(tmp_path / "one.jsonl.gz", rows)
    assert read_results([tmp_path]) == rows[::-1]


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    rows = [shape_result("128x64x64"), shape_result("64x64x64")]
    write_results(tmp_path / "one.jsonl.gz", rows)
    write_results(tmp_path / "two.jsonl.gz", rows[::-1])
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()


def test_a_reader_without_this_project_opens_it_and_the_whole_grid_is_small(tmp_path: Path) -> None:
    file = tmp_path / "grid.jsonl.gz"
    write_results(file, campaign_rows())
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    first = json.loads(lines[0])
    assert (first["task"]["m"], first["task"]["mode"], first["best"]["speedup"]["baseline"]) == (
        1,
        "offline",
        "cublaslt-autotuning",
    )
    assert len(lines) == 2100
    assert file.stat().st_size < 2_000_000


def test_a_file_that_is_missing_or_of_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.jsonl\.gz does not exist"):
        read_results([tmp_path / "none.jsonl.gz"])
    (tmp_path / "text.jsonl.gz").write_bytes(b"\x1f\x8b no archive")
    with pytest.raises(UsageError, match="cannot be read as a file of JSON lines"):
        read_results([tmp_path])
    (tmp_path / "text.jsonl.gz").write_bytes(gzip.compress(b'{"task": 1}\n'))
    with pytest.raises(UsageError, match="line 1 is not a campaign result"):
        read_results([tmp_path])


def test_the_newest_row_counts_and_not_the_best() -> None:
    old = shape_result("64x64x64", 1.5)
    new = shape_result("64x64x64", 1.2, finished_at=START + timedelta(days=1))
    assert counting([new, old]) == [new]


def test_a_row_without_a_kernel_counts_only_where_there_is_no_other() -> None:
    old = shape_result("64x64x64", 1.5)
    lost = shape_result("64x64x64", best=None, best_without=None, environment=None, finished_at=START + timedelta(days=1))
    alone = shape_result("128x64x64", best=None, best_without=None, environment=None)
    assert counting([lost, old, alone]) == [old, alone]


def test_environments_are_never_mixed() -> None:
    here, there = shape_result("64x64x64"), shape_result("64x64x64", environment="another")
    with pytest.raises(UsageError, match="2 environments"):
        counting([here, there])
    assert counting([here, there], "another") == [there]
    with pytest.raises(UsageError, match="no row comes from environment 'third'"):
        counting([here, there], "third")


def test_of_the_same_row_the_explained_one_counts() -> None:
    row = shape_result("64x64x64")
    told = row.model_copy(update={"explained": Explanation(tool="ncu", environment="", findings=(), counters={})})
    for rows in ([row, told], [told, row]):
        assert counting(rows) == [told]
