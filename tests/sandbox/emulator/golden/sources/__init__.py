"""CUDA sources of the golden cases."""

from pathlib import Path

_FOLDER = Path(__file__).parent
HEADER = "golden.cuh"


def source(name: str) -> str:
    """The text of a source in this folder."""
    return (_FOLDER / name).read_text(encoding="utf-8")
