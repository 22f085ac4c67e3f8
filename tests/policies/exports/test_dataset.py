"""Writing a data set: whole or not at all, each text once, bounded memory, any Unicode, and a card that readers understand."""

import gc
import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cudal2_agent.contract.errors import StoreError, UsageError
from cudal2_agent.contract.records.evaluation import AUTOTUNED, COMPILED, EAGER, TORCH, CompileFailed, Evaluation, Measured
from cudal2_agent.contract.records.trajectory import Trajectory
from cudal2_agent.policies.exports import dataset
from cudal2_agent.policies.exports.columns import PARQUET, columns_of, hub_features
from cudal2_agent.policies.exports.dataset import DATASET_FORMATS, export_dataset
from cudal2_agent.policies.exports.flashinfer.flashinfer import write_flashinfer
from cudal2_agent.policies.exports.flat_table import ROW_GROUP, table_rows
from cudal2_agent.policies.exports.formats import FORMATS, ExportOptions, TrainerFormat
from cudal2_agent.policies.exports.splits import module_key
from cudal2_agent.store.steps import ExportedStep
from tests.doubles import ENVIRONMENT, measured, run_record, unmeasured
from tests.doubles.modules import relu_of_sum
from tests.policies.exports.runs import PROMPTS, RunOfTests, kernel, many, searched

PLAIN = ExportOptions()
HOSTILE = "\N{RIGHT-TO-LEFT OVERRIDE}\u2028\u2029\x85\0\x1b[31m\N{GRINNING FACE}\ufeff\ufffe｜`|\r\n</s>"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").split("\n")[:-1]]


def failing(runs: int) -> Iterator[Trajectory]:
    yield from many(runs)
    raise StoreError("the store is gone")


def test_a_folder_holds_the_splits_and_the_card(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    summary = export_dataset(many(4), "sft", out, ExportOptions(test_shapes=("64x128x256",)), PROMPTS)
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "test.jsonl", "train.jsonl"]
    assert (len(lines(out / "train.jsonl")), len(lines(out / "test.jsonl"))) == (24, 8)
    assert (summary.runs, summary.steps, summary.rows) == (4, 32, {"test": 8, "train": 24})
    assert summary.shapes == {"test": 1, "train": 3}
    assert summary.environments == {ENVIRONMENT.key: 32}
    assert summary.target == str(out)
    assert [file.stat().st_mode & 0o777 for file in (out, out / "README.md")] == [0o755, 0o644]
    assert sorted(file.name for file in out.parent.iterdir()) == ["out"]


def test_a_file_and_stdout_hold_the_same_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export_dataset(many(2), "kto", tmp_path / "kto.jsonl", PLAIN, PROMPTS)
    summary = export_dataset(many(2), "kto", None, PLAIN, PROMPTS)
    assert capsys.readouterr().out == (tmp_path / "kto.jsonl").read_text("ascii")
    assert summary.target is None
    assert not sys.stdout.closed


def test_steps_are_written_as_ever(tmp_path: Path) -> None:
    export_dataset([searched()], "steps", tmp_path / "steps.jsonl", PLAIN, PROMPTS)
    text = (tmp_path / "steps.jsonl").read_text("utf-8")
    assert [ExportedStep.model_validate_json(line).index for line in text.splitlines()] == list(range(8))


def of_module() -> Trajectory:
    """The search of a product as that of a module, which PyTorch's programs are the baselines of."""
    product = searched()
    run = run_record("module", task=relu_of_sum(), status="finished")
    seen = {name: each.model_copy(update={"task": run.task}) for name, each in product.observations.items()}
    names = {AUTOTUNED: COMPILED, TORCH: EAGER}

    def judged(evaluation: Evaluation) -> Evaluation:
        if not isinstance(evaluation, Measured):
            return evaluation
        kept = [each for each in evaluation.baselines if each.name in names]
        renamed = tuple(each.model_copy(update={"name": names[each.name]}) for each in kept)
        return evaluation.model_copy(update={"baselines": renamed})

    steps = tuple(step.model_copy(update={"run_id": "module", "evaluation": judged(step.evaluation)}) for step in product.steps)
    return product.model_copy(update={"run": run, "observations": seen, "steps": steps})


