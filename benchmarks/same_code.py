"""Whether two versions compile the same schedules to the same machine code, for drawn schedules of each family.

Run from the repository's root: python -m benchmarks.same_code --old FOLDER --out FILE.json [--count 300]
FOLDER is the other version's checkout. Compared are the sections of code, shared memory and constant banks, with the number of
registers; names, line numbers and the versions' sources may differ. No GPU is needed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.sandbox.inspect.elf import read

SEED = 13
ARCHS = (Arch.SM_80, Arch.SM_86, Arch.SM_89, Arch.SM_90A)
SHAPES = (
    *((4096, 1024, 512), (64, 64, 64), (128, 128, 16384), (1000, 1000, 1000), (1001, 999, 777), (1, 1, 1), (7, 8192, 3)),
    *((512, 512, 512), (130, 90, 4098), (257, 321, 515), (16, 4096, 4096), (72, 264, 136), (37, 51, 45), (8192, 8192, 8192)),
    (4104, 4360, 328),
)
FIELDS = [
    {"layout": layout, "element": element, "accumulate": accumulate}
    for layout in ("nn", "tn")
    for element, accumulate in (("f16", "f32"), ("bf16", "f32"), ("f16", "f16"))
]
COMPARED = (".text", ".nv.constant0", ".nv.constant2", ".nv.constant3", ".nv.shared")
_CHILD = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.contract.records.task import GemmTask
try:
    from cudal2_agent.policies.schedule.families.registry import families
    from cudal2_agent.sandbox.building.builder import Builder
except ImportError:  # where they were up to version 0.1
    from cudal2_agent.policies.schedule.families import families
    from sandbox.builder import Builder
answers, cache, jobs = sys.stdout, sys.argv[1], int(sys.argv[2])
sys.stdout = sys.stderr


def compiled(line):
    pair = json.loads(line)
    task = GemmTask.model_validate(pair["task"])
    family = next(one for one in families(task.arch) if one.name == pair["schedule"]["family"])
    candidate = family.write(family.parse(pair["schedule"]), task)
    builder = Builder(CompileOptions(cache_dir=cache, jobs=1), REFERENCE_CHIPS[task.arch])
    ((_, built),) = builder.build([candidate], task)
    return getattr(built, "artifact_path", None) or f"failed: {built}"[:300]


with ThreadPoolExecutor(jobs) as pool:
    for path in pool.map(compiled, sys.stdin):
        print(path, file=answers, flush=True)
"""


def drawn(count: int) -> Iterator[dict[str, Any]]:
    """Task and schedule of `count` different pairs, evenly over the families of all archs."""
    rng = random.Random(SEED)
    choices = [(arch, family) for arch in ARCHS for family in families(arch)]
    seen: set[str] = set()
    while len(seen) < count:
        arch, family = choices[len(seen) % len(choices)]
        m, n, k = rng.choice(SHAPES)
        task = GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": arch, **rng.choice(FIELDS)})
        space = list(family.space(task, REFERENCE_CHIPS[arch])) if family.supports(task) else []
        if not space:
            continue
        schedule = family.write(rng.choice(space), task).origin.schedule
        pair = {"task": task.model_dump(mode="json"), "schedule": schedule}
        if (key := json.dumps(pair, sort_keys=True)) not in seen:
            seen.add(key)
            yield pair


def machine_code(cubin: bytes) -> dict[str, tuple[bytes, int]]:
    """Contents and registers of the sections that are compared, by name."""
    found = read(cubin)
    return {one.name: (found.content(one), one.info >> 24) for one in found.sections if one.name.startswith(COMPARED)}


def compiled(folder: Path, pairs: list[dict[str, Any]], cache: Path) -> list[str]:
    """Path of each pair's cubin as the version in `folder` makes it, or why there is none."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD, str(cache), str(os.cpu_count() or 2)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        input="".join(json.dumps(pair) + "\n" for pair in pairs),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def compare(pair: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    task = GemmTask.model_validate(pair["task"])
    row = {"family": pair["schedule"]["family"], "arch": task.arch.value, "task": task.shape, "outcome": "identical"}
    if old.startswith("failed") or new.startswith("failed"):
        return row | {"outcome": "not compiled", "old": old, "new": new, **pair}
    before, after = (machine_code(Path(path).read_bytes()) for path in (old, new))
    differing = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return row | {"outcome": "different", "sections": differing, **pair} if differing else row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_code", description=__doc__)
    parser.add_argument("--old", type=Path, required=True, help="checkout of the other version")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=300, help="pairs of task and schedule")
    parser.add_argument("--commit", default="", help="the commit that is compared")
    options = parser.parse_args()
    pairs = list(drawn(options.count))
    with tempfile.TemporaryDirectory(prefix="same-code-") as scratch:
        old, new = (
            compiled(folder.resolve(), pairs, Path(scratch) / name)
            for name, folder in (("old", options.old), ("new", Path.cwd()))
        )
        rows = [compare(*each) for each in zip(pairs, old, new, strict=True)]
    options.out.write_text(json.dumps({"commit": options.commit, "seed": SEED, "rows": rows}, indent=1) + "\n")
    counts = Counter((row["family"], row["outcome"]) for row in rows)
    for (family, outcome), count in sorted(counts.items()):
        print(f"{family}: {count} {outcome}")
    return 0 if all(outcome == "identical" for _, outcome in counts) else 1


if __name__ == "__main__":
    raise SystemExit(main())
