"""`campaign report` as a function: the campaign's app registers it."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cudal2_agent.agent.campaign.result_files import read_results, write_results
from cudal2_agent.agent.campaign.shapes import held_out_shapes
from cudal2_agent.agent.cli.campaign.report import report
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import open_store
from tests.doubles import OBSERVATION, measured, run_record, step
from tests.doubles.campaign_rows import START, shape_result

ROW = shape_result("64x64x64", 1.5, 3.0, run_id="run-1")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> str:
    app = typer.Typer()
    app.command()(report)
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_rows_of_a_file_become_a_page_with_the_samples_of_the_store() -> None:
    write_results(Path("rows.jsonl.gz"), [ROW])
    with open_store(load_settings().store_url) as store:
        store.record_observation("run-1", OBSERVATION)
        store.start_run(run_record("run-1"))
        store.record_step(step(7, evaluation=measured(2.125)))
    Path("held.json").write_text('{"drawn": "once", "grid": ["64x64x64"]}')
    assert run("rows.jsonl.gz", "--held-out", "held.json", "--out", "page.html") == "page.html"
    page = Path("page.html").read_text()
    assert "accumulate f32, held out of every tuning" in page
    assert "2.125" in page


def test_only_the_lists_of_held_out_shapes_count(tmp_path: Path) -> None:
    (tmp_path / "drawn.json").write_text('{"measured_before": ["64x64x64"], "grid": ["8x8x8"], "off_grid": ["1x8x8"]}')
    (tmp_path / "plain.json").write_text('["64x64x64"]')
    assert held_out_shapes(tmp_path / "drawn.json") == ["8x8x8", "1x8x8"]
    assert held_out_shapes(tmp_path / "plain.json") == ["64x64x64"]
    assert held_out_shapes(None) == []


def test_rows_are_merged_into_one_file() -> None:
    newer = ROW.model_copy(update={"finished_at": START + timedelta(days=1), "commit": "def5678"})
    write_results(Path("one.jsonl.gz"), [ROW])
    write_results(Path("two.jsonl.gz"), [newer])
    told = run("one.jsonl.gz", "two.jsonl.gz", "--rows", "all.jsonl.gz", "--json")
    assert json.loads(told) == {"out": "campaign.html", "results": 1}
    assert read_results([Path("all.jsonl.gz")]) == [newer]


def test_named_campaigns_of_the_store_alone_are_on_the_page() -> None:
    with open_store(load_settings().store_url) as store:
        for name, shape in (("small", "64x64x64"), ("large", "128x128x128"), ("other", "256x64x64")):
            queue = CampaignQueue(store, name)
            queue.open(RunSettings())
            queue.take_over([shape_result(shape, 1.5, 3.0)])
    assert json.loads(run("--json"))["results"] == 3
    assert json.loads(run("--name", "small", "--name", "large", "--rows", "rows.jsonl.gz", "--json"))["results"] == 2
    assert {row.task.shape for row in read_results([Path("rows.jsonl.gz")])} == {"64x64x64", "128x128x128"}
    with pytest.raises(UsageError, match="campaign 'none' has no result"):
        run("--name", "none")
    with pytest.raises(UsageError, match="either files of rows or --name"):
        run("rows.jsonl.gz", "--name", "small")


def test_an_empty_store_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="run `cudal2-agent campaign`"):
        run()


def test_what_cannot_be_read_or_written_is_named() -> None:
    write_results(Path("rows.jsonl.gz"), [ROW])
    with pytest.raises(UsageError, match=r"none\.json cannot be read"):
        run("rows.jsonl.gz", "--held-out", "none.json")
    with pytest.raises(UsageError, match=r"no/page\.html cannot be written"):
        run("rows.jsonl.gz", "--out", "no/page.html")
