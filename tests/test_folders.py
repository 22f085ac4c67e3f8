"""Rooms: a folder holds at most 20 files directly, except the named ones, whose files are of one kind and read as a list."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "agent",
    "benchmarks",
    "contract",
    "cudal2",
    "docs",
    "indexer",
    "knowledge",
    "policies",
    "processes",
    "sandbox",
    "store",
    "tests",
)
MAX_FILES = 20
DERIVED = frozenset({".pyc", ".so"})

LISTS = {
    "benchmarks/campaigns/rows": "one file per campaign",
    "benchmarks/results": "one file per measurement",
    "knowledge/notes": "one page per topic",
    "sandbox/include/cudal2": "one header per family of instructions",
    "tests/gpu/attacks": "one kernel per fault",
    "tests/redteam/blind": "one kernel per attack",
}


def files_in(folder: Path) -> int:
    """Files directly in a folder, without what a tool derives from them."""
    return sum(1 for path in folder.iterdir() if path.is_file() and path.suffix not in DERIVED)


def crowded(root: Path, parts: tuple[str, ...] = PARTS) -> dict[str, int]:
    """Folders with more files than allowed, the exceptions included."""
    folders = {path.parent for part in parts for path in (root / part).rglob("*") if path.is_file()}
    counts = {folder.relative_to(root).as_posix(): files_in(folder) for folder in folders if folder.name != "__pycache__"}
    return {name: count for name, count in sorted(counts.items()) if count > MAX_FILES}


def test_no_folder_is_crowded() -> None:
    assert {name: count for name, count in crowded(ROOT).items() if name not in LISTS} == {}


def test_every_exception_is_needed() -> None:
    assert LISTS.keys() - crowded(ROOT).keys() == set(), "these hold 20 files or fewer: take them out of the table"


@pytest.mark.parametrize(("count", "found"), [(MAX_FILES, {}), (MAX_FILES + 1, {"agent/room": MAX_FILES + 1})])
def test_a_crowded_folder_is_seen(tmp_path: Path, count: int, found: dict[str, int]) -> None:
    room = tmp_path / "agent" / "room"
    room.mkdir(parents=True)
    for number in range(count):
        (room / f"{number}.py").touch()
    (room / "core.so").touch()
    assert crowded(tmp_path, ("agent",)) == found
