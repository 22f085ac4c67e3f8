"""Every command's help has an example that parses, and `--help` is fast; the entry point in a process of its own."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from cudal2_agent.agent.cli.main import app, main

ROOT = Path(__file__).parents[3]


def commands() -> list[tuple[str, ...]]:
    """Every command of the app, groups included, as the words that name it; none of a former name."""
    root = typer.main.get_command(app)
    found: list[tuple[str, ...]] = [()]
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        if command.hidden:
            continue
        found.append((name,))
        found += [(name, sub) for sub in getattr(command, "commands", {})]
    return found


def test_the_walk_finds_every_verb() -> None:
    names = {" ".join(words) for words in commands()}
    assert {"optimize", "verify", "bench", "runs list", "runs show", "runs resume", "advise", "doctor"} <= names
    verbs = ("add", "update", "list", "remove", "diff", "status", "verify", "rebuild", "search")
    assert "mcp" in names
    assert {f"index {verb}" for verb in verbs} <= names
    verbs = ("list", "show", "stats", "import", "export", "merge", "prune", "verify")
    assert {f"trajectories {verb}" for verb in verbs} <= names
    verbs = ("run", "status", "results", "import", "prove", "record")
    assert {f"campaign {verb}" for verb in verbs} <= names
    assert {f"prior {verb}" for verb in ("list", "use", "evaluate")} <= names
    assert {"train schedule", "train online", "train lm", "train lm-evaluate", "train lm-merge", "calibrate"} <= names
    assert {f"library {verb}" for verb in ("build", "list", "show", "prepare", "check")} <= names


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_has_an_example_of_the_command(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    examples = [line.strip() for line in shown.splitlines() if line.strip().startswith("cudal2-agent ")]
    assert examples
    assert all(shlex.split(example)[1 : 1 + len(words)] == list(words) for example in examples)


@pytest.mark.parametrize("words", [words for words in commands() if words], ids=" ".join)
def test_every_command_has_json(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    if words in (("runs",), ("trajectories",), ("index",), ("campaign",), ("library",), ("prior",), ("tasks",), ("train",)):
        pytest.skip("a group")
    main([*words, "--help"])
    assert "--json" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    """Packages that take seconds to import are imported only by the command that needs them."""
    code = (
        "import sys, cudal2_agent.agent.cli.main as cli; cli.main(['--help']); "
        "heavy = {'torch', 'cupy', 'langgraph', 'sqlalchemy', 'rich', 'numpy', 'chromadb', 'tree_sitter', 'bm25s'}; "
        "heavy &= set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    begin_s = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - begin_s < 5


COUNT = """
import os, sys
from cudal2_agent.agent.cli import main
sys.argv = ["cudal2-agent", "--help"]
main.run()
import numpy as np
np.linalg.eigh(np.eye(128))
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux" or os.cpu_count() == 1, reason="threads are counted in /proc")
def test_linear_algebra_has_one_thread():
    environment = {name: text for name, text in os.environ.items() if not name.endswith("_NUM_THREADS")}
    counted = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, env=environment, check=True)
    assert counted.stdout.splitlines()[-1] == "1"