@pytest.mark.parametrize("format", FORMATS)
def test_modules_are_in_every_format_and_nothing_of_a_product_is_theirs(tmp_path: Path, format: TrainerFormat) -> None:
    product, module = searched(), of_module()
    summary = export_dataset([module, product], format, tmp_path / "rows.jsonl", PLAIN, PROMPTS)
    rows = lines(tmp_path / "rows.jsonl")
    alone = export_dataset([product], format, tmp_path / "alone.jsonl", PLAIN, PROMPTS)
    assert summary.rows["train"] == 2 * alone.rows["train"] > 0, "as many of either kind"
    mine = [row for row in rows if row["shape"] == "relu of sum"]
    assert len(mine) == alone.rows["train"]
    assert all("relu" in json.dumps(row["prompt"]) for row in mine)
    assert all(row.keys() == columns_of(format, PLAIN).keys() for row in rows), "one schema"
    for row in mine if format == "grpo" else ():
        assert (row["kind"], row["m"], row["layout"], row["arithmetic"]) == ("module", None, None, "f32")
        assert json.loads(row["dims"]) == {"rows": 32, "columns": 64}
        assert "class Model" in row["problem"]


@pytest.mark.parametrize("format", FORMATS)
def test_modules_stand_in_every_format_with_their_prompts(tmp_path: Path, format: TrainerFormat) -> None:
    product = searched()
    summary = export_dataset([of_module(), product], format, tmp_path / "rows.jsonl", PLAIN, PROMPTS)
    rows = lines(tmp_path / "rows.jsonl")
    shapes = {row["shape"] for row in rows}
    assert shapes == {"relu of sum", product.run.task.shape}
    assert len(rows) == sum(summary.rows.values())
    for row in rows:
        assert list(row) == list(columns_of(format, PLAIN))
        said = json.dumps(row.get("prompt"))
        assert ("PyTorch module" in said) == (row["shape"] == "relu of sum")
        assert ("# Operations" in said) == (row["shape"] == "relu of sum")
        licence = json.dumps(row)
        assert ("prompt quotes the problem relu of sum (its own licence)" in licence) == (row["shape"] == "relu of sum")


def test_modules_stand_in_tables(tmp_path: Path) -> None:
    product, module = searched(), of_module()
    rows = list(table_rows(module))
    assert {(row["shape"], row["kind"], row["m"], row["arch"]) for row in rows} == {("relu of sum", "module", None, "sm_90a")}
    assert all(row.keys() == PARQUET.keys() for row in [*rows, *table_rows(product)])
    measured = [row for row in rows if row["status"] == "measured"]
    assert measured
    assert all(row["speedup"] and row["baseline_us"] for row in measured)
    kept = write_flashinfer([module, product], tmp_path / "bench", {}, every=True)
    assert kept.skipped >= 8


def test_a_module_is_in_one_split_at_all_its_sizes() -> None:
    assert module_key(relu_of_sum(32).problem) == module_key(relu_of_sum(4096).problem)
    assert module_key(relu_of_sum(32).problem) != module_key(relu_of_sum(32).problem.replace("relu", "tanh"))


