"""The rooms of the agent: each imports only the rooms before it, and its docstring names each of its files.

The path of the shape in docs/internals/design.md: every hop is a function that exists, in a file that exists.
"""

import ast
import re
from pathlib import Path

import pytest

AGENT = Path(__file__).resolve().parents[2] / "agent"
ROOMS = (
    "tasks",
    "observe",
    "run",
    "report",
    "index",
    "wiring",
    "campaign",
    "library",
    "model_tuning",
    "mcp",
    "learning/environment",
    "bench",
    "learning/calibration",
    "cli",
)


def rooms_imported(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    paths = {name.removeprefix("cudal2_agent.agent.").replace(".", "/") + "/" for name in names if ".agent." in name}
    return {room for room in ROOMS for path in paths if path.startswith(f"{room}/")}


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
    source = "from cudal2_agent.agent.report import why\nfrom cudal2_agent.agent.learning.environment.episode import Episode"
    assert rooms_imported(source) == {"report", "learning/environment"}


@pytest.mark.parametrize(
    "folder", [*ROOMS, "bench/models", "bench/proposals", "campaign/report", "cli/render", "library/advise"]
)
def test_a_rooms_docstring_names_each_of_its_files(folder: str) -> None:
    doc = ast.get_docstring(ast.parse((AGENT / folder / "__init__.py").read_text("utf-8"))) or ""
    files = [path.stem for path in (AGENT / folder).glob("*.py") if path.stem != "__init__"]
    assert [name for name in files if f"`{name}`" not in doc] == []


def test_every_folder_is_a_room() -> None:
    found = {path.name for path in AGENT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found == {room.partition("/")[0] for room in ROOMS}
    assert [path.name for path in AGENT.glob("*.py")] == ["__init__.py"]


ROOT = Path(__file__).resolve().parents[2]
SECTION = (
    (ROOT / "docs" / "internals" / "design.md").read_text("utf-8").partition("## How shape travels\n")[2].partition("\n## ")[0]
)
HOPS = re.findall(r"^\| `([\w/]+\.py):(\w+)` \|", SECTION, flags=re.MULTILINE)


def test_the_path_leads_from_the_command_line_to_the_timer() -> None:
    assert HOPS[0] == ("agent/cli/optimize.py", "optimize")
    assert HOPS[-1][0].startswith("sandbox/cuda/timing/")
    assert len(HOPS) == len(set(HOPS)) == SECTION.count("\n| `")


@pytest.mark.parametrize(("file", "function"), HOPS, ids=[":".join(hop) for hop in HOPS])
def test_a_hop_exists(file: str, function: str) -> None:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
