"""The versions of this product and of the packages that influence its results."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "cudal2-agent",
    "cupy-cuda13x",
    "cuda-bindings",
    "langgraph",
    "numpy",
    "nvidia-cuda-cccl",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
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
    return installed_version("cudal2-agent") or "source"


def versions() -> dict[str, str]:
    """Package → version for every installed one, with Python and the system."""
    found = {package: installed_version(package) for package in PACKAGES}
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        **{package: text for package, text in found.items() if text is not None},
    }
