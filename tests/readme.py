"""The README as data: its code blocks, the commands it shows with their output, and a comparison of that output.

Run from the repository's root: python -m tests.readme FILE [--write]
FILE holds the output of the README's `make optimize` command. Exits with 1 if the README shows another output.
`--write` puts the output into the README instead.
"""

import argparse
import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```\n(.*?)```", README, flags=re.DOTALL)
FIRST_RUN = "make optimize"

_RUN_ID = re.compile(r"\d+x\d+x\d+-\d{8}-\d{6}-[0-9a-f]{4}")
_CANDIDATE_ID = re.compile(r"\b[0-9a-f]{8}\b")
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
    text = _RUN_FOLDER.sub("RUNS/RUN", _CANDIDATE_ID.sub("ID", _RUN_ID.sub("RUN", output)))
    lines = _PROGRAM.sub("cudal2-agent ", text).splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith("run RUN")), 0)
    return "\n".join(line.rstrip() for line in lines[begin:] if not line.startswith("note: ")).strip()


def differences(output: str) -> list[str]:
    """Lines in which the output of the first run differs from the README."""
    (expected,) = [text for command, text in shown().items() if command.startswith(FIRST_RUN)]
    return list(
        difflib.unified_diff(masked(expected).splitlines(), masked(output).splitlines(), "README", "output", lineterm="")
    )


def written(output: str) -> str:
    """The README with this output of the first run. The run's folder is shown as it is by default."""
    lines = [line for line in output.splitlines() if not line.startswith("note: ")]
    begin = next(at for at, line in enumerate(lines) if line.startswith("run "))
    body = re.sub(r"\S*/runs/", "~/.cudal2/runs/", "\n".join(lines[begin:])).strip()
    return re.sub(rf"(?<=```\n)(\$ {FIRST_RUN}[^\n]*\n).*?(?=\n```)", lambda match: match[1] + body, README, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path)
    parser.add_argument("--write", action="store_true", help="put the output into the README")
    arguments = parser.parse_args()
    output = arguments.output.read_text(encoding="utf-8")
    if arguments.write:
        (ROOT / "README.md").write_text(written(output), encoding="utf-8")
        return 0
    found = differences(output)
    print("\n".join(found) if found else "the README shows this output")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
