"""The present code loads, lists, shows, exports and resumes what an earlier version stored (README.md)."""

import json
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from cudal2_agent.agent.cli.files import read_candidate
from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.records.evaluation import CompileFailed, Evaluation, Measured
from cudal2_agent.contract.records.trajectory import RunRecord
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.contract.settings.run_settings import RETIRED
from cudal2_agent.contract.settings.settings import CONFIG_FILE, _tell_retired, load_settings
from cudal2_agent.sandbox.building.cache import CompileCache
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.store.steps import ExportedStep
from cudal2_agent.store.store import Store, open_store
from tests.agent.run import killed_run
from tests.doubles import number_of

STORED = Path(__file__).parent / "b1f38a8"
SETTINGS = json.loads((STORED / "settings.json").read_text("utf-8"))
ORIGINAL = "/tmp/cudal2-original"
STEPS = {"finished": 3, "chat": 8, "killed": 1}
Command = Callable[..., str]


@pytest.fixture
def homes() -> Iterator[Path]:
    """A folder with the stored homes, which know their new place.

    A checkpoint names the home. The new name is as long as the old one, so that it fits in its place.
    """
    folder = Path(tempfile.mkdtemp(prefix="cudal2-", dir="/tmp"))
    try:
        with tarfile.open(STORED / "homes.tar.xz") as tar:
            tar.extractall(folder, filter="data")
        assert len(ORIGINAL) == len(str(folder))
        for file in (*folder.rglob("*.sqlite"), *folder.glob("runs/*/*.json")):
            file.write_bytes(file.read_bytes().replace(ORIGINAL.encode(), str(folder).encode()))
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def home(homes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDAL2_HOME", str(homes))
    return homes


@pytest.fixture
def answer(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:  # noqa: ARG001 (its variable is set)
    def run(*words: str) -> str:
        code = main(list(words))
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out

    return run


def _flat(variable: str) -> str:
    return variable.removeprefix("CUDAL2_").lower()


def opened(home: Path) -> Store:
    return open_store(f"sqlite:///{home / 'trajectories.sqlite'}")


def runs_in(home: Path) -> dict[str, RunRecord]:
    with opened(home) as store:
        finished, chat, killed = store.runs()
    return {"finished": finished, "chat": chat, "killed": killed}


def includes(new: Any, old: Any) -> bool:
    """Whether everything old is in the new; new fields may stand beside it."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and includes(new[key], value) for key, value in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(includes, new, old))
    return bool(new == old)


def test_the_runs_are_listed(home: Path, answer: Command) -> None:
    listed = json.loads(answer("runs", "list", "--json"))
    assert [run["steps"] for run in listed] == list(STEPS.values())
    assert [run["status"] for run in listed] == ["finished", "finished", "running"]
    assert len(answer("runs", "list").splitlines()) == len(json.loads(answer("trajectories", "list", "--json"))) == 3
    assert {name: run.settings.budget for name, run in runs_in(home).items()} == {"finished": 3, "chat": 8, "killed": 3}


@pytest.mark.parametrize("name", STEPS)
def test_a_run_is_shown_with_its_steps(home: Path, answer: Command, name: str) -> None:
    run_id = runs_in(home)[name].run_id
    assert f"{STEPS[name]} steps" in answer("runs", "show", run_id, "--why")
    shown = json.loads(answer("runs", "show", run_id, "--why", "--json"))
    assert shown["steps"] == STEPS[name]
    assert shown["best"]["status"] == "unmeasured"
    assert f"{STEPS[name]} steps" in answer("trajectories", "show", run_id)
    assert answer("trajectories", "verify") == "the store is sound\n"
    assert len(json.loads(answer("trajectories", "show", run_id, "--json"))["steps"]) == STEPS[name]


def test_what_was_exported_is_read_and_exported_again(home: Path, answer: Command) -> None:
    old = [json.loads(line) for line in (home / "export.jsonl").read_text("utf-8").splitlines()]
    new = [json.loads(line) for line in answer("trajectories", "export").splitlines()]
    assert len(new) == len(old) == sum(STEPS.values())
    assert all(map(includes, new, old))
    for line in old:
        assert includes(ExportedStep.model_validate(line).model_dump(mode="json"), line)


def test_stored_records_keep_every_field(home: Path) -> None:
    with closing(sqlite3.connect(home / "trajectories.sqlite")) as connection:
        stored = {run_id: json.loads(text) for run_id, text in connection.execute("select run_id, record from runs")}
    for run in runs_in(home).values():
        assert includes(run.model_dump(mode="json"), stored[run.run_id])


def test_the_folder_of_a_run_is_read(home: Path) -> None:
    for name in ("finished", "chat"):
        run = runs_in(home)[name]
        folder = home / "runs" / run.run_id
        evaluation = TypeAdapter(Evaluation).validate_json((folder / "evaluation.json").read_bytes())
        assert evaluation.passed == (name == "finished")
        recorded = RunRecord.model_validate_json((folder / "settings.json").read_bytes())
        assert recorded.settings == run.settings
        assert read_candidate(folder / "kernel.cu", host=False).id == run.best_candidate_id


def test_the_chat_run_keeps_its_replies_and_what_a_replay_takes_over(home: Path) -> None:
    run = runs_in(home)["chat"]
    with opened(home) as store:
        steps, exchanges = store.steps(run.run_id), store.exchanges(run.run_id)
    answered = {exchange.candidate_id for exchange in exchanges} - {None}
    assert answered == {step.candidate.id for step in steps}
    taken = load_settings(**run.settings.replayed())
    assert (taken.policy, taken.chat.model, taken.budget) == ("chat", "test", 8)


@pytest.mark.skipif(find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core was not built here")
def test_the_killed_run_is_resumed(home: Path, answer: Command) -> None:
    run = runs_in(home)["killed"]
    with opened(home) as store:
        [before] = store.steps(run.run_id)
    resumed = json.loads(answer("runs", "resume", run.run_id, "--json"))
    with opened(home) as store:
        steps = store.steps(run.run_id)
    assert (resumed["status"], resumed["steps"]) == ("finished", 3)
    assert steps[0] == before, "a finished step was changed by resuming"
    assert [step.index for step in steps] == [0, 1, 2]
    # Its checkpoint is of another graph, so that the run goes on from its steps with a new round.
    assert len({step.candidate.id for step in steps}) == 3, "a finished step was repeated"
    assert all(step.evaluation.passed for step in steps)
    assert (home / "runs" / run.run_id / "report.md").exists()


def test_the_killed_run_over_a_scripted_gpu_is_resumed(homes: Path) -> None:
    home = homes / "scripted"
    with opened(home) as store:
        [run] = store.runs()
        before = store.steps(run.run_id)
    killed_run.main(home, "resume", "written")
    with opened(home) as store:
        steps, [run] = store.steps(run.run_id), store.runs()
    assert run.status == "finished"
    assert [step.index for step in steps] == list(range(killed_run.COUNT + 3))
    assert sorted(number_of(step.candidate) for step in steps[: killed_run.COUNT]) == list(range(killed_run.COUNT))
    assert [step.candidate.id for step in steps[: len(before)]] == [step.candidate.id for step in before]
    assert any(isinstance(step.evaluation, Measured) and step.evaluation.witness for step in steps)
    evaluated = (home / "evaluated.txt").read_text().splitlines()
    assert len(evaluated) - len(set(evaluated)) <= 1, "only the evaluation in flight may run again"


def test_the_compile_cache_is_read(home: Path) -> None:
    folder = home / "cache" / "compile"
    compiler, cache = Compiler(CompileOptions(cache_dir=str(folder))), CompileCache(folder)
    keys = [path.parent.name for path in folder.glob("*/*/entry.json")]
    entries = {key: cache.load(key) for key in keys}
    assert sorted(entry.compiled for entry in entries.values() if entry) == [False, True, True, True]
    for key in keys:
        loaded = compiler._load(key, "kernel.cubin", cached=True)
        if isinstance(loaded, Compiled):
            assert Path(loaded.artifact_path).stat().st_size > 0
        else:
            assert isinstance(loaded, CompileFailed)
            assert loaded.message


@pytest.fixture
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.upper().startswith("CUDAL2_")]:
        monkeypatch.delenv(name)


def recorded() -> dict[str, Any]:
    return load_settings().recorded().model_dump(mode="json")


@pytest.mark.usefixtures("_alone")
def test_all_old_settings_together_are_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS["environment"].items():
        monkeypatch.setenv(name, value)
    expected = {name: value for name, value in SETTINGS["recorded"].items() if name not in ("home", *RETIRED)}
    assert includes(recorded(), expected)
    assert {*map(_flat, SETTINGS["environment"])} - RETIRED.keys() == expected.keys()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("variable", [name for name in SETTINGS["environment"] if _flat(name) not in RETIRED])
def test_an_old_name_is_read_from_the_environment_from_the_file_and_as_a_flag(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, value = _flat(variable), SETTINGS["environment"][variable]
    expected = SETTINGS["recorded"][name]
    assert recorded()[name] != expected, "the default shows nothing"
    assert load_settings(**{name: value}).recorded().model_dump(mode="json")[name] == expected
    Path(CONFIG_FILE).write_text(f"{name} = {json.dumps(expected)}\n", "utf-8")
    monkeypatch.setenv("CUDAL2_CONFIG", str(Path(CONFIG_FILE).absolute()))
    assert recorded()[name] == expected
    monkeypatch.delenv("CUDAL2_CONFIG")
    Path(CONFIG_FILE).unlink()
    monkeypatch.setenv(variable.swapcase() if sys.platform != "win32" else variable, value)
    assert recorded()[name] == expected


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_setting_is_skipped_with_one_notice_wherever_it_stands(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    value, (group, inner) = SETTINGS["recorded"].get(name, 5), RETIRED[name]
    _tell_retired.cache_clear()
    plain = recorded()
    assert load_settings(**{name: value}).recorded().model_dump(mode="json") == plain
    Path(CONFIG_FILE).write_text(f"{name} = {json.dumps(value)}\n", "utf-8")
    assert recorded() == plain
    if group:
        Path(CONFIG_FILE).write_text(f"[{group}]\n{inner} = {json.dumps(value)}\n", "utf-8")
        assert recorded() == plain
    Path(CONFIG_FILE).unlink()
    assert len(caplog.records) == 1
    assert f"setting {name!r} of an older version has no effect any more" in caplog.text
    _tell_retired.cache_clear()
    monkeypatch.setenv(f"CUDAL2_{name.upper()}", json.dumps(value))
    assert recorded() == plain
    assert len(caplog.records) == 2


def test_the_artefacts_are_small() -> None:
    assert sum(path.stat().st_size for path in STORED.iterdir()) < 300_000
