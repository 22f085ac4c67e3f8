"""No file of the product is unreachable: a command or the library imports it, starts it, reads it or compiles it.

Covered: imports anywhere in a module, lazy ones and those of types included; modules that a string names, for a child
process; resources, by a module that names the file, or one of their room that names the ending; C++ and CUDA, by CMake and
`#include`. Files that import each other in a circle.
Not covered: a function or a class that nobody calls.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("agent", "contract", "cudal2", "indexer", "knowledge", "policies", "processes", "sandbox", "store")
INSTALLED = "cudal2_agent."  # the package that holds the parts where they are installed
ENTRIES = {
    "cudal2_agent.agent.cli.main": "the command `cudal2-agent`",
    "cudal2": "what programs import",
    "cudal2.engine_plugin": "what serving engines call, by an entry point",
    "cudal2_agent.agent.learning.environment.kernel_environment": "what training imports",
    "cudal2_agent.agent.learning.environment.tool_environment": "what training with tools imports",
}
LOADED_FROM_FOLDERS = {"cudal2_agent.store.migrations": "Alembic loads what is in the folder"}
READ_FROM_FOLDERS = {
    "knowledge/notes": "the index splits every page",
    "sandbox/include/cudal2": "kernels that a model writes include them",
}
DERIVED = frozenset({".pyc", ".so"})
COMPILED = frozenset({".c", ".cpp", ".hpp", ".cu", ".cuh"})

T = TypeVar("T")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    """Modules of the product by their dotted names; packages by theirs."""
    return {name_of(path): path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imported(tree: ast.AST, known: Set[str]) -> set[str]:
    """The modules that a module imports. A name that is taken from a package counts as the package or as its module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix(INSTALLED) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = node.module.removeprefix(INSTALLED)
            taken = {f"{module}.{alias.name}" for alias in node.names}
            found |= (taken & known) or {module}
    return found & known


def strings(tree: ast.AST) -> Iterator[str]:
    """The strings of a module without its docstrings."""
    nodes = list(ast.walk(tree))
    said = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def with_packages(names: Iterable[str]) -> set[str]:
    """Modules with the packages that are imported before them."""
    return {".".join(parts[:end]) for name in names for parts in [name.split(".")] for end in range(1, len(parts) + 1)}


def closure(start: Iterable[T], leads: Callable[[T], Iterable[T]]) -> set[T]:
    """Everything that the start leads to, itself included."""
    reached: set[T] = set()
    waiting = set(start)
    while waiting:
        reached |= waiting
        waiting = {found for one in waiting for found in leads(one)} - reached
    return reached


@cache
def reached_modules() -> frozenset[str]:
    found = modules()
    folders = tuple(f"{name.removeprefix(INSTALLED)}." for name in LOADED_FROM_FOLDERS)

    def leads(name: str) -> set[str]:
        if name not in found:
            return set()
        tree = tree_of(found[name])
        spoken = {text.removeprefix(INSTALLED) for text in strings(tree)} & found.keys()
        return with_packages(imported(tree, found.keys()) | spoken)

    entries = {name.removeprefix(INSTALLED) for name in ENTRIES} | {name for name in found if name.startswith(folders)}
    return frozenset(closure(with_packages(entries), leads) & found.keys())


@cache
def resources() -> list[Path]:
    """Files of the product that are no Python and that no tool derived."""
    paths = (path for part in PARTS for path in (ROOT / part).rglob("*"))
    return sorted(path for path in paths if path.is_file() and path.suffix not in DERIVED | {".py"})


def is_read(path: Path, texts: Mapping[str, list[str]]) -> bool:
    """Whether a module names the file, or one of the resource's room or of a room around it names its ending."""
    rooms = with_packages([".".join(path.parent.relative_to(ROOT).parts)])
    endings = (path.name, "".join(path.suffixes), path.suffix)
    near = (text for name, found in texts.items() if {name, name.rpartition(".")[0]} & rooms for text in found)
    return any(path.name in found for found in texts.values()) or any(text.endswith(endings) for text in near)


def included(path: Path) -> set[Path]:
    """What a source in C++ includes of the product: beside it, or by a path from a folder of headers."""
    known = [one for one in resources() if one.suffix in COMPILED]
    names = re.findall(r'#include [<"]([^>"]+)[>"]', path.read_text("utf-8"))
    beside = {one for one in known for name in names if one == (path.parent / name).resolve()}
    return beside | {one for one in known for name in names if "/" in name and one.as_posix().endswith(f"/{name}")}


def unread() -> list[str]:
    texts = {name: list(strings(tree_of(modules()[name]))) for name in reached_modules()}
    cmake = (ROOT / "CMakeLists.txt").read_text("utf-8").replace("${core}", "sandbox/emulator/core")
    read = {path for path in resources() if is_read(path, texts) or path.relative_to(ROOT).as_posix() in cmake}
    reached = closure(read, lambda path: included(path) if path.suffix in COMPILED else set())
    left = [path.relative_to(ROOT).as_posix() for path in resources() if path not in reached and path.suffix != ".pyi"]
    return [name for name in left if name.rpartition("/")[0] not in READ_FROM_FOLDERS]


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of two or more that lead to each other."""
    reach = {name: closure(edges[name], lambda one: edges.get(one, set())) for name in edges}
    groups = {frozenset({name, *(other for other in reach[name] if name in reach.get(other, set()))}) for name in edges}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def test_every_module_is_reachable() -> None:
    assert sorted(modules().keys() - reached_modules()) == []


def test_every_resource_is_read_or_compiled() -> None:
    assert unread() == []


def test_every_entry_exists() -> None:
    assert {name.removeprefix(INSTALLED) for name in (*ENTRIES, *LOADED_FROM_FOLDERS)} <= modules().keys()


def test_no_files_import_each_other_in_a_circle() -> None:
    known = modules()
    assert circles({name: imported(tree_of(path), known.keys()) - {name} for name, path in known.items()}) == []


@pytest.mark.parametrize(
    "source",
    [
        "import agent.room.part",
        "from agent.room.part import thing",
        "def f():\n    from agent.room import part",
        "import cudal2_agent.agent.room.part",
        "from cudal2_agent.agent.room import part, thing",
    ],
)
def test_an_import_is_seen(source: str) -> None:
    assert imported(ast.parse(source), {"agent", "agent.room", "agent.room.part", "agent.room.other"}) == {"agent.room.part"}


def test_a_circle_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}) == [["b", "c"]]


def test_an_unread_resource_is_seen() -> None:
    path = ROOT / "agent" / "room" / "table.json"
    assert is_read(path, {"agent.room.part": ["table.json"]})
    assert is_read(path, {"agent.part": ["*.json"]})
    assert is_read(path, {"sandbox.part": ["table.json"]})
    assert not is_read(path, {"agent.room.part": ["other.txt"], "sandbox.part": ["*.json"]})
