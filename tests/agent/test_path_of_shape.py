"""The path of the shape in docs/internals/design.md: every hop is a function that exists, in a file that exists."""

import ast
import re
from pathlib import Path

import pytest

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
