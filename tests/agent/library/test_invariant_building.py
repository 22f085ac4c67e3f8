"""The kernels of the batch-invariant mode are built once, whole, and again where a file is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cudal2
from cudal2.library.invariant_set import cubin_path, read_set, set_path
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.library import invariant_building
from cudal2_agent.agent.library.invariant_building import prepare_invariant
from cudal2_agent.agent.library.preparing import library_cache
from cudal2_agent.contract.errors import LibraryError, MachineError
from cudal2_agent.contract.records.task import Arch, Layout
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.policies.schedule.invariant_kernels import InvariantSource, invariant_sources
from cudal2_agent.sandbox.building.builder import Builder


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(home=tmp_path_factory.mktemp("home"), compile_jobs=2)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The set has only the kernels for any size, of one layout."""

    def sources(arch: Arch) -> list[InvariantSource]:
        every = invariant_sources(arch)
        return [one for one in every if one.n_step == one.k_step == 1 and one.task.layout is Layout.NN]

    monkeypatch.setattr(invariant_building, "invariant_sources", sources)


def test_a_set_is_built_once_and_found(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    arch = Arch.SM_90A
    assert (done := prepare_invariant(arch, settings)).status == "built", done
    found = read_set(library_cache(settings), arch, cudal2.__version__)
    assert found is not None
    assert all(found.cubin(kernel).startswith(b"\x7fELF") for kernel in found.kernels.kernels)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("it is built already")

    monkeypatch.setattr(Builder, "build_one", refuse)
    assert str(prepare_invariant(arch, settings)) == f"50 batch-invariant kernels for {arch}: ready"


@pytest.mark.usefixtures("few")
def test_damaged_files_and_those_of_another_version_are_built_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, arch = library_cache(settings), Arch.SM_86
    assert prepare_invariant(arch, settings).status == "built"
    kernels = json.loads(set_path(folder, arch).read_text())["kernels"]
    cubin_path(folder, kernels[0]["source_sha256"], arch).write_bytes(b"damaged")
    assert prepare_invariant(arch, settings).status == "built"
    found = json.loads(set_path(folder, arch).read_text())
    found["kernels"][0]["row"] = 0.5  # another way to choose
    set_path(folder, arch).write_text(json.dumps(found), encoding="utf-8")
    assert prepare_invariant(arch, settings).status == "built"
    set_path(folder, arch).write_text("{", encoding="utf-8")
    assert prepare_invariant(arch, settings).status == "built"
    monkeypatch.setattr(invariant_building, "__version__", "another")
    assert prepare_invariant(arch, settings).status == "built"
    assert prepare_invariant(arch, settings).status == "ready"


@pytest.mark.usefixtures("few")
def test_a_kernel_that_does_not_compile_leaves_no_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(home=tmp_path, compile_jobs=2)
    monkeypatch.setattr(invariant_building, "_into_cache", _fail)
    done = prepare_invariant(Arch.SM_90A, settings)
    assert (done.status, done.message) == ("failed", "a kernel does not compile: no such function")
    assert read_set(library_cache(settings), Arch.SM_90A, cudal2.__version__) is None


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(MachineError, match="CUDAL2_HOME"):
        prepare_invariant(Arch.SM_90A, load_settings(home=tmp_path))


@pytest.mark.usefixtures("few")
def test_the_command_builds_the_set(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(settings.home))
    prepare_invariant(Arch.SM_90A, settings)
    command = ["library", "prepare", "--batch-invariant", "--arch", "sm_90a"]
    assert main([*command, "--json"]) == 0
    ready = {"part": "batch-invariant", "arch": "sm_90a", "kernels": 4, "status": "ready", "message": ""}
    assert json.loads(capsys.readouterr().out) == ready
    monkeypatch.setattr(invariant_building, "_ready", lambda *_: False)
    monkeypatch.setattr(invariant_building, "_build", _fail)
    assert main(command) == 1
    assert (
        capsys.readouterr().out == "4 batch-invariant kernels for sm_90a: failed: a kernel does not compile: no such function\n"
    )


@pytest.mark.parametrize(
    "arguments", [["--arch", "sm_90a"], ["--batch-invariant", "--entry", "d9e78c36"], ["--batch-invariant", "--arch", "sm_75"]]
)
def test_bad_arguments_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    assert main(["library", "prepare", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def _fail(*_: Any) -> Any:
    raise LibraryError("a kernel does not compile:\nno such function")
