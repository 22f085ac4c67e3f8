"""Times the judged kernels on a GPU, one JSON row a line. A second call goes on where the first stopped.

All kernels are built in the background while those of earlier shapes are screened. Run from the repository's root:
python -m benchmarks.emulator.timing_model.measure [--drawn DRAWN.json] --out ROWS.jsonl [--seconds 150] [--part 1/4]
python -m benchmarks.emulator.timing_model.measure --free [--extra FOLDER] --out FREE.jsonl
"""

import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.emulator.timing_model.draw import DRAWN
from benchmarks.emulator.timing_model.sources import TimedKernel, free, scheduled
from benchmarks.harness import execute, script
from cudal2_agent.agent.bench.proposals.bench_shapes import read_part
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.protocols import Sandbox
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.evaluation import Evaluation, Measured
from cudal2_agent.contract.settings.settings import Settings

Outcomes = dict[int, Built | Evaluation]


def row_of(judged: TimedKernel, evaluation: Evaluation) -> dict[str, Any]:
    """Times are medians, in microseconds; `plain_us`: without programmatic launch."""
    row = {"name": judged.name, "shape": judged.task.shape, "candidate": judged.candidate.id, "status": evaluation.status}
    if not isinstance(evaluation, Measured):
        return {**row, "fault": evaluation.fault or evaluation.headline}
    plain = statistics.median(evaluation.plain.samples_us) if evaluation.plain else None
    return {**row, "time_us": evaluation.time_us, "plain_us": plain, "gpu": evaluation.environment.gpu}


def built_ahead(box: Sandbox, groups: Sequence[Sequence[TimedKernel]]) -> Iterator[tuple[Sequence[TimedKernel], Outcomes]]:
    """Each group with its builds, in order; later groups are built meanwhile."""
    pool = ThreadPoolExecutor(1)
    try:
        building = [pool.submit(_built, box, group) for group in groups]
        for group, outcomes in zip(groups, building, strict=True):
            yield group, outcomes.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _built(box: Sandbox, group: Sequence[TimedKernel]) -> Outcomes:
    return dict(box.build([each.candidate for each in group], group[0].task))


def timed(box: Sandbox, group: Sequence[TimedKernel], outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    """A row for each kernel of a group, whose task is one."""
    built = [position for position, outcome in outcomes.items() if isinstance(outcome, Built)]
    for position, outcome in outcomes.items():
        if not isinstance(outcome, Built):
            yield row_of(group[position], outcome)
    wanted = [outcome for position in built if isinstance(outcome := outcomes[position], Built)]
    for place, evaluation in box.screen(wanted, group[0].task):
        yield row_of(group[built[place]], evaluation)


def part_of(judged: Sequence[TimedKernel], part: str) -> list[TimedKernel]:
    """The kernels of every N-th shape, from the I-th on. Raises: UsageError unless `part` is I/N with I from 1 to N."""
    place, step = read_part(part)
    mine = set(list(dict.fromkeys(each.task.id for each in judged))[place::step])
    return [each for each in judged if each.task.id in mine]


def measure(judged: Sequence[TimedKernel], out: Path, seconds: float) -> None:
    begin_s = time.monotonic()
    known = {json.loads(line)["name"] for line in out.read_text().splitlines()} if out.exists() else set()
    missing = sorted((each for each in judged if each.name not in known), key=lambda each: each.task.id)
    groups = [list(group) for _, group in itertools.groupby(missing, key=lambda each: each.task.id)]
    if not groups:
        return
    with open_sandbox_of(groups[0][0].task.arch, Settings(device="cuda:0"), lambda _event: None) as box, out.open("a") as file:
        for group, outcomes in built_ahead(box, groups):
            for row in timed(box, group, outcomes):
                file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{group[0].task.shape}: {len(group)} kernels, {time.monotonic() - begin_s:.0f} s", flush=True)
            if time.monotonic() - begin_s > seconds:
                return


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drawn", type=Path, default=DRAWN, help="the drawn schedules, as `draw` wrote them")
    parser.add_argument("--free", action="store_true", help="free sources, not the drawn schedules")
    parser.add_argument("--extra", type=Path, help="folder of the sources that lie outside the repository")
    parser.add_argument("--seconds", type=float, default=150.0, help="no further shape starts after this time")
    parser.add_argument("--part", default="1/1", help="I/N: the shapes of the I-th of N processes, each with its GPU and file")
    options = parser.parse_args()
    judged = list(free(options.extra) if options.free else scheduled(options.drawn))
    measure(part_of(judged, options.part), options.out, options.seconds)


if __name__ == "__main__":
    execute(main)
