"""Kernel families against each other on a GPU: the same short search over the schedules of each, by the quick ruler.

A family stays only if it beats the others by 5 % on ten shapes of its class. Run from the repository's root:
python -m benchmarks.h200.family_search --shapes 64x128x2048 256x512x1024 --search wgmma_tma+mma_sync=24 latency=32 --out F.json
`--layout tn` takes B column-major. `--schedules FILE` also measures schedules that a file names, as a list of
{"shape": …, "schedule": {…}}.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation, Measured
from cudal2_agent.contract.records.task import GemmTask, Layout, parse_shape
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.contract.reward.speedup import baseline_of, median_us, ratio_over
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.sandbox.local import LocalSandbox

ROUND = 8
Row = dict[str, Any]


def task_of(shape: str, layout: str) -> GemmTask:
    m, n, k = parse_shape(shape)
    return GemmTask(m=m, n=n, k=k, layout=Layout(layout))


def evaluated(box: LocalSandbox, candidates: Sequence[Candidate], task: GemmTask) -> Iterator[tuple[Candidate, Evaluation]]:
    """Each candidate with its outcome, in order; all are built before the first is measured."""
    outcomes = dict(box.build(candidates, task))
    for position, candidate in enumerate(candidates):
        built = outcomes[position]
        yield candidate, box.evaluate(built, task, "quick") if isinstance(built, Built) else built


def search(box: LocalSandbox, names: Sequence[str], count: int, task: GemmTask) -> Iterator[tuple[Candidate, Evaluation]]:
    """A search of the schedule policy over the named families alone."""
    policy = SchedulePolicy([family for family in families(task.arch) if family.name in names], steer=False)
    attempts: list[Attempt] = []
    for number in range(count):
        observation = Observation(task=task, chip=box.chip, round=number, seed=0, attempts=tuple(attempts))
        candidates = policy.propose(observation, min(ROUND, count - len(attempts)))
        if not candidates:
            return
        for candidate, evaluation in evaluated(box, candidates, task):
            attempts.append(_attempt(candidate, evaluation))
            yield candidate, evaluation


def _attempt(candidate: Candidate, evaluation: Evaluation) -> Attempt:
    return Attempt(
        candidate_id=candidate.id,
        policy="schedule",
        schedule=candidate.origin.schedule,
        status=evaluation.status,
        time_us=evaluation.time_us,
    )


def row_of(task: GemmTask, label: str, candidate: Candidate, evaluation: Evaluation) -> Row:
    timing = baseline_of(evaluation, AUTOTUNED) if isinstance(evaluation, Measured) else None
    return {
        "shape": task.shape,
        "search": label,
        "schedule": candidate.origin.schedule,
        "status": evaluation.status,
        "fault": evaluation.fault,
        "time_us": evaluation.time_us,
        "autotuning_us": median_us(timing) if timing else None,
        "speedup": ratio_over(evaluation, AUTOTUNED),
    }


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """The fastest row of each shape and search, by paired speedup."""
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row["shape"], row["search"]
        if row["speedup"] is not None and row["speedup"] > best.get(key, {"speedup": 0.0})["speedup"]:
            best[key] = row
    return list(best.values())


def table(rows: Sequence[Row]) -> str:
    """The best of each search as a Markdown table, with the geometric mean of the searches over their common shapes."""
    best = best_rows(rows)
    labels = list(dict.fromkeys(row["search"] for row in best))
    speedup = {(row["shape"], row["search"]): row["speedup"] for row in best}
    shapes = [
        shape for shape in dict.fromkeys(row["shape"] for row in best) if all((shape, each) in speedup for each in labels)
    ]
    lines = [f"| shape | {' | '.join(labels)} |", "|---|" + "---|" * len(labels)]
    lines += [f"| {shape} | " + " | ".join(f"{speedup[shape, each]:.3f}" for each in labels) + " |" for shape in shapes]
    if shapes:
        means = [statistics.geometric_mean(speedup[shape, each] for shape in shapes) for each in labels]
        lines.append("| geometric mean | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> list[Row]:
    named = json.loads(Path(arguments.schedules).read_text()) if arguments.schedules else []
    shapes = list(dict.fromkeys([*arguments.shapes, *(each["shape"] for each in named)]))
    begin_s, rows = time.monotonic(), list[Row]()
    first = task_of(shapes[0], arguments.layout)
    of_name = {family.name: family for family in families(first.arch)}
    with open_sandbox_of(first.arch, Settings(device="cuda:0"), lambda _event: None) as box:
        for shape in shapes:
            task = task_of(shape, arguments.layout)
            wanted = [each["schedule"] for each in named if each["shape"] == shape]
            candidates = [of_name[values["family"]].write(of_name[values["family"]].parse(values), task) for values in wanted]
            rows += [row_of(task, "named", *pair) for pair in evaluated(box, candidates, task)]
            for label, _, count in (text.partition("=") for text in arguments.search):
                rows += [row_of(task, label, *pair) for pair in search(box, label.split("+"), int(count), task)]
            Path(arguments.out).write_text(json.dumps({"benchmark": "family_search", "rows": rows}, indent=0) + "\n")
            print(f"{shape}: {len(rows)} rows, {time.monotonic() - begin_s:.0f} s", flush=True)
            if time.monotonic() - begin_s > arguments.seconds:
                break
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=[], help="shapes to search")
    parser.add_argument("--search", nargs="*", default=[], help="families and candidates of a search, such as latency=32")
    parser.add_argument("--layout", default=Layout.NN, choices=list(Layout), help="how the operands are stored")
    parser.add_argument("--schedules", help="file of shapes and schedules")
    parser.add_argument("--seconds", type=float, default=600.0, help="no further shape starts after this time")
    parser.add_argument("--out", required=True)
    print(table(run(parser.parse_args())))


if __name__ == "__main__":
    main()
