"""The C++ part of `cudal2.enable`: compiled once, and never a reason to fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cudal2.torch import compiled_build
from cudal2_agent.agent.library.preparing import library_cache
from cudal2_agent.agent.library.torch_kernels import prepare_torch
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.settings.settings import Settings, load_settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home")


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
def test_a_cache_that_cannot_be_written_is_told(settings: Settings) -> None:
    settings.home.touch()
    found = prepare_torch(settings)
    assert found.status == "failed"
    assert str(settings.home) in found.message


def test_a_torch_without_cuda_needs_none(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert prepare_torch(settings).status == "left out"
    assert not library_cache(settings).exists()
