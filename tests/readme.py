"""The README as data: its code blocks, the commands it shows with their output, and a comparison of that output.

Run from the repository's root: python -m tests.readme FILE
FILE holds the output of the README's `make optimize` command. Exits with 1 where the README shows another output.
"""

import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```\n(.*?)```", README, flags=re.DOTALL)
FIRST_RUN = "make optimize"

_RUN_ID = re.compile(r"\d+x\d+x\d+-\d{8}-\d{6}-[0-9a-f]{4}")
_RUN_FOLDER = re.compile(r"\S*/runs/RUN\b")
_PROGRAM = re.compile(r"^\S*/?cudal2-agent ", re.MULTILINE)


def shown() -> dict[str, str]:
    """Each command that a block shows behind `$`, with the output shown below it."""
    blocks = (block[2:].split("\n", 1) for block in BLOCKS if block.startswith("$ "))
    return {command: output.strip() for command, output in blocks}


def commands(program: str) -> list[str]:
    """Every line of a block that calls a program, without its comment and its prompt."""
    lines = (line.removeprefix("$ ").split("  #")[0].strip() for block in BLOCKS for line in block.splitlines())
    return [line for line in lines if line.startswith(f"{program} ")]


def masked(output: str) -> str:
    """An output without what differs between two runs: ids, folders, and the lines that report indexing."""
    text = _RUN_FOLDER.sub("RUNS/RUN", _RUN_ID.sub("RUN", output))
    lines = _PROGRAM.sub("cudal2-agent ", text).splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith("run RUN")), 0)
    return "\n".join(line.rstrip() for line in lines[begin:] if not line.startswith("note: ")).strip()


def differences(output: str) -> list[str]:
    """Lines in which the output of the first run differs from the README."""
    (expected,) = [text for command, text in shown().items() if command.startswith(FIRST_RUN)]
    return list(
        difflib.unified_diff(masked(expected).splitlines(), masked(output).splitlines(), "README", "output", lineterm="")
    )


def main() -> int:
    found = differences(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print("\n".join(found) if found else "the README shows this output")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
