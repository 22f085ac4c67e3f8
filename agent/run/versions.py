"""The versions of this product and of the packages that influence its results."""

import platform
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

OWN = "cudal2-agent"
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


def own_version() -> str:
    """The version of this product; "source" where it runs from a folder that is not installed."""
    return installed_version(OWN) or "source"


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
    root = _git(place.parent, "rev-parse", "--show-toplevel")
    if not root or not _git(place.parent, "ls-files", "--error-unmatch", place.name) or not _is_own(Path(root)):
        return ""
    return _git(place.parent, "rev-parse", "--short=12", "HEAD")


def _is_own(root: Path) -> bool:
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8")).get("project", {})
    except (OSError, ValueError):
        return False
    return bool(project.get("name") == OWN)


def _git(folder: Path, *words: str) -> str:
    """What git answers; empty where it fails."""
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
