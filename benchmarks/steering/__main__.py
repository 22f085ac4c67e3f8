"""Whether the diagnosis helps the schedule policy at an equal number of candidates. Arms: off, timed, counters.

Run from the repository's root, on a machine with the GPU and ncu:
    python -m benchmarks.steering --commit HASH --minutes 8 --out benchmarks/results/NAME.json
Writes JSON and Markdown after every shape and seed. An existing file is continued. A shape and seed that the time limit
interrupts is left out completely.

The arms of a shape and seed run concurrently, share every measurement and differ only in what steers them. At the end their
fastest kernels, at half the budget and at the whole, are measured again in turns, each with cuBLASLt-AutoTuning. The medians
of these measurements are compared.
"""

import argparse
import datetime
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.steering.arms import ARMS, Arm, ArmSearch, Late, Shared
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import ProfilerUnavailable
from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Environment
from cudal2_agent.contract.records.task import Arch, GemmTask, parse_shape
from cudal2_agent.contract.reward.speedup import ratio_over
from cudal2_agent.contract.settings.settings import load_settings

SHAPES = (
    "64x64x64",
    "512x512x4096",
    "4096x1024x512",
    "1000x1000x1000",
    "128x128x16384",
    "2048x2048x2048",
    "256x4096x1024",
    "8192x512x2048",
)
FASTER = 1.02  # speed ratio from which a candidate counts as faster


class SteeringRow(Record):
    """One shape and seed. `finals`: arm → speedup over AutoTuning of its fastest kernel at half the budget and at the whole."""

    shape: str
    seed: int
    budget: int
    arms: tuple[Arm, ...]
    finals: dict[str, tuple[float | None, float | None]]
    seconds: float

    def ratio(self, arm: str, place: int) -> float | None:
        """Speed of the kernel of an arm over that of the arm `off`. `place`: 0 for half the budget, 1 for the whole."""
        mine, other = self.finals[arm][place], self.finals["off"][place]
        return mine / other if mine and other else None


class SteeringResult(Record):
    benchmark: str = "steering"
    commit: str
    date: str
    environment: Environment | None
    rows: tuple[SteeringRow, ...]


