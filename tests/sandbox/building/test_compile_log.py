"""Logs quote the source and the headers, and no other file."""

from pathlib import Path

import pytest

from cudal2_agent.sandbox.building.compile_log import ELSEWHERE, first_error, shown_log

ROOT, SCRATCH = Path("/opt/headers"), Path("/tmp/build")
SOURCE = '#include "/named/in/source.h"\n'


def shown(text: str) -> str:
    return shown_log(text, SOURCE, SCRATCH, (ROOT,))


@pytest.mark.parametrize(
    "text",
    [
        '/etc/passwd(1): error: identifier "root" is undefined\n  root:x:0:0\n      ^\n',
        '/opt/headers/../secret/passwd(1): error: identifier "root" is undefined\n  root:x:0:0\n      ^\n',
        "../../etc/passwd(1): error: expected a declaration\n  root:x:0:0\n  ^\n",
        '"/etc/passwd", line 1: error: identifier "root" is undefined\n  root:x:0:0\n',
        "/etc/passwd:1:5: error: 'root' does not name a type\n    1 | root:x:0:0:root\n      | ^~~~\n",
        "In file included from kernel.cu:3:\n/etc/passwd:1:5: error: 'root' does not name a type\n    1 | root:x:0:0:root\n",
        "/etc/passwd(1): warning #12-D: parsing restarts here after root\n  root:x:0:0\n",
    ],
)
def test_a_file_outside_is_not_quoted(text: str) -> None:
    said = shown(text + "\nkernel.cu(7): error: mine\n  flaot x;\n")
    assert "root" not in said
    assert "passwd" not in said
    assert ELSEWHERE in said
    assert said.endswith("kernel.cu(7): error: mine\n  flaot x;\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/opt/headers/cuda/std/array(3): error: no\n  int x\n", "cuda/std/array(3): error: no\n  int x\n"),
        ("/tmp/build/kernel.cu(3): error: no\n  a / b / c;\n", "kernel.cu(3): error: no\n  a / b / c;\n"),
        ("kernel.cu(3): warning #177-D: unused\n", "kernel.cu(3): warning #177-D: unused\n"),
        ("ptxas info    : Used 32 registers\n", "ptxas info    : Used 32 registers\n"),
        ("see https://example.org/a/b for more\n", "see https://example.org/a/b for more\n"),
    ],
)
def test_the_source_and_the_headers_are_shown(text: str, said: str) -> None:
    assert shown(text) == said


def test_a_file_that_exists_and_one_that_does_not_read_alike() -> None:
    told = 'kernel.cu(1): catastrophic error: cannot open source file "x.h"'
    assert shown(f"{told}: Permission denied\n") == shown(f"{told}\n") == f"{told}\n"
    gcc = "kernel.cu:1:10: fatal error: x.h"
    assert shown(f"{gcc}: Permission denied\n") == shown(f"{gcc}: No such file or directory\n")


def test_paths_that_the_source_does_not_name_are_blanked() -> None:
    said = shown("nvcc: /home/somebody/tools/bin/cicc died; see /named/in/source.h\n")
    assert said == f"nvcc: {ELSEWHERE} died; see /named/in/source.h\n"


def test_an_error_elsewhere_is_still_the_first_error() -> None:
    assert first_error(shown("/etc/passwd(1): error: identifier\n  x\n")) == f"{ELSEWHERE}: error: not shown"
