"""Which algorithms of cuBLASLt a library takes beside its kernels, and what it holds of them."""

import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cudal2.library.kernel_library import key_of, open_library
from cudal2_agent.agent.campaign.result_files import read_results
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.library.algorithms.algorithm_choice import (
    EPILOGUE,
    HALF_ACCUMULATOR,
    HALF_SUMS,
    NO_GAIN,
    OTHER_LAYOUT,
    choose_algorithms,
)
from cudal2_agent.agent.library.entry_choice import product_of
from cudal2_agent.agent.library.measured_kernels import MeasuredKernel, Origins, origins_in_row
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.evaluation import AUTOTUNED, HEURISTIC, TORCH
from cudal2_agent.contract.records.library import StoredAlgorithm
from cudal2_agent.contract.records.task import AccumulatorType, Activation, GemmTask, Layout
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import open_store
from tests.agent.library.test_building import H200, build, from_store, row, rows_in
from tests.doubles import NOW
from tests.doubles.libraries import CONFIGURATION, library_entry, small_tasks, stored_algorithm, write_entries

TASK, OTHER, THIRD = small_tasks()
TIMES = {AUTOTUNED: 6.0, HEURISTIC: 7.0, TORCH: 7.5}


def slow_row(task: GemmTask = TASK, words: str | None = None, **changes: Any) -> ShapeResult:
    """A row whose kernel does not beat AutoTuning, and whose race had all baselines."""
    autotuned = words or f"layout {task.layout}, {CONFIGURATION}"
    return row(task, 0.9, **{"baselines_us": TIMES, "autotuned": autotuned, **changes})


def choice_of(*rows: ShapeResult, opaque: str | None = None) -> Any:
    kernels = [MeasuredKernel("H200", one.best_without, one) for one in rows if one.best_without]
    return choose_algorithms(kernels, lambda kernel: Origins(autotuned=kernel.row.autotuned, opaque=opaque))


def test_an_algorithm_says_what_its_race_measured() -> None:
    [stored] = choice_of(slow_row(commit="abc"), opaque="00ff").algorithms
    assert (stored.task, stored.chip, stored.words, stored.opaque) == (TASK, "H200", f"layout nn, {CONFIGURATION}", "00ff")
    assert (stored.time_us, stored.torch_us, stored.heuristic_us, stored.rival_us) == (6.0, 7.5, 7.0, 7.5)
    assert (stored.environment, stored.cublas, stored.measured) == (H200, "13.1", NOW.date())
    assert (stored.run_id, stored.commit) == (slow_row().run_id, "abc")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"words": f"layout tn, {CONFIGURATION}"}, OTHER_LAYOUT),
        ({"words": f"layout nn, {CONFIGURATION.replace('reduction none', 'reduction output_type')}"}, HALF_SUMS),
        ({"words": f"layout nn, {CONFIGURATION.replace('reduction none', 'reduction inplace')}"}, HALF_SUMS),
        ({"task": TASK.model_copy(update={"accumulate": AccumulatorType.F16})}, HALF_ACCUMULATOR),
        ({"task": TASK.model_copy(update={"bias": True})}, EPILOGUE),
        ({"task": TASK.model_copy(update={"activation": Activation.RELU})}, EPILOGUE),
        ({"baselines_us": {AUTOTUNED: 6.0, HEURISTIC: 9.0, TORCH: 6.11}}, NO_GAIN),
        ({"baselines_us": {AUTOTUNED: 6.0, HEURISTIC: 6.11}}, NO_GAIN),
        ({"baselines_us": {AUTOTUNED: 6.0}}, NO_GAIN),
    ],
)
def test_what_no_call_can_run_or_gain_by_is_left_out(changes: dict[str, Any], reason: str) -> None:
    choice = choice_of(slow_row(**changes))
    assert choice.algorithms == ()
    assert [one.reason for one in choice.left_out] == [reason]


def test_without_torch_s_time_the_heuristic_s_counts() -> None:
    [stored] = choice_of(slow_row(baselines_us={AUTOTUNED: 6.0, HEURISTIC: 6.2})).algorithms
    assert (stored.torch_us, stored.rival_us) == (None, 6.2)


def test_partial_sums_in_f32_are_taken() -> None:
    words = f"layout nn, {CONFIGURATION.replace('reduction none', 'reduction compute_type')}"
    assert [one.words for one in choice_of(slow_row(words=words)).algorithms] == [words]


def test_the_newest_race_counts_and_not_the_luckiest() -> None:
    lucky = slow_row(baselines_us=TIMES | {TORCH: 60.0})
    newer = slow_row(run_id="newer", finished_at=NOW + timedelta(days=1))
    for rows in ((lucky, newer), (newer, lucky)):
        [stored] = choice_of(*rows).algorithms
        assert (stored.run_id, stored.torch_us) == ("newer", 7.5)


def test_a_row_without_an_algorithm_gives_none_and_reads_as_before(tmp_path: Path) -> None:
    plain = json.loads(slow_row().model_dump_json())
    del plain["autotuned"]
    (tmp_path / "old.jsonl").write_text(json.dumps(plain), encoding="utf-8")
    [old] = read_results([tmp_path / "old.jsonl"])
    assert old.autotuned is None
    assert choice_of(old) == choice_of()