@pytest.mark.parametrize("target", ["out", "out.jsonl"])
def test_a_failure_leaves_what_was_there(tmp_path: Path, target: str) -> None:
    export_dataset(many(1), "sft", tmp_path / target, PLAIN, PROMPTS)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(StoreError, match="gone"):
        export_dataset(failing(3), "sft", tmp_path / target, PLAIN, PROMPTS)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    with pytest.raises(StoreError, match="gone"):
        export_dataset(failing(3), "sft", tmp_path / f"new-{target}", PLAIN, PROMPTS)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    export_dataset(many(3), "sft", tmp_path / target, PLAIN, PROMPTS)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} != before


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(dataset._JsonLines):
        def write(self, _: dict[str, Any]) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(dataset, "_JsonLines", Full)
    with pytest.raises(UsageError, match=r"out cannot be written \(No space left on device\)"):
        export_dataset(many(1), "sft", tmp_path / "out", PLAIN, PROMPTS)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_moved_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_dataset(many(1), "sft", tmp_path / "out", PLAIN, PROMPTS)
    moves = []

    def replace(self: Path, target: Path) -> Path:
        moves.append(target)
        if len(moves) == 2:
            raise OSError(5, "Input/output error")
        self.rename(target)
        return target

    monkeypatch.setattr(dataset.Path, "replace", replace)
    with pytest.raises(UsageError, match="Input/output error"):
        export_dataset(many(2), "sft", tmp_path / "out", PLAIN, PROMPTS)
    assert len(lines(tmp_path / "out" / "train.jsonl")) == 8
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_closed_pipe_is_left_to_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, _: str) -> None:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        export_dataset(many(1), "sft", None, PLAIN, PROMPTS)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        export_dataset(many(1), "sft", tmp_path, PLAIN, PROMPTS)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["README.md", "notes.txt"]


