"""The plan of what the committed rows lack, and the running of its stages on the emulator."""

from pathlib import Path

import pytest

from benchmarks.gpu_plan import running
from benchmarks.gpu_plan.__main__ import listed
from benchmarks.gpu_plan.plan import PlannedCampaign, gpu_seconds, is_stale, stages_of
from benchmarks.gpu_plan.running import collect, gpus_of, is_finished, run_stages
from benchmarks.h200.grid import shapes_in
from cudal2_agent.agent.campaign.result_files import read_results
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import Layout, TimingMode
from cudal2_agent.policies.schedule.families.registry import written
from cudal2_agent.store.compression import zstd
from tests.doubles.campaign_rows import ENVIRONMENT, shape_result, winner
from tests.doubles.libraries import LATENCY

OF_H200 = {"environment": ENVIRONMENT.removeprefix("NVIDIA ")}


def names(stages: list[tuple[PlannedCampaign, ...]]) -> list[list[str]]:
    return [[one.name for one in stage] for stage in stages]


def test_what_a_row_of_the_chip_has_is_not_planned_again() -> None:
    first, *others = shapes_in("tn")
    known = shape_result(first, layout=Layout.TN, **OF_H200)
    elsewhere = shape_result(others[0], layout=Layout.TN, environment="H100 driver-580.1 toolkit-13.0 cublas-13.1")
    lost = shape_result(others[1], layout=Layout.TN, best=None, best_without=None, **OF_H200)
    stages = stages_of("H200", [known, elsewhere, lost], 4)
    assert stages[0][0].shapes == tuple(others)
    assert len(stages[1][0].shapes) == 150
    every_tn = [shape_result(shape, layout=Layout.TN, **OF_H200) for shape in shapes_in("tn")]
    assert names(stages_of("H200", every_tn, 4))[0] == ["nt"]


def test_a_winner_whose_family_writes_another_source_is_searched_again() -> None:
    schedule = {**LATENCY}
    shape, today = "64x64x64", shape_result("64x64x64", **OF_H200)
    ours = winner(1.2, 10.0, programmatic=True).model_copy(
        update={"schedule": schedule, "candidate_id": written(schedule, today.task).id}
    )
    other = ours.model_copy(update={"candidate_id": "0123456789abcdef"})
    fresh = today.model_copy(update={"best": ours, "best_without": ours})
    stale = today.model_copy(update={"best": ours, "best_without": other})
    unwritable = today.model_copy(update={"best": ours.model_copy(update={"schedule": {"family": "of_yesterday"}})})
    assert [is_stale(row) for row in (fresh, stale, unwritable)] == [False, True, True]
    assert "stale" not in [name for stage in names(stages_of("H200", [fresh], 1)) for name in stage]
    [planned] = next(stage for stage in stages_of("H200", [stale], 1) if stage[0].name == "stale")
    assert planned.shapes == (shape,)


@pytest.mark.parametrize(
    ("gpus", "stable"),
    [
        (1, [["gpus-1"], ["budget-72"]]),
        (2, [["gpus-1"], ["gpus-2"], ["budget-72"]]),
        (4, [["gpus-1", "gpus-2"], ["gpus-4"], ["budget-72"]]),
        (8, [["gpus-1", "gpus-2", "gpus-4"], ["budget-72"]]),
    ],
)
def test_seeds_run_together_where_there_are_gpus_for_them(gpus: int, stable: list[list[str]]) -> None:
    assert names(stages_of("H200", [], gpus))[3:] == stable
    assert names(stages_of("H200", [], gpus, ["gpus-1", "budget-72"]))[3:] == [
        left for stage in stable if (left := [name for name in stage if name not in ("gpus-1", "budget-72")])
    ]


def test_an_h100_begins_with_what_stands_beside_the_paper() -> None:
    assert names(stages_of("H100", [], 4)) == [["h100"], ["h100-server"], ["h100-grid"]]
    with pytest.raises(UsageError, match="no plan for a GPU named 'A100'"):
        stages_of("A100", [], 1)


def test_costs_follow_from_the_rows_of_the_mode() -> None:
    campaign = PlannedCampaign(name="a", home="a", shapes=("64x64x64",) * 3, mode=TimingMode.SERVER)
    rows = [shape_result("64x64x64", gpu_seconds=9.0), shape_result("64x64x64", mode=TimingMode.SERVER, gpu_seconds=2.0)]
    assert gpu_seconds(campaign, rows) == 6.0
    assert listed([(campaign,)], rows)[-1] == "| 1 | a | 3 | all | 6 |"


def test_campaigns_of_a_stage_share_no_gpu() -> None:
    stage = tuple(
        PlannedCampaign(name=name, home="a", shapes=(), gpus=count) for name, count in (("all", None), ("a", 1), ("b", 2))
    )
    assert gpus_of(stage, [0, 1, 2, 3]) == {"a": [0], "b": [1, 2], "all": [3]}


def test_stages_run_go_on_and_are_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = PlannedCampaign(name="small", home="home", shapes=("64x64x64",), budget=1)
    command = running.command_of

    def on_emulator(*args: object) -> list[str]:
        words = command(*args)  # type: ignore[arg-type]
        return [*words[: words.index("--gpus") + 1], "emulator", *words[words.index("--gpus") + 2 :]]

    monkeypatch.setattr(running, "command_of", on_emulator)
    assert not run_stages([(ready,)], tmp_path, [0], 20.0), "too little time to begin"
    assert not (tmp_path / "home").exists()
    assert run_stages([(ready,)], tmp_path, [0], 300.0)
    assert is_finished(ready, tmp_path / "home")
    monkeypatch.setattr(running, "command_of", lambda *_: pytest.fail("a finished campaign began again"))
    assert run_stages([(ready,)], tmp_path, [0], 300.0)
    collect([(ready,)], tmp_path, tmp_path / "out")
    [row] = read_results([tmp_path / "out"])
    assert row.task.shape == "64x64x64"
    assert zstd.decompress((tmp_path / "out/home.sqlite.zst").read_bytes()).startswith(b"SQLite format 3")


def test_a_campaign_that_cannot_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = PlannedCampaign(name="no-gpu", home="home", shapes=("64x64x64",))
    assert not run_stages([(planned,)], tmp_path, [77], 100.0)
    assert "there is no GPU 77" in capsys.readouterr().out