def test_a_library_from_rows_has_kernels_and_algorithms(tmp_path: Path) -> None:
    tn = OTHER.model_copy(update={"layout": Layout.TN})
    won, excluded = slow_row(THIRD), slow_row(OTHER)
    path = rows_in(tmp_path / "rows.jsonl.gz", row(THIRD), won, slow_row(), slow_row(tn), excluded)
    out = tmp_path / "h200.jsonl.gz"
    built = build([path], out, without=frozenset({product_of(OTHER)}))
    library = open_library(out)
    assert built.manifest == library.manifest
    assert (library.manifest.version, len(library)) == (3, 1)
    assert {one.task for one in library.algorithms()} == {TASK, tn}, "a kernel won the third task"
    assert library.find(key_of(THIRD)) is not None
    stored = library.algorithm(key_of(tn))
    assert stored is not None
    assert stored.words == f"layout tn, {CONFIGURATION}"
    assert library.algorithm(key_of(THIRD)) is None


def test_a_library_of_algorithms_alone_is_one(tmp_path: Path) -> None:
    build([rows_in(tmp_path / "rows.jsonl.gz", slow_row())], tmp_path / "h200")
    library = open_library(tmp_path / "h200")
    assert (len(library), len(list(library.algorithms()))) == (0, 1)


def test_a_library_without_algorithms_is_of_the_first_version(tmp_path: Path) -> None:
    """Its bytes are those that older products read."""
    write_entries(tmp_path / "small.jsonl.gz", [library_entry(TASK)])
    manifest = json.loads(gzip.decompress((tmp_path / "small.jsonl.gz").read_bytes()).splitlines()[0])
    assert manifest["version"] == 1
    assert "algorithms" not in manifest


def test_the_record_of_a_store_counts_for_the_algorithm_of_the_race_only(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'home' / 'trajectories.sqlite'}"
    with open_store(url) as store:
        queue = CampaignQueue(store, "main")
        queue.open(RunSettings())
        queue.take_over([slow_row(), slow_row(OTHER)])
        for task, words in ((TASK, CONFIGURATION), (OTHER, CONFIGURATION.replace("66", "67"))):
            kept = {"layout": "nn", "algorithm": "00ff", "detail": f"layout nn, {words}; best of 9 suggestions"}
            store.keep(
                TunedBaseline.model_validate({"task": task, "environment": H200, "suggestions": 9, "time_us": 6.0} | kept)
            )
    from_store(url, tmp_path / "h200")
    library = open_library(tmp_path / "h200")
    found = {one.task: (one.words, one.opaque) for one in library.algorithms()}
    assert found == {TASK: (f"layout nn, {CONFIGURATION}", "00ff"), OTHER: (f"layout nn, {CONFIGURATION}", None)}


@pytest.mark.parametrize(
    "changes",
    [
        {"words": f"layout tn, {CONFIGURATION}"},
        {"words": "algorithm 66"},
        {"task": TASK.model_copy(update={"accumulate": AccumulatorType.F16})},
    ],
)
def test_a_record_that_no_call_can_run_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="multiplies the layout of its task"):
        stored_algorithm(**{"task": TASK, **changes})


def test_a_row_names_its_algorithm() -> None:
    assert (
        origins_in_row(MeasuredKernel("H200", slow_row().best_without, slow_row())).autotuned == f"layout nn, {CONFIGURATION}"
    )  # type: ignore[arg-type]


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[str, StoredAlgorithm]:
    """A library of one kernel and one algorithm."""
    stored = stored_algorithm(OTHER, opaque="00ff")
    return str(write_entries(tmp_path / "mixed", [library_entry(TASK)], [stored])), stored


def test_commands_tell_algorithms_from_kernels(mixed: tuple[str, StoredAlgorithm], capsys: pytest.CaptureFixture[str]) -> None:
    library, stored = mixed
    assert main(["library", "list", "--library", library]) == 0
    out = capsys.readouterr().out
    assert "small: 1 entries" in out
    assert "1 algorithms of cuBLASLt" in out
    assert "1.250x" in out.splitlines()[-1]
    assert main(["library", "list", "--library", library, "--json"]) == 0
    assert StoredAlgorithm.model_validate_json(capsys.readouterr().out.splitlines()[1]) == stored
    assert main(["library", "show", stored.id[:8], "--library", library]) == 0
    out = capsys.readouterr().out
    assert f"layout nn, {CONFIGURATION}" in out
    assert "torch.matmul 7.50 us" in out
    assert "of cuBLAS 13.1.0" in out
    for command in (["show", stored.id, "--source"], ["prepare", "--entry", stored.id]):
        assert main(["library", *command, "--library", library]) == 2
        assert "is an algorithm of cuBLASLt" in capsys.readouterr().err


def test_build_says_how_many_algorithms_and_why_not_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = slow_row(OTHER, words=f"layout tn, {CONFIGURATION}")
    path = rows_in(tmp_path / "rows.jsonl.gz", row(THIRD), slow_row(), away)
    assert main(["library", "build", "--rows", str(path), "--out", str(tmp_path / "h200")]) == 0
    out = capsys.readouterr().out
    assert "1 entries and 1 algorithms of cuBLASLt for H200" in out
    assert f"no algorithm: 1 tasks, {OTHER_LAYOUT}: {OTHER.shape}\n" in out