@pytest.mark.parametrize(
    ("format", "target", "options", "said"),
    [
        ("other", None, PLAIN, "choose from steps, sft"),
        ("sft", None, ExportOptions(test_share=0.1), "needs a folder"),
        ("sft", "a.jsonl", ExportOptions(test_shapes=("64x64x64",)), "needs a folder"),
        ("steps", "folder", PLAIN, r"such as folder\.jsonl"),
        ("parquet", None, PLAIN, "file or a folder"),
        ("parquet", "a.jsonl", PLAIN, "file or a folder"),
        ("sft", "a.parquet", PLAIN, r"a\.jsonl"),
        ("sft", "folder", ExportOptions(test_shapes=("64x64",)), "64x64"),
        ("sft", "missing/a.jsonl", PLAIN, "cannot be written"),
    ],
)
def test_what_does_not_fit_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any, target: str | None, options: ExportOptions, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said):
        export_dataset(many(1), format, Path(target) if target else None, options, PROMPTS)
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'cudal2-agent\[data\]'"):
        export_dataset(many(1), "parquet", tmp_path / "steps.parquet", PLAIN, PROMPTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_text_is_written_once(name: str, tmp_path: Path) -> None:
    """A run that was repeated under another id has other times, and the same prompts and kernels in its first round."""
    once = export_dataset([searched()], name, tmp_path / "once.jsonl", PLAIN, PROMPTS)
    twice = export_dataset([searched(), searched(run_id="run-2")], name, tmp_path / "twice.jsonl", PLAIN, PROMPTS)
    assert (tmp_path / "once.jsonl").read_bytes() == (tmp_path / "twice.jsonl").read_bytes()
    assert (once.left_out.get("duplicates", 0), twice.left_out["duplicates"]) == (0, once.rows["train"])


@pytest.mark.parametrize("name", [name for name in DATASET_FORMATS if name != "parquet"])
def test_one_run_is_held_at_a_time(name: Any, tmp_path: Path) -> None:
    held: list[weakref.ref[Trajectory]] = []
    most = 0

    def watched() -> Iterator[Trajectory]:
        nonlocal most
        for trajectory in many(4):
            held.append(weakref.ref(trajectory))
            yield trajectory
            del trajectory
            gc.collect(1)  # a full collection takes a second beside torch
            most = max(most, sum(one() is not None for one in held))

    export_dataset(watched(), name, tmp_path / "out.jsonl", PLAIN, PROMPTS)
    assert len(held) == 4
    assert most <= 2, "the one that was read last, and no earlier one"


def test_any_unicode_is_written_as_lines_that_every_reader_splits_alike(tmp_path: Path) -> None:
    run = RunOfTests(versions={HOSTILE: HOSTILE})
    observation = run.round(1)
    for number, evaluation in enumerate((measured(5.0), CompileFailed(message=HOSTILE, log=HOSTILE))):
        written = kernel(number, policy=f"policy {HOSTILE}")
        run.add(observation, written, evaluation, reward=1.0 if number == 0 else -2.0)
        run.ask(observation, written, f"reply {number} {HOSTILE}", model=f"model {HOSTILE}")
    for name in FORMATS:
        summary = export_dataset([run.trajectory], name, tmp_path / name, PLAIN, PROMPTS)
        if name == "contrastive":  # there is nothing to show for contrast
            assert (summary.left_out, (tmp_path / name).exists()) == ({"no_contrast": 2}, False)
            continue
        made = lines(tmp_path / name / "train.jsonl")
        assert len(made) == sum(summary.rows.values())
        if name == "kto":
            assert [row["completion"][0]["content"] for row in made] == [f"reply {n} {HOSTILE}" for n in (0, 1)]
            assert made[0]["provenance"]["model"] == f"model {HOSTILE}"
        card = (tmp_path / name / "README.md").read_text("utf-8")
        assert "\0" not in card
        assert front_matter(card)["configs"]


def test_half_a_surrogate_pair_becomes_a_replacement_character(tmp_path: Path) -> None:
    """Records refuse lone surrogates, but a record that was not checked can hold one, and UTF-8 cannot."""
    trajectory = searched()
    written = trajectory.steps[0].candidate
    reply = RunOfTests().ask(trajectory.observations[trajectory.steps[0].observation_id], written, "x")
    broken = reply.model_copy(update={"reply": "a\ud800b \ud83d\ude00"})
    export_dataset([trajectory.model_copy(update={"exchanges": (broken,)})], "sft", tmp_path / "a.jsonl", PLAIN, PROMPTS)
    texts = [row["completion"][0]["content"] for row in lines(tmp_path / "a.jsonl")]
    assert "a\N{REPLACEMENT CHARACTER}b \N{GRINNING FACE}" in texts


def front_matter(card: str) -> dict[str, Any]:
    _, front, body = card.split("---\n", 2)
    assert body.startswith("\n# ")
    loaded = yaml.safe_load(front)
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("name", FORMATS)
def test_the_card_declares_files_and_columns(name: str, tmp_path: Path) -> None:
    options = ExportOptions(test_shapes=("64x128x256",))
    summary = export_dataset(many(2), name, tmp_path / "out", options, PROMPTS)
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    front = front_matter(card)
    files = front["configs"][0]["data_files"]
    assert files == [{"split": "train", "path": "train.jsonl"}, {"split": "test", "path": "test.jsonl"}]
    assert front["dataset_info"]["features"] == hub_features(columns_of(name, options))
    assert front["license"] == ["apache-2.0"]
    assert front["task_categories"] == ["text-generation"]
    assert f"| train | {summary.rows['train']} rows, 1 shapes |" in card
    assert ENVIRONMENT.key in card


def test_the_card_names_the_licences_and_the_counts(tmp_path: Path) -> None:
    run = RunOfTests(versions={"numpy": "2.4.6"})
    observation = run.round(1)
    written = kernel(1, policy="chat")
    run.add(observation, written, CompileFailed(message="", log=""))
    run.ask(observation, written, "reply")
    run.add(observation, kernel(2), measured(5.0))
    run.add(observation, kernel(2), measured(6.0))
    export_dataset([run.trajectory], "kto", tmp_path / "out", PLAIN, PROMPTS)
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert front_matter(card)["license"] == ["apache-2.0", "other"]
    assert "| kernel under the terms of model test | 1 |" in card
    assert "| steps whose candidate was measured again later in its run | 1 |" in card
    assert "| numpy | 2.4.6 |" in card


# The flat table holds every step, withheld rewards as null and earlier measurements marked.
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
