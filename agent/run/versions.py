"""The versions of this product and of the packages that influence its results."""

import platform
import subprocess
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cudal2_agent.processes.git import borrow, git_command, repository_at
from cudal2_agent.sandbox.remote.same_version import OWN
from cudal2_agent.sandbox.remote.same_version import own_version as own_version

PACKAGES = (
    OWN,
    "cupy-cuda12x",
    "cupy-cuda13x",
    "cuda-bindings",
    "langgraph",
    "numpy",
    "nvidia-cuda-cccl",
    "nvidia-cuda-cccl-cu12",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvmath-python",
    "pydantic",
    "sqlalchemy",
    "torch",
)


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Package → version for every installed one, with Python and the system."""
    found = {package: installed_version(package) for package in PACKAGES}
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        **{package: text for package, text in found.items() if text is not None},
    }


def own_commit(file: Path = Path(__file__)) -> str:
    """The commit of the checkout that tracks a file of this product; empty without one, as where it is installed.

    `file`: as it is imported, which may be through a link to its folder.
    """
    place = file.resolve()
    root = next((folder for folder in place.parents if (folder / ".git").exists()), None)
    repository = repository_at(root) if root and _is_own(root) else None
    if root is None or repository is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="cudal2-") as scratch:
        git_dir = Path(scratch) / "git"
        try:
            borrow(repository, git_dir)
        except (OSError, ValueError):
            return ""
        tracked = _git(git_dir, root, "ls-files", "--error-unmatch", "--", str(place.relative_to(root)))
        return _git(git_dir, root, "rev-parse", "--short=12", "HEAD") if tracked else ""


def _is_own(root: Path) -> bool:
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8")).get("project", {})
    except (OSError, ValueError):
        return False
    return bool(project.get("name") == OWN)


def _git(git_dir: Path, root: Path, *words: str) -> str:
    """What git answers; empty where it fails."""
    command = git_command(words, git_dir, root)
    if command is None:
        return ""
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
