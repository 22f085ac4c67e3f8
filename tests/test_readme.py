"""The README shows what the product does."""

import re
import shlex
import subprocess
import sys

import pytest
import typer

from cudal2_agent.agent.cli.main import app
from tests.readme import BLOCKS, FIRST_RUN, ROOT, commands, differences, shown

PROGRAM = "cudal2-agent"
RUN = "import sys; from cudal2_agent.agent.cli.main import main; sys.exit(main(sys.argv[1:]))"


def call(line: str) -> subprocess.CompletedProcess[str]:
    """Run a command line of the product as a user of an 80-column terminal does."""
    environment = {"COLUMNS": "80", "PATH": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, *shlex.split(line)[1:]]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("line", [line for line in shown() if line.startswith(PROGRAM)])
def test_the_output_is_as_shown(line: str) -> None:
    done = call(line)
    assert (done.stdout + done.stderr).strip() == shown()[line]


def test_bad_input_ends_with_exit_code_2() -> None:
    (line,) = [line for line, output in shown().items() if output.startswith("error:")]
    assert call(line).returncode == 2


@pytest.mark.long
def test_the_first_run_is_as_shown() -> None:
    """`.ci/run` compares the same output each time."""
    (line,) = [line for line in shown() if line.startswith(FIRST_RUN)]
    done = subprocess.run(shlex.split(line), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    assert not differences(done.stdout)


def test_another_output_of_the_first_run_is_reported() -> None:
    (output,) = [output for line, output in shown().items() if line.startswith(FIRST_RUN)]
    assert not differences(output)
    assert differences(output.replace("latency", "another_family"))


@pytest.mark.parametrize("line", commands(PROGRAM))
def test_the_options_of_every_command_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
    if words != ["--help"]:
        assert not hasattr(command, "commands"), f"{line!r} names a group"
        command.make_parser(typer.Context(command)).parse_args(words)


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [line.split()[1] for line in commands("make")]
    assert {"optimize", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_ci_runs_the_commands_of_the_readme() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    (first,) = [line for line in shown() if line.startswith(FIRST_RUN)]
    assert first in script
    assert re.search(r"^make test$", script, flags=re.MULTILINE)
    assert "make test\n" in "".join(BLOCKS)
