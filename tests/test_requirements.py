"""The packages that `make setup` installs, read from pyproject.toml by `.ci/requirements.py`."""

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("requirements_script", ROOT / ".ci" / "requirements.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("a>=1.4.2,<2", "a==1.4.*,>=1.4.2"),
        ("a-b[c,d]>=6,<7; python_version < '3.14'", "a-b[c,d]==6.0.*,>=6; python_version < '3.14'"),
        ("a==1.2", "a==1.2"),
    ],
)
def test_the_lowest_set_has_the_minor_version_of_each_lower_bound(script: ModuleType, requirement: str, expected: str) -> None:
    assert script.lowest(requirement) == expected


def test_every_requirement_has_a_lower_bound(script: ModuleType, project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    every = [one for name in ("run", *extras) for one in script.required(project, name)]
    assert [one for one in every if script.lowest(one) == one] == []


def test_an_extra_gives_what_it_names_and_never_the_project_itself(script: ModuleType, project: dict[str, Any]) -> None:
    found = list(script.required(project, "dev"))
    assert {"ray", "trl", "pytest"} <= {one.partition(">")[0] for one in found}
    assert not any(one.startswith(project["project"]["name"]) for one in found)


def test_a_run_needs_no_trainers_boards_ray_or_readers(script: ModuleType, project: dict[str, Any]) -> None:
    needed = {one.partition(">")[0] for one in script.required(project, "run")}
    assert needed.isdisjoint({"ray", "trl", "peft", "accelerate", "datasets", "tensorboard", "bokeh", "pyarrow", "pytest"})


def test_cuda_12_takes_the_place_of_cuda_13(script: ModuleType, project: dict[str, Any]) -> None:
    """Every package of CUDA 13 that a run needs has its counterpart; both together would share files."""
    found = [one.partition(">")[0] for one in script.chosen(project, ["run", "cuda12"])]
    assert len(found) == len(set(found))
    assert {"cuda-bindings", "cupy-cuda12x", "nvidia-cuda-nvrtc-cu12", "numpy", "nvidia-cuda-nvdisasm"} <= set(found)
    assert set(script.CUDA_13) - {"cuda-bindings"} == {one for one in script.CUDA_13 if one not in found}
    assert set(script.CUDA_13) <= {one.partition(">")[0] for one in script.chosen(project, ["run"])}


@pytest.mark.parametrize("name", ["torch", "nvidia-cuda-nvrtc"])
def test_an_installed_package_is_left_as_it_is(script: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(script, "_installed", lambda _: True)
    assert script.preferred(f"{name}>=1,<99") == f"{name}>=1,<99"
    monkeypatch.setattr(script, "_installed", lambda _: False)
    assert script.preferred(f"{name}>=1,<99") == f"{name}>=1,<99,{script.PREFERRED[name]}"
    assert script.preferred("numpy>=2") == "numpy>=2"


@pytest.mark.parametrize(
    ("name", "versions"), [("torch", ("2.13.0", "2.14.1", "2.15.0")), ("nvidia-cuda-nvrtc", ("13.0.88", "13.2.86"))]
)
def test_what_a_user_has_may_stay(project: dict[str, Any], name: str, versions: tuple[str, ...]) -> None:
    from packaging.requirements import Requirement

    found = next(one for one in map(Requirement, project["project"]["dependencies"]) if one.name == name)
    assert [version for version in versions if version in found.specifier] == list(versions)