def play(task: GemmTask, seed: int, budget: int, round_size: int, repeats: int, shared: Shared) -> SteeringRow:
    """All arms of one shape and seed. Raises: Late, ProfilerUnavailable."""
    started = time.monotonic()
    searches = [ArmSearch(name, task, seed, shared) for name in ARMS]
    with ThreadPoolExecutor(len(searches)) as pool:
        arms = list(pool.map(lambda search: search.play(budget, round_size), searches))
    best = {arm.name: (arm.best(budget // 2), arm.best(budget)) for arm in arms}
    finalists = {one.candidate_id: search for search in searches for one in best[search.name] if one}
    samples: dict[str, list[float]] = {name: [] for name in finalists}
    for _ in range(repeats):
        for name, search in finalists.items():
            evaluation = shared.again(search.built(name), task)
            speedup = ratio_over(evaluation, AUTOTUNED)
            samples[name] += [speedup] if speedup else []
    speed = {name: statistics.median(found) if found else None for name, found in samples.items()}
    finals = {arm: tuple(speed[one.candidate_id] if one else None for one in pair) for arm, pair in best.items()}
    row = {"shape": task.shape, "seed": seed, "budget": budget, "arms": arms, "finals": finals}
    return SteeringRow.model_validate({**row, "seconds": time.monotonic() - started})


def render(result: SteeringResult) -> str:
    gpu = result.environment.gpu if result.environment else "no GPU"
    lines = [
        "# What steering by the diagnosis is worth\n",
        f"{gpu}, {result.date}, commit {result.commit}; {len(result.rows)} searches an arm.\n",
        "Speed of each arm's fastest kernel over that of the arm without steering, at half the budget and at the whole.\n",
        "| shape | seed | candidates | " + " | ".join(ARMS[1:]) + " | off over AutoTuning |",
        "|---|---|---|" + "---|" * len(ARMS),
    ]
    for row in result.rows:
        cells = " | ".join(f"{_shown(row.ratio(arm, 0))}, {_shown(row.ratio(arm, 1))}" for arm in ARMS[1:])
        lines.append(f"| {row.shape} | {row.seed} | {row.budget} | {cells} | {_shown(row.finals['off'][1])} |")
    return "\n".join([*lines, "", *_means(result.rows), "", *_costs(result.rows), ""])


def _means(rows: Sequence[SteeringRow]) -> Iterator[str]:
    for arm in ARMS[1:]:
        for place, when in enumerate(("half the budget", "the whole budget")):
            logs = {
                seed: [math.log(ratio) for row in rows if row.seed == seed and (ratio := row.ratio(arm, place))]
                for seed in sorted({row.seed for row in rows})
            }
            every = [log for found in logs.values() for log in found]
            if not every:
                continue
            seeds = [math.exp(statistics.fmean(found)) for found in logs.values() if found]
            better, worse = sum(log > math.log(FASTER) for log in every), sum(log < -math.log(FASTER) for log in every)
            yield (
                f"- {arm}, {when}: geometric mean {math.exp(statistics.fmean(every)):.4f}x (by seed {min(seeds):.4f} to "
                f"{max(seeds):.4f}); more than 2 % faster in {better} and slower in {worse} of {len(every)}."
            )


def _costs(rows: Sequence[SteeringRow]) -> Iterator[str]:
    for name in ARMS:
        arms = [arm for row in rows for arm in row.arms if arm.name == name]
        tried = [one for arm in arms for one in arm.tried]
        relieving = [one.gain for one in tried if one.relieves and one.gain is not None]
        told = (
            f"; {len(relieving)} written to relieve a bottleneck, {sum(gain > FASTER for gain in relieving)} of them more than "
            "2 % faster than what they were to relieve"
        )
        yield (
            f"- {name}: {len(tried)} candidates, {sum(arm.evaluate_s for arm in arms):.0f} s to verify and time them, "
            f"{sum(arm.propose_s for arm in arms):.0f} s to propose them, {sum(arm.profile_s for arm in arms):.0f} s for "
            f"{sum(arm.profiles for arm in arms)} profiles{told if relieving else ''}."
        )


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds; each runs all shapes before the next starts")
    parser.add_argument("--budget", type=int, default=24)
    parser.add_argument("--round-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each winner")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--commit", required=True, help="the measured commit")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    rows = list(SteeringResult.model_validate_json(arguments.out.read_text("utf-8")).rows) if arguments.out.exists() else []
    done = {(row.shape, row.seed, row.budget) for row in rows}
    tasks = [GemmTask(m=m, n=n, k=k, arch=Arch.SM_90A) for m, n, k in map(parse_shape, arguments.shapes)]

    def emit(event: Event) -> None:
        if isinstance(event, Notice):
            print(event.message)

    with open_sandbox_of(tasks[0].arch, load_settings(), emit) as sandbox:
        if not sandbox.can_measure:
            raise SystemExit("this benchmark measures times and needs an sm_90a GPU")
        shared = Shared(sandbox, deadline)
        try:
            for seed in range(arguments.seeds):
                for task in tasks:
                    if (task.shape, seed, arguments.budget) in done:
                        continue
                    rows.append(play(task, seed, arguments.budget, arguments.round_size, arguments.repeats, shared))
                    print(f"{task.shape} seed {seed}: {rows[-1].seconds:.0f} s", flush=True)
                    today = datetime.datetime.now(datetime.UTC).date().isoformat()
                    result = SteeringResult(
                        commit=arguments.commit, date=today, environment=sandbox.environment, rows=tuple(rows)
                    )
                    arguments.out.parent.mkdir(parents=True, exist_ok=True)
                    arguments.out.write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
                    arguments.out.with_suffix(".md").write_text(render(result), encoding="utf-8")
        except Late:
            print("the time limit is reached")
        except ProfilerUnavailable as exc:
            raise SystemExit(f"the arm `counters` cannot run: {exc}") from exc
    if rows:
        print(arguments.out.with_suffix(".md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
