"""Prints the packages of pyproject.toml, a line each, for `pip install -r`. It needs the standard library only.

    requirements.py run|build|EXTRA ... [--lowest | --newest] [--without NAME ...]

`run`: what `[project]` depends on. `build`: what builds it here, cmake and ninja included where the machine has none.
`EXTRA`: an optional dependency set, with the sets that it names. `cuda12`: CUDA 12's packages, in place of CUDA 13's.
`--lowest`: each package in its lowest minor version.
`--newest`: as pyproject.toml has them, without the preferences below.
Where torch or NVRTC is not installed yet, `run` prefers the version that this repository's figures belong to. The newest torch
would bring several GB of CUDA libraries. Another NVRTC compiles other kernels than the shipped libraries were measured with.
"""

import argparse
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
PREFERRED = {"torch": "<2.14", "nvidia-cuda-nvrtc": "<13.1"}
CUDA_13 = ("cuda-bindings", "cupy-cuda13x", "nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<extras>\[[^]]*])?(?P<versions>[^;]*)(?P<marker>;.*)?")
_LOWER = re.compile(r">=\s*(?P<version>[0-9.]+)")


def required(project: dict[str, Any], name: str) -> Iterator[str]:
    """The requirements of a set. A set that names this project's own extras gives theirs."""
    if name == "build":
        yield from project["build-system"]["requires"]
        yield from _build_tools()
        return
    if name in project.get("dependency-groups", {}):
        yield from project["dependency-groups"][name]
        return
    own = project["project"]
    for one in own["dependencies"] if name == "run" else own["optional-dependencies"][name]:
        found = _parsed(one)
        if found["name"] == own["name"]:
            for extra in (found["extras"] or "").strip("[]").split(","):
                yield from required(project, extra.strip())
        else:
            yield one


def chosen(project: dict[str, Any], sets: Sequence[str]) -> list[str]:
    """The requirements of several sets, each once. The set `cuda12` takes the place of CUDA 13's packages."""
    lines = dict.fromkeys(one for name in sets if name != "cuda12" for one in required(project, name))
    if "cuda12" not in sets:
        return list(lines)
    return [*(one for one in lines if _parsed(one)["name"] not in CUDA_13), *required(project, "cuda12")]


def lowest(requirement: str) -> str:
    """A requirement in the minor version of its lower bound: `>=1.4.2` is `==1.4.*,>=1.4.2`, and `>=6` is `==6.0.*`."""
    found = _parsed(requirement)
    lower = _LOWER.search(found["versions"])
    if lower is None:
        return requirement
    minor = ".".join((*lower["version"].split("."), "0")[:2])
    return f"{found['name']}{found['extras'] or ''}=={minor}.*,{lower[0]}{found['marker'] or ''}"


def preferred(requirement: str) -> str:
    """A requirement, narrowed where the package is not installed and a version is preferred."""
    found = _parsed(requirement)
    if found["name"] not in PREFERRED or _installed(found["name"]):
        return requirement
    return f"{found['name']}{found['versions'].strip()},{PREFERRED[found['name']]}{found['marker'] or ''}"


def _build_tools() -> Iterator[str]:
    """What scikit-build-core asks for beside the listed packages. Nothing before it is installed."""
    try:
        from scikit_build_core.build import get_requires_for_build_editable
    except ImportError:
        return
    yield from get_requires_for_build_editable({})


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _parsed(requirement: str) -> re.Match[str]:
    found = _REQUIREMENT.fullmatch(requirement)
    if found is None:
        sys.exit(f"pyproject.toml: {requirement!r} is not a requirement that this script reads")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the packages of pyproject.toml.")
    parser.add_argument("sets", nargs="+")
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument("--lowest", action="store_const", const=lowest, dest="version")
    bound.add_argument("--newest", action="store_const", const=str, dest="version")
    parser.add_argument("--without", nargs="*", default=[])
    asked = parser.parse_args()
    project = tomllib.loads(PROJECT.read_text("utf-8"))
    version = asked.version or preferred
    print("\n".join(version(one) for one in chosen(project, asked.sets) if _parsed(one)["name"] not in asked.without))


if __name__ == "__main__":
    main()
