"""Draws random schedules for each shape of a list, as `fresh` writes it. No model and no measurement has a say in which.

Run from the repository's root:
    python -m benchmarks.emulator.timing_model.draw --shapes LIST.json --out DRAWN.json.gz [--each 30]
"""

import gzip
import json
import random
from pathlib import Path
from typing import Any

from benchmarks.harness import execute, script
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import GemmTask, parse_shape
from cudal2_agent.policies.schedule.families.registry import families

SETS = Path(__file__).parent / "sets"
DRAWN = SETS / "drawn.json.gz"


def task_of(shape: str) -> GemmTask:
    m, n, k = parse_shape(shape)
    return GemmTask(m=m, n=n, k=k)


def listed(path: Path) -> list[str]:
    """The shapes of a list, or of drawn schedules."""
    content = json.loads(uncompressed(path))
    return list(content["shapes"] if "shapes" in content else dict.fromkeys(row["shape"] for row in content["rows"]))


def uncompressed(path: Path) -> bytes:
    """The content of a file, which is compressed if its name ends with .gz."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The drawn schedules of a file, each with its shape."""
    return list(json.loads(uncompressed(path))["rows"])


def drawn(shape: str, each: int, seed: int) -> list[dict[str, Any]]:
    """`each` different schedules: a family that has any for the shape, then one of its schedules, all equally likely."""
    task, rng = task_of(shape), random.Random(f"{seed}/{shape}")
    chip = REFERENCE_CHIPS[task.arch]
    spaces = [(family, space) for family in families(task.arch) if (space := list(family.space(task, chip)))]
    found: dict[str, dict[str, Any]] = {}
    while len(found) < min(each, sum(len(space) for _, space in spaces)):
        family, space = rng.choice(spaces)
        candidate = family.write(rng.choice(space), task)
        found.setdefault(candidate.id, dict(candidate.origin.schedule or {}))
    return list(found.values())


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--shapes", type=Path, required=True, help="a list of shapes, or schedules drawn earlier")
    parser.add_argument("--out", type=Path, required=True, help="compressed if its name ends with .gz")
    parser.add_argument("--each", type=int, default=30, help="schedules per shape")
    parser.add_argument("--seed", type=int, default=16)
    options = parser.parse_args()
    shapes = listed(options.shapes)
    rows = [{"shape": shape, "schedule": schedule} for shape in shapes for schedule in drawn(shape, options.each, options.seed)]
    lines = ",\n".join(f" {json.dumps(row)}" for row in rows)
    text = f'{{"seed": {options.seed}, "rows": [\n{lines}\n]}}\n'.encode()
    options.out.write_bytes(gzip.compress(text, mtime=0) if options.out.suffix == ".gz" else text)
    print(f"{len(rows)} schedules of {len(shapes)} shapes")


if __name__ == "__main__":
    execute(main)
