"""The layers: contract, processes <- store <- {knowledge, indexer, sandbox, policies} <- agent; contract <- cudal2 <- agent.

Every part but `cudal2` is imported as `cudal2_agent.PART`. Each border's packages are imported only there.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "cudal2_agent"
SIBLINGS = frozenset({"knowledge", "indexer", "sandbox", "policies"})
GROUND = frozenset({"processes"})  # the standard library only
LAYERS = SIBLINGS | GROUND | {"contract", "store", "agent", "cudal2"}
# What each layer may import beside itself; `agent` imports all of them.
BELOW = {
    "contract": frozenset[str](),
    "processes": frozenset[str](),
    "store": frozenset({"contract"}),
    "cudal2": frozenset({"contract"}),
    **dict.fromkeys(SIBLINGS, frozenset({"contract", "processes", "store"})),
}
STDLIB = frozenset(sys.stdlib_module_names)

# Packages that a GPU worker lacks.
NOT_ON_WORKERS = frozenset({"langgraph", "chromadb", "openai", "sqlalchemy", "typer", "rich", "pydantic_settings"})
# What users of kernels need beside the contract; torch and the driver are imported where they are used.
OF_KERNEL_USERS = frozenset({"numpy", "torch", "cuda", "pydantic"})
# Modules that print to a terminal; libraries emit events instead.
MAY_IMPORT_RICH = ("agent/cli/render/",)
# The settings, the clean environment that a worker's child processes are given, and the launcher that marks it;
# the entry point, which sets the threads of linear algebra; a forked child, which sets its home.
MAY_READ_ENVIRONMENT = frozenset(
    {
        "contract/settings/settings.py",
        "sandbox/workers/process.py",
        "sandbox/workers/confined.py",
        "agent/cli/main.py",
        "sandbox/workers/forking.py",
        "sandbox/emulator/loading.py",  # sets it, for what torch looks for as it is imported
    }
)


def sources() -> list[Path]:
    return sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


def imports_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import of a module, including those in functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names if module == PACKAGE)
            yield node.lineno, module
        elif isinstance(node, ast.Call) and _callee(node) in {"import_module", "__import__"}:
            name = node.args[0] if node.args else None
            yield node.lineno, name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""


def _callee(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def broken_imports(name: str, source: str) -> list[str]:
    """Forbidden imports of one module; `name`: its path from the project's root."""
    layer = name.partition("/")[0]
    broken = []
    for line, module in imports_of(ast.parse(source)):
        reason = _why_broken(name, layer, module)
        if reason:
            broken.append(f"{name}:{line} imports {module}: {reason}")
    return broken


def _why_broken(name: str, layer: str, module: str) -> str:
    if module.startswith("."):
        return "relative import"
    top, _, rest = module.partition(".")
    if top in LAYERS - {"cudal2"}:
        return f"it is imported as {PACKAGE}.{top}"
    part = rest.partition(".")[0] if top == PACKAGE else top
    if part in LAYERS and part != layer and layer != "agent" and part not in BELOW[layer]:
        return f"{layer} may import {', '.join(sorted(BELOW[layer])) or 'no other part'} only"
    if top == PACKAGE:
        return ""
    if layer in GROUND and top not in STDLIB | {"ray"}:
        return "the ground floor is the standard library, and Ray where it is used"
    if layer == "contract" and top not in STDLIB | {"pydantic", "pydantic_core"}:  # the second is a part of the first
        allowed = name == "contract/settings/settings.py" and top == "pydantic_settings"
        return "" if allowed else "contract is records over pydantic only"
    if layer == "cudal2" and top not in STDLIB | OF_KERNEL_USERS | {"cudal2"}:
        return "programs that only launch kernels do not have it"
    if layer == "sandbox" and top in NOT_ON_WORKERS:
        return "a GPU worker does not have it"
    if top == "rich" and not name.startswith(MAY_IMPORT_RICH):
        return "only the command line draws; emit an event"
    return ""


