"""`trajectories export`, `import` and `merge`: every format is written, what travels comes back, wrong options are one line."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.cli.trajectories.sending import ExportFormat
from cudal2_agent.policies.exports.dataset import DATASET_FORMATS
from cudal2_agent.store.store import open_store
from tests.policies.exports.runs import searched
from tests.store.small_store import small_store

Answer = Callable[..., str]


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answer:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    small_store(tmp_path / "trajectories.sqlite")

    def run(*words: str, code: int = 0) -> str:
        found = main(["trajectories", *words])
        said = capsys.readouterr()
        assert found == code, said.err
        return said.err if code else said.out

    return run


def add_kernels(home: Path) -> None:
    """Add a run of 8 kernels that every format can write."""
    with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as store:
        given = searched(run_id="run-3")
        store.start_run(given.run)
        for observation in given.observations.values():
            store.record_observation("run-3", observation)
        for step in given.steps:
            store.record_step(step)


def test_the_command_names_every_format_of_a_data_set() -> None:
    assert set(ExportFormat) == {*DATASET_FORMATS, "sweep", "flashinfer"}


@pytest.mark.parametrize("format", [one for one in DATASET_FORMATS if one != "parquet"])
def test_a_data_set_goes_to_a_file_or_to_stdout(answer: Answer, tmp_path: Path, format: str) -> None:
    add_kernels(tmp_path)
    lines = answer("export", "--format", format).splitlines()
    summary = json.loads(answer("export", "--format", format, "--out", "rows.jsonl", "--json"))
    assert (tmp_path / "rows.jsonl").read_text().splitlines() == lines
    assert (summary["out"], summary["format"], summary["runs"], summary["steps"]) == ("rows.jsonl", format, 3, 19)
    assert sum(summary["rows"].values()) == len(lines) > 0


def test_filters_and_runs_choose_the_steps(answer: Answer) -> None:
    lines = [json.loads(line) for line in answer("export", "run-1", "--outcome", "compile_failed").splitlines()]
    assert [(line["run_id"], line["index"]) for line in lines] == [("run-1", 2), ("run-1", 6)]
    assert len(answer("export", "run-1", "--run", "run-2").splitlines()) == 11


@pytest.mark.parametrize("format", ExportFormat)
@pytest.mark.parametrize("to_file", [True, False])
def test_an_export_without_a_row_is_one_line_and_exit_code_1(
    answer: Answer, tmp_path: Path, format: str, to_file: bool
) -> None:
    if not to_file and format in ("parquet", "sweep", "flashinfer"):
        pytest.skip("this format goes to a file")
    name = "rows.parquet" if format == "parquet" else "bench" if format == "flashinfer" else "rows.jsonl"
    said = answer("export", "--format", format, "--min-speedup", "9", *(["--out", name] if to_file else []), code=1)
    assert "note: nothing was written: no step is selected" in said
    assert not (tmp_path / name).exists()


def test_an_export_that_leaves_all_out_says_why_and_keeps_an_earlier_one(
    answer: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_kernels(tmp_path)
    answer("export", "--format", "sft", "--out", "rows.jsonl")
    before = (tmp_path / "rows.jsonl").read_bytes()
    said = answer("export", "--format", "sft", "--good-speedup", "1000", "--out", "rows.jsonl", code=1)
    assert re.search(r"note: nothing was written: 0 rows of 19 steps;.* \d+ samples below the least speedup", said)
    assert (tmp_path / "rows.jsonl").read_bytes() == before
    words = ["trajectories", "export", "--format", "sft", "--good-speedup", "1000", "--out", "rows.jsonl", "--json"]
    assert main(words) == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["rows"] == {"train": 0}
    assert summary["left_out"]["below_speedup"] > 0


def test_a_split_is_a_folder(answer: Answer, tmp_path: Path) -> None:
    add_kernels(tmp_path)
    told = answer("export", "--format", "sft", "--test-shape", "64x128x256", "--out", "data")
    assert told.endswith("of 19 steps written to data\n")
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"README.md", "train.jsonl", "test.jsonl"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--piece-mb", "4"], "--piece-mb is for the formats sweep; leave it out for steps"),
        (["--format", "sft", "--every"], "--every is for the formats flashinfer"),
        (["--format", "grpo", "--messages"], "--messages is for the formats sft"),
        (["--format", "sft", "--test-share", "1.5", "--out", "data"], "--test-share: input should be less than 1, not 1.5"),
        (["--format", "kto", "--good-speedup", "-1"], "--good-speedup: input should be greater than 0, not -1"),
        (["--format", "preference", "--min-margin", "-1"], "--min-margin: input should be greater than or equal to 0"),
        (["--format", "sft", "--test-shape", "8", "--out", "data"], "'8' is not M x N x K"),
        (["--format", "xml"], "'xml' is not one of 'steps', 'sft'"),
        (["--format", "sft", "--test-share", "0.5"], "a test split needs a folder"),
        (["--format", "flashinfer"], "name one with --out"),
        (["--format", "sweep", "--piece-mb", "4"], "name a file with --out"),
        (["--format", "sweep", "--piece-mb", "0", "--out", "x"], "--piece-mb 0 is not a size"),
        (["--out", "/proc/no/such.jsonl"], "/proc/no/such.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_line_and_leaves_nothing(words: list[str], said: str, answer: Answer, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    line = answer("export", *words, code=2)
    assert said in line
    assert line.count("\n") == 1
    assert {path for path in tmp_path.iterdir() if "sqlite" not in path.name} == {
        path for path in before if "sqlite" not in path.name
    }


def test_a_sweep_travels_in_pieces_and_comes_back(answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = json.loads(answer("export", "--format", "sweep", "--piece-mb", "1", "--out", "away", "--json"))
    assert written["steps"] == 11
    monkeypatch.setenv("CUDAL2_STORE", f"sqlite:///{tmp_path / 'new.sqlite'}")
    assert json.loads(answer("import", *written["files"], "--json"))["steps"] == 11
    assert json.loads(answer("import", *written["files"], "--json"))["known_steps"] == 11
    assert answer("verify") == "the store is sound\n"
    assert [row["speedup"] for row in json.loads(answer("list", "--json"))] == [2.0, 1.25]


def test_steps_come_back_whole(answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(f"sqlite:///{tmp_path / 'trajectories.sqlite'}") as store:
        steps = [trajectory.steps for trajectory in store.trajectories()]
    answer("export", "--out", "steps.jsonl")
    monkeypatch.setenv("CUDAL2_STORE", f"sqlite:///{tmp_path / 'new.sqlite'}")
    assert answer("import", "steps.jsonl").startswith("added: 1 files, 2 runs, 11 steps")
    with open_store(f"sqlite:///{tmp_path / 'new.sqlite'}") as store:
        assert [trajectory.steps for trajectory in store.trajectories()] == steps


def test_a_corrupt_import_is_one_line_and_adds_nothing(answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer("export", "--out", "steps.jsonl")
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    lines[4] = lines[4][:-20]
    (tmp_path / "steps.jsonl").write_text("\n".join(lines))
    monkeypatch.setenv("CUDAL2_STORE", f"sqlite:///{tmp_path / 'new.sqlite'}")
    said = answer("import", "steps.jsonl", code=2)
    assert "steps.jsonl, line 5: " in said
    assert said.count("\n") == 1
    assert json.loads(answer("list", "--json")) == []


def test_a_store_is_merged(answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_STORE", f"sqlite:///{tmp_path / 'new.sqlite'}")
    assert json.loads(answer("merge", "trajectories.sqlite", "--json"))["steps"] == 11
    assert json.loads(answer("merge", "trajectories.sqlite", "--json"))["known_runs"] == 2
    assert answer("verify") == "the store is sound\n"
    assert "there is no store at nothing" in answer("merge", "nothing", code=2)


def test_a_data_set_of_flashinfer_bench_is_written(answer: Answer, tmp_path: Path) -> None:
    written = json.loads(answer("export", "--format", "flashinfer", "--run", "run-1", "--out", "bench", "--json"))
    assert written["definitions"] == 1
    assert (tmp_path / "bench" / "definitions").is_dir()
