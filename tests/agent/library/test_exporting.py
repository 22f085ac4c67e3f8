"""Entries of a library that are built and written for other programs."""

import json

import pytest
from typer.testing import CliRunner

from cudal2_agent.agent.cli.library import app
from cudal2_agent.contract.errors import LibraryError, UsageError
from cudal2_agent.contract.records.task import GemmTask
from tests.doubles.libraries import library_entry, small_tasks, write_entries


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    return tmp_path


def export(*words: object):
    done = CliRunner().invoke(app, ["export", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_library_becomes_a_folder_for_cpp(home):
    library = write_entries(home / "library", [library_entry(task) for task in small_tasks(2)])
    done = export("--library", library, "--out", home / "kernels", "--json")
    summary = json.loads(done.stdout)
    assert summary["entries"] == 2
    cubins = list((home / "kernels" / "cubins").iterdir())
    assert summary["cubin_bytes"] == sum(file.stat().st_size for file in cubins)
    assert all(file.read_bytes().startswith(b"\x7fELF") for file in cubins)
    assert 'Launch{"' in (home / "kernels" / "entries.cpp").read_text()


def test_a_plain_entry_is_launched_plainly(home):
    library = write_entries(home / "library", [library_entry(small_tasks(1)[0], programmatic=False)])
    assert "1 entries, 1 cubins" in export("--library", library, "--out", home / "plain").stdout
    [launch] = [line for line in (home / "plain" / "entries.cpp").read_text().splitlines() if "Launch{" in line]
    assert ", false, {" in launch


def test_the_same_library_becomes_solutions_of_flashinfer_bench(home):
    library = write_entries(home / "library", [library_entry(task) for task in small_tasks(2)])
    done = export("--library", library, "--format", "flashinfer-bench", "--out", home / "set")
    assert "2 definitions, 2 workloads, 2 solutions written to" in done.stdout
    [first, _] = sorted((home / "set").rglob("solutions/**/*.json"))
    solution = json.loads(first.read_text())
    assert solution["spec"]["target_hardware"] == ["cuda", "H200", "sm_90a"]
    assert {source["path"] for source in solution["sources"]} >= {"kernel.cuh", "kernel.cu", "launch.cu"}


def test_the_same_library_becomes_a_kernel_for_the_hub(home):
    library = write_entries(home / "library", [library_entry(small_tasks(1)[0])])
    assert "1 entries, 1 cubins" in export("--library", library, "--format", "kernels", "--out", home / "hub").stdout
    [cubin] = (home / "hub").rglob("*.cubin")
    assert cubin.read_bytes().startswith(b"\x7fELF")


def test_only_entries_that_beat_autotuning_are_written(home):
    won, lost = (library_entry(task, ratio=ratio) for task, ratio in zip(small_tasks(2), (1.2, 1.005), strict=True))
    library = write_entries(home / "library", [won, lost])
    assert json.loads(export("--library", library, "--out", home / "kernels", "--json").stdout)["entries"] == 1
    with pytest.raises(UsageError, match="no such entry that is faster than AutoTuning"):
        export("--library", library, "--entry", lost.id, "--out", home / "other")


def test_an_entry_that_cannot_be_built_is_told_and_nothing_is_written(home):
    stale = library_entry(GemmTask(m=16, n=16, k=64), source_sha256="0" * 64)
    library = write_entries(home / "library", [stale, library_entry(GemmTask(m=16, n=32, k=64))])
    with pytest.raises(LibraryError, match=rf"1 of 2 entries cannot be built; the first is {stale.id[:8]}: .*stale"):
        export("--library", library, "--out", home / "kernels")
    assert not (home / "kernels").exists()