def environment_reads(source: str) -> list[int]:
    """Lines that touch the process environment through os."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if _reads_environment(node)]


def _reads_environment(node: ast.AST) -> bool:
    names = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    if isinstance(node, ast.Attribute):
        return node.attr in names and isinstance(node.value, ast.Name) and node.value.id == "os"
    return isinstance(node, ast.ImportFrom) and node.module == "os" and bool(names & {alias.name for alias in node.names})


def test_the_package_links_to_every_part_and_holds_nothing_else() -> None:
    links = {
        path.name: path.resolve() for path in (ROOT / PACKAGE).iterdir() if path.name not in {"__init__.py", "__pycache__"}
    }
    assert links == {part: ROOT / part for part in LAYERS - {"cudal2"}}


def test_every_layer_has_sources() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in sources()} == LAYERS


def test_imports_keep_to_their_layers() -> None:
    broken = [line for path in sources() for line in broken_imports(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))]
    assert broken == []


def test_only_the_settings_read_the_environment() -> None:
    broken = [
        f"{name}:{line}"
        for path in sources()
        if (name := path.relative_to(ROOT).as_posix()) not in MAY_READ_ENVIRONMENT
        for line in environment_reads(path.read_text("utf-8"))
    ]
    assert broken == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("contract/x.py", "import torch"),
        ("contract/x.py", "import pydantic_settings"),
        ("contract/x.py", "from cudal2_agent.agent.run.graph import run"),
        ("contract/x.py", "def f():\n    import numpy"),
        ("sandbox/x.py", "from cudal2_agent.policies.chat import ask"),
        ("sandbox/x.py", "import rich.console"),
        ("sandbox/x.py", "from pydantic_settings import BaseSettings"),
        ("sandbox/x.py", "if TYPE_CHECKING:\n    import sqlalchemy"),
        ("knowledge/x.py", "import indexer"),
        ("knowledge/x.py", "from cudal2_agent import indexer"),
        ("processes/x.py", "import pydantic"),
        ("processes/x.py", "from cudal2_agent.contract.errors import Cudal2Error"),
        ("store/x.py", "from cudal2_agent.sandbox.local import open_sandbox"),
        ("policies/x.py", "from importlib import import_module\nimport_module('cudal2_agent.sandbox.workers.worker')"),
        ("policies/x.py", "from agent import graph"),
        ("policies/x.py", "import cudal2"),
        ("cudal2/x.py", "from cudal2_agent.processes.child import Child"),
        ("processes/x.py", "from cudal2_agent.contract.errors import WorkerError"),
        ("processes/x.py", "import numpy"),
        ("cudal2/x.py", "from cudal2_agent.policies.schedule.families.registry import families"),
        ("cudal2/x.py", "import sqlalchemy"),
        ("policies/schedule/x.py", "from .family import Schedule"),
        ("agent/x.py", "from . import cli"),
        ("agent/run/graph.py", "from rich.progress import Progress"),
    ],
)
def test_a_broken_layer_is_seen(name: str, source: str) -> None:
    assert broken_imports(name, source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("contract/settings/settings.py", "from pydantic_settings import BaseSettings"),
        ("contract/x.py", "import json\nfrom cudal2_agent.contract.base import Record\nfrom pydantic import Field"),
        ("sandbox/x.py", "import numpy\nfrom cuda.bindings import nvrtc\nfrom cudal2_agent.sandbox.cuda.guard import buffers"),
        (
            "cudal2/x.py",
            "from cudal2_agent.contract.records.library import LibraryEntry\nimport numpy\ndef f():\n    import torch",
        ),
        ("indexer/x.py", "from cudal2_agent.processes.child import Child"),
        ("processes/x.py", "import signal\ndef f():\n    import ray"),
        ("agent/x.py", "from cudal2.library.kernel_library import open_library"),
        (
            "agent/x.py",
            "from cudal2_agent.sandbox.workers.pool import Pool\nfrom cudal2_agent.knowledge.search import open_search",
        ),
        ("agent/cli/render/progress.py", "from rich.progress import Progress"),
    ],
)
def test_a_sound_layer_passes(name: str, source: str) -> None:
    assert broken_imports(name, source) == []


def test_the_ground_floor_imports_ray_only_where_it_is_used() -> None:
    at_once = [
        f"{path.name}:{line}"
        for path in (ROOT / "processes").rglob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line, module in imports_of(node)
        if module.partition(".")[0] == "ray"
    ]
    assert at_once == []


@pytest.mark.parametrize("source", ["import os\nos.environ['X']", "from os import getenv", "import os\nos.getenv('X')"])
def test_a_read_of_the_environment_is_seen(source: str) -> None:
    assert environment_reads(source)


def test_git_is_called_in_one_place() -> None:
    words = ('["git"', 'which("git"', '("git",')
    callers = [str(path.relative_to(ROOT)) for path in sources() if any(word in path.read_text() for word in words)]
    assert callers == ["processes/git.py"]
