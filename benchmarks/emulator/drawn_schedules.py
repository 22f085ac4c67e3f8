"""Schedules drawn from each family's whole space, verified and timed briefly on a GPU. None of them may be rejected.

Run from the repository's root: python -m benchmarks.emulator.drawn_schedules --out FILE.json [--each 100]
"""

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import cache_argument, execute, script, stamp, write_json
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Evaluation, Measured, Wrong
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.workers.messages import Done, Evaluate

SEED = 2026
BRIEF = TimeOptions(rounds=3, round_us=1000, all_baselines=False, side=False)
TASKS = tuple(
    GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": "sm_90a", **fields})
    for (m, n, k), fields in (
        ((256, 256, 256), {"layout": "nn"}),
        ((128, 384, 512), {"layout": "nn", "accumulate": "f16"}),
        ((200, 136, 200), {"layout": "tn", "element": "bf16"}),
        ((64, 64, 2048), {"layout": "nn"}),
        ((1024, 512, 256), {"layout": "tn"}),
        ((4104, 4360, 328), {"layout": "nn"}),
        ((512, 512, 64), {"layout": "tn"}),
        ((72, 264, 250), {"layout": "nn"}),
        ((256, 392, 200), {"layout": "nt"}),
        ((136, 264, 77), {"layout": "nt", "element": "bf16"}),
        ((4104, 4360, 250), {"layout": "nt", "accumulate": "f16"}),
        ((70, 51, 250), {"layout": "nt"}),
    )
)


def drawn(each: int) -> Iterator[tuple[str, GemmTask, Candidate]]:
    """(family, task, candidate): `each` different candidates per family, distributed evenly over the tasks."""
    chip, rng = REFERENCE_CHIPS[Arch.SM_90A], random.Random(SEED)
    for family in families(Arch.SM_90A):
        pairs = [(task, space) for task in TASKS if (space := list(family.space(task, chip)))]
        found: dict[str, tuple[str, GemmTask, Candidate]] = {}
        for turn in itertools.count():
            if len(found) == each:
                break
            task, space = pairs[turn % len(pairs)]
            candidate = family.write(rng.choice(space), task)
            found.setdefault(candidate.id, (family.name, task, candidate))
        yield from found.values()


def outcomes(each: int, cache: Path) -> list[dict[str, str]]:
    """The outcome of every schedule, ordered by task."""
    from cudal2_agent.sandbox.cuda.device import Device
    from cudal2_agent.sandbox.cuda.evaluator import Evaluator

    listed = list(drawn(each))
    device = Device(0)
    evaluator = Evaluator(device, lambda _stage: None)
    builder = Builder(CompileOptions(cache_dir=str(cache), jobs=os.cpu_count() or 2), device.chip)
    rows = []
    for task in TASKS:
        own = [(family, candidate) for family, each_task, candidate in listed if each_task == task]
        for position, built in builder.build([candidate for _, candidate in own], task):
            outcome: Evaluation | Any = built
            if isinstance(built, Built):
                answer = evaluator.evaluate(Evaluate(built=built, task=task, verify=VerifyOptions(), time=BRIEF))
                outcome = answer.evaluation if isinstance(answer, Done) else answer
            row = {"family": own[position][0], "task": task.shape, "candidate": own[position][1].id, "outcome": _told(outcome)}
            rows.append(row)
            if row["outcome"] != "measured":
                print(row, flush=True)
        print(f"{task.shape}: {len(rows)} of {len(listed)} schedules done", flush=True)
    return rows


def _told(outcome: Evaluation) -> str:
    match outcome:
        case Measured():
            return "measured"
        case Wrong(test=test):
            return f"wrong {test.tier}/{test.name}: {test.message}"
        case _:
            return f"{outcome.status}: {getattr(outcome, 'message', '')}"


def main() -> int:
    parser = script(__file__, __doc__, measures=True)
    parser.add_argument("--each", type=int, default=100, help="schedules per family")
    cache_argument(parser, "drawn-schedules")
    options = parser.parse_args()
    rows = outcomes(options.each, options.cache)
    counts = Counter((row["family"], row["outcome"] == "measured") for row in rows)
    write_json(options.out, {**stamp(__file__, options.commit), "seed": SEED, "rows": rows})
    for (family, measured), count in sorted(counts.items()):
        print(f"{family}: {count} {'measured' if measured else 'refused'}")
    return 0 if all(measured for _, measured in counts) else 1


if __name__ == "__main__":
    execute(main)
