"""Entries are built into the cache: once, whole, and again where a file is damaged; so is the C++ part of `cudal2.enable`."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from cudal2.library.prepared_kernels import PreparedKernels
from cudal2.torch import compiled_build
from cudal2_agent.agent.library import preparing
from cudal2_agent.agent.library.entry_source import candidate_of
from cudal2_agent.agent.library.preparing import PreparedEntry, library_cache, prepare
from cudal2_agent.agent.library.torch_kernels import prepare_torch
from cudal2_agent.contract.errors import LibraryError, MachineError
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.sandbox.building.builder import Builder
from tests.doubles.libraries import library_entry, small_tasks

SMS = 132
TASKS = small_tasks(2)
BROKEN = """/* cudal2: {"arch": "sm_80", "launches": [{"entry": "gemm", "grid": [1, 1, 1], "block": [32, 1, 1],
 "args": [{"tensor": "D", "access": "write"}]}]} */
extern "C" __global__ void gemm(void* d) { no_such_function(d); }
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home", compile_jobs=2)


def prepared(entries: list[LibraryEntry], settings: Settings) -> dict[str, PreparedEntry]:
    return {one.id: one for one in prepare(entries, settings, SMS)}


def test_an_entry_is_built_once_and_found(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [library_entry(task) for task in TASKS]
    assert {one.status for one in prepared(entries, settings).values()} == {"built"}
    kernels = PreparedKernels(library_cache(settings))
    for entry in entries:
        kernel = kernels.find(entry, SMS)
        assert kernel is not None
        assert kernel.cubin.startswith(b"\x7fELF")
        assert kernel.plan.launches[0].grid == (entry.task.n // 16, 1, 1)
        assert not kernel.plan.launches[0].programmatic

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("it is built already")

    monkeypatch.setattr(Builder, "build_one", refuse)
    assert {one.status for one in prepared(entries, settings).values()} == {"ready"}


def test_a_damaged_cubin_is_built_again(settings: Settings) -> None:
    entry = library_entry(TASKS[0])
    prepared([entry], settings)
    kernels = PreparedKernels(library_cache(settings))
    whole = kernels.cubin_path(entry).read_bytes()
    kernels.cubin_path(entry).write_bytes(whole[:100])
    assert prepared([entry], settings)[entry.id].status == "built"
    assert kernels.cubin_path(entry).read_bytes() == whole


def test_an_entry_that_cannot_be_built_fails_alone(settings: Settings) -> None:
    stale = library_entry(TASKS[0], source_sha256="0" * 64)
    broken = library_entry(TASKS[0], source=BROKEN)
    good = library_entry(TASKS[1])
    found = prepared([stale, broken, good], settings)
    assert {id_: one.status for id_, one in found.items()} == {stale.id: "failed", broken.id: "failed", good.id: "built"}
    assert "is stale" in found[stale.id].message
    assert "no_such_function" in found[broken.id].message
    assert PreparedKernels(library_cache(settings)).find(broken, SMS) is None


def test_another_nvrtc_builds_no_kernel_of_an_entry(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "nvrtc_version", lambda: "13.2 (13.2.86)")
    entry = library_entry(TASKS[0])
    found = prepared([entry], settings)[entry.id]
    assert found.status == "failed"
    assert "was measured with NVRTC 13.0, and 13.2, which is installed" in found.message
    assert "install 'nvidia-cuda-nvrtc==13.0.*'" in found.message
    assert PreparedKernels(library_cache(settings)).find(entry, SMS) is None


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(MachineError, match=r"is not writable .* set CUDAL2_HOME"):
        prepared([library_entry(TASKS[0])], load_settings(home=tmp_path / "home"))


def _prepare_counting(home: Path, start: Any, results: Any) -> None:
    """A process of its own that counts how often it compiles."""
    compiled = []
    build_one = Builder.build_one

    def counted(self: Builder, candidate: Any, *args: Any, **kwargs: Any) -> Any:
        compiled.append(candidate.id)
        return build_one(self, candidate, *args, **kwargs)

    Builder.build_one = counted  # type: ignore[method-assign]
    entries = [library_entry(task) for task in TASKS]
    start.wait()
    statuses = [one.status for one in prepare(entries, load_settings(home=home, compile_jobs=2), SMS)]
    results.put((statuses, compiled))


def test_two_processes_build_each_source_once(settings: Settings) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_prepare_counting, args=(settings.home, start, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    entries = [library_entry(task) for task in TASKS]
    assert sorted(id_ for _, compiled in found for id_ in compiled) == sorted(candidate_of(entry).id for entry in entries)
    assert sorted(status for statuses, _ in found for status in statuses) == ["built", "built", "ready", "ready"]
    assert all(PreparedKernels(library_cache(settings)).find(entry, SMS) for entry in entries)


def _killed_while_writing(home: Path) -> None:
    """A process that is killed when a kernel was written beside its place, while it holds the lock."""
    replace = Path.replace

    def killing(self: Path, target: Path) -> Path:
        if target.suffix == ".cubin":
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    Path.replace = killing  # type: ignore[assignment,method-assign]
    list(prepare([library_entry(TASKS[0])], load_settings(home=home, compile_jobs=1), SMS))


def test_a_killed_process_leaves_nothing_that_is_taken_for_a_kernel(settings: Settings) -> None:
    entry, kernels = library_entry(TASKS[0]), PreparedKernels(library_cache(settings))
    prepared([library_entry(TASKS[1])], settings)  # the folder is there
    process = multiprocessing.get_context("spawn").Process(target=_killed_while_writing, args=(settings.home,))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == -signal.SIGKILL
    assert list(kernels.folder.glob(f".{kernels.cubin_path(entry).name}.*")), "it was killed in the middle"
    assert kernels.find(entry, SMS) is None
    assert prepared([entry], settings)[entry.id].status == "built"
    assert kernels.find(entry, SMS) is not None


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch built with CUDA, for which something small is compiled."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(compiled_build, "_source", lambda: "int small() { return 1; }")
    monkeypatch.setitem(compiled_build._LIBRARIES, "CUDA", ("c10",))


@pytest.mark.usefixtures("with_cuda")
def test_they_are_compiled_once_and_again_where_they_are_damaged(settings: Settings) -> None:
    assert [prepare_torch(settings).status for _ in range(2)] == ["built", "ready"]
    file = compiled_build.find(library_cache(settings), "CUDA")
    assert file is not None
    file.write_bytes(b"damaged")
    assert str(prepare_torch(settings)) == f"enable in C++ for PyTorch {torch.__version__}: built"
    assert prepare_torch(settings).status == "ready"


@pytest.mark.usefixtures("with_cuda")
def test_a_failure_is_one_line(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LibraryError("there is no C++ compiler:\n install one")

    monkeypatch.setattr(compiled_build, "build", fail)
    told = str(prepare_torch(settings))
    assert told.endswith("failed: there is no C++ compiler: install one; matrix products pass through Python meanwhile")


@pytest.mark.usefixtures("with_cuda")
def test_a_cache_of_the_c_part_that_cannot_be_written_is_told(settings: Settings) -> None:
    settings.home.touch()
    found = prepare_torch(settings)
    assert found.status == "failed"
    assert str(settings.home) in found.message


def test_a_torch_without_cuda_needs_none(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert prepare_torch(settings).status == "left out"
    assert not library_cache(settings).exists()
