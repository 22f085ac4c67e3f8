"""The rooms of the agent: each imports only the rooms before it, and its docstring names each of its files."""

import ast
from pathlib import Path

import pytest

AGENT = Path(__file__).resolve().parents[2] / "agent"
ROOMS = (
    "observe",
    "run",
    "report",
    "index",
    "wiring",
    "campaign",
    "campaign_report",
    "library",
    "advise",
    "bench",
    "model_bench",
    "environment",
    "policy_bench",
    "calibration",
    "cli",
)


def rooms_imported(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("agent.")}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_before_it(room: str) -> None:
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    broken = {
        path.relative_to(AGENT).as_posix(): sorted(later)
        for path in (AGENT / room).rglob("*.py")
        if (later := rooms_imported(path.read_text("utf-8")) - allowed)
    }
    assert broken == {}


def test_a_later_room_is_seen() -> None:
    assert rooms_imported(
        "from cudal2_agent.agent.report import why\nfrom cudal2_agent.agent.run.graph import compile_graph"
    ) == {"report", "run"}


@pytest.mark.parametrize("folder", [*ROOMS, "cli/render"])
def test_a_rooms_docstring_names_each_of_its_files(folder: str) -> None:
    doc = ast.get_docstring(ast.parse((AGENT / folder / "__init__.py").read_text("utf-8"))) or ""
    files = [path.stem for path in (AGENT / folder).glob("*.py") if path.stem != "__init__"]
    assert [name for name in files if f"`{name}`" not in doc] == []


def test_every_folder_is_a_room() -> None:
    found = {path.name for path in AGENT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found == set(ROOMS)
    assert [path.name for path in AGENT.glob("*.py")] == ["__init__.py"]
