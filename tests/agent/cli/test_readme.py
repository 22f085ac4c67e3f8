"""The README matches the product."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from agent.cli.main import app

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line.split("  #")[0].strip() for block in BLOCKS for line in block.splitlines() if line.startswith("cudal2-agent ")]


def test_the_help_text_is_current() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "from agent.cli.main import main; main(['--help'])"],
        cwd=ROOT,
        env={"COLUMNS": "80", "PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (quoted,) = [block for block in BLOCKS if block.startswith("$ cudal2-agent --help")]
    assert quoted.split("\n", 1)[1].strip() == shown.strip()


@pytest.mark.parametrize("line", COMMANDS)
def test_the_options_of_every_command_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
    assert not hasattr(command, "commands"), f"{line!r} names a group"
    command.make_parser(typer.Context(command)).parse_args(words)


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make ([a-z-]+)", "\n".join(BLOCKS), flags=re.MULTILINE)
    assert {"optimize", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize("path", re.findall(r"\]\((?!http)([^)#]+)", README))
def test_every_link_leads_somewhere(path: str) -> None:
    assert (ROOT / path).exists()
