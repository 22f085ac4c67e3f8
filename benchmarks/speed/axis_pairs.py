"""One axis of a family at two values: entries of a library, raced with either value in the same rounds.

    python -m benchmarks.speed.axis_pairs wgmma_tma constant_shape --out ROWS.jsonl [--device cuda:0] [--seconds 300]

Entries of the family are drawn by a seed and taken in that order; those with a row are skipped, so that the same command goes
on. A row has both ratios over cuBLASLt-AutoTuning with their intervals, and both times in microseconds. The last line is the
geometric mean of the first value's time over the second's.
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, execute, script
from benchmarks.modules.rows import add_row, read_rows
from cudal2.library.library_form import read_library_files
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import Evaluation, Measured
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.speedup import median_us, paired_speedup, yardstick_of
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.policies.schedule.families.kernel_family import Family
from cudal2_agent.policies.schedule.families.registry import families

SHIPPED = Path("cudal2/library/shipped/h200-offline-2026-11-27.jsonl.gz")
VALUES = (False, True)


def drawn(library: Path, family: str, seed: int) -> Iterator[dict[str, Any]]:
    """The library's entries of a family, in a drawn order."""
    _, entries = read_library_files(library)
    of_family = [entry for entry in entries if (entry.get("schedule") or {}).get("family") == family]
    of_family.sort(key=lambda entry: digest(entry["task"]))
    random.Random(seed).shuffle(of_family)
    yield from of_family


def row_of(sandbox: Any, family: Family[Any], entry: dict[str, Any], axis: str) -> Row | None:
    """None where a family cannot write one of the two, or one is not built."""
    task = GemmTask.model_validate(entry["task"])
    try:
        pair = [family.write(family.parse(entry["schedule"] | {axis: value}), task) for value in VALUES]
    except ValueError:
        return None
    built = dict(sandbox.build(pair, task))
    both = [one for one in (built[0], built[1]) if isinstance(one, Built)]
    if len(both) < len(VALUES):
        return None
    found = [_figures(evaluation) for evaluation in sandbox.race(both, task)]
    return {"task": f"{task.shape} {task.layout} {task.element}", "axis": axis, "without": found[0], "with": found[1]}


def _figures(evaluation: Evaluation) -> Row:
    if not isinstance(evaluation, Measured) or (yardstick := yardstick_of(evaluation)) is None:
        return {"status": evaluation.status, "message": evaluation.headline[:300]}
    speedup = paired_speedup(evaluation.timing, yardstick)
    ratios = [round(value, 4) for value in (speedup.ratio, speedup.low, speedup.high)]
    return {"us": round(median_us(evaluation.timing), 4), "speedup": ratios}


def summary(rows: list[Row]) -> str:
    """How the two compare over the rows in which both were measured."""
    ratios = [row["without"]["us"] / row["with"]["us"] for row in rows if "us" in row["without"] and "us" in row["with"]]
    if not ratios:
        return "nothing was measured"
    mean, faster = statistics.geometric_mean(ratios), sum(ratio > 1 for ratio in ratios)
    span = f"from {min(ratios):.4f} to {max(ratios):.4f}"
    return f"{len(ratios)} entries: time without over time with {mean:.4f}, {span}; faster with it: {faster}"


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("family", help="such as wgmma_tma")
    parser.add_argument("axis", help="an axis that is true or false")
    parser.add_argument("--out", type=Path, required=True, help="file of the rows, a line each")
    parser.add_argument("--library", type=Path, default=SHIPPED)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no further entry begins")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=45)
    asked: argparse.Namespace = parser.parse_args()
    family = {each.name: each for each in families(Arch.SM_90A)}.get(asked.family)
    field = family.schedule.model_fields.get(asked.axis) if family else None
    if family is None or field is None or field.annotation is not bool:
        raise UsageError(f"there is no axis {asked.axis} of {asked.family} that is true or false")
    rows, begin = read_rows(asked.out), time.monotonic()
    known = {row["task"] for row in rows}
    with open_sandbox_of(Arch.SM_90A, load_settings(device=asked.device), lambda _: None) as sandbox:
        for entry in islice(drawn(asked.library, asked.family, asked.seed), asked.count):
            task = GemmTask.model_validate(entry["task"])
            if time.monotonic() - begin > asked.seconds:
                break
            if f"{task.shape} {task.layout} {task.element}" in known:
                continue
            if (row := row_of(sandbox, family, entry, asked.axis)) is not None:
                rows.append(row)
                add_row(asked.out, row)
                print(f"{row['task']}: {row['without'].get('us')} us without, {row['with'].get('us')} us with", flush=True)
    print(summary(rows))


if __name__ == "__main__":
    execute(main)
