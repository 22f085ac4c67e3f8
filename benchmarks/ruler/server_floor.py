"""What a single launch costs in server mode before a kernel does any work, by the timer's own ruler.

Run from the repository's root on a machine with a GPU, in less than a minute:
    python -m benchmarks.ruler.server_floor --out FILE.json [--rounds 15] [--intervals 0 200] [--commit COMMIT]
Trivial kernels (`server_floor.cu`) run beside cuBLASLt-AutoTuning and the prior's first schedules of 64x64x64, in the same
rounds in random order. The rows of the file, times in microseconds:
- `server_us`: single launches onto an idle GPU with a swept L2, at exponential intervals of mean `interval_us`.
- `back_to_back_us`: many launches of one graph without programmatic launch, as offline; null where nothing is launched.
- `zero_us`: the time between the two events of the graph with nothing between them, the last one measured. Every `server_us`
  is less by it, so that `no kernel` is near 0.
"""

import random
import secrets
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import Row, cache_argument, execute, script, stamp, write_json
from benchmarks.ruler.prior_kernels import best_of_the_prior, task_of
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.plan.plan import Launch, LaunchPlan, TensorArg, TensorMapArg, TensorMapSpec
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions
from cudal2_agent.sandbox.building.builder import Builder

TASK = task_of((64, 64, 64), TimingMode.SERVER)
SCHEDULES = 3  # of the prior's first
BACK_TO_BACK, REQUESTS = 128, 16  # launches of a sample
_A, _D = TensorArg(tensor="A"), TensorArg(tensor="D", access="write")
_BOX = TensorMapArg(tensor_map=TensorMapSpec(of="A", box=(64, 8)))


def _launch(entry: str, *args: Any, ctas: int | str = "SMS", **attributes: Any) -> Launch:
    return Launch(entry=entry, grid=(ctas, 1, 1), block=(128, 1, 1), args=args, **attributes)


PROBES: Mapping[str, Launch] = {
    "empty, 1 CTA": _launch("nothing", _D, ctas=1),
    "empty": _launch("nothing", _D),
    "empty, clusters of 2": _launch("nothing", _D, ctas="SMS//2*2", cluster=(2, 1, 1)),
    "empty, 200 KB of shared memory": _launch("nothing", _D, dynamic_smem=200 * 1024),
    "empty, programmatic": _launch("nothing", _D, programmatic=True),
    "a programmatic wait": _launch("waits", _D, programmatic=True),
    "a line from DRAM": _launch("line", _A, _D),
    "a box through a tensor map": _launch("box", _BOX, _D),
    "24 KB of instructions": _launch("straight", _D),
}


def candidates(task: GemmTask) -> dict[str, Candidate]:
    """The trivial kernels as candidates, by name."""
    source = files(__package__).joinpath("server_floor.cu").read_text(encoding="utf-8")
    plans = {name: LaunchPlan(arch=task.arch, launches=(launch,)) for name, launch in PROBES.items()}
    return {name: Candidate(source=source, plan=plan, origin=Origin(policy="probe")) for name, plan in plans.items()}


def compiled(task: GemmTask, chip: Chip, cache: Path) -> dict[str, Built]:
    """The trivial kernels, compiled. Raises: SystemExit where one does not build."""
    named = candidates(task)
    builder = Builder(CompileOptions(cache_dir=str(cache)), chip)
    outcomes = {name: builder.build_one(candidate, task) for name, candidate in named.items()}
    failed = {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, Built)}
    if failed:
        raise SystemExit(f"these kernels do not build: {failed}")
    return {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Built)}


class NoKernel:
    """A contender that launches nothing."""

    name = "no kernel"
    workspace_bytes = zero_bytes = local_bytes = 0
    zero: bool | Literal["restored"] = False
    programmatic = atomics = False

    def bind(self, operands: Any) -> "NoKernel":  # noqa: ARG002 (nothing reads them)
        return self

    def enqueue(self, stream: int, *, programmatic: bool | None = None) -> None:
        """Enqueues nothing."""

    def altered(self) -> tuple[str, ...]:
        return ()


def measured(device: Any, rounds: int, intervals: Sequence[float], cache: Path) -> Iterator[Row]:
    """The rows of the trivial kernels, of AutoTuning and of the prior's schedules."""
    from cudal2_agent.sandbox.cuda.evaluator import load
    from cudal2_agent.sandbox.cuda.timing.sampling import OfflineLane, ServerLane
    from cudal2_agent.sandbox.cuda.timing.timer import Timer

    draw, options = random.Random(secrets.randbits(64)), _options(BACK_TO_BACK)
    timer = Timer(TASK, device)
    track = timer.track_for(options)
    contenders: dict[str, Any] = {NoKernel.name: NoKernel()}
    contenders |= {name: load(built, TASK, device) for name, built in compiled(TASK, device.chip, cache).items()}
    contenders |= {AUTOTUNED: timer.open_baselines(options).contenders[AUTOTUNED][0]}
    own = best_of_the_prior(TASK, SCHEDULES, cache)
    contenders |= {f"schedule {place} of the prior": load(built, TASK, device) for place, built in enumerate(own)}
    lanes: dict[tuple[str, float | None], Any] = {
        (name, interval): ServerLane(track, one, REQUESTS, interval, draw)
        for name, one in contenders.items()
        for interval in intervals
    }
    lanes |= {
        (name, None): OfflineLane(track, one, 0.0, draw, programmatic=False, launches=BACK_TO_BACK)
        for name, one in contenders.items()
        if name != NoKernel.name
    }
    samples = _sampled(lanes, rounds, draw)
    for name in contenders:
        back_to_back = samples.get((name, None))
        for interval in intervals:
            row = {"kernel": name, "interval_us": interval, "server_us": statistics.median(samples[name, interval])}
            row["zero_us"] = lanes[name, interval].zero_us
            told = {"back_to_back_us": statistics.median(back_to_back) if back_to_back else None}
            yield {**row, **told, "samples_us": [round(us, 3) for us in samples[name, interval]]}
    lanes.clear()
    timer.close()


def _options(launches: int) -> TimeOptions:
    return TimeOptions(all_baselines=False, side=False, server_launches=launches)


def _sampled(lanes: Mapping[Any, Any], rounds: int, draw: random.Random) -> dict[Any, list[float]]:
    """Samples of every lane from the same rounds, after one that does not count."""
    samples: dict[Any, list[float]] = {key: [] for key in lanes}
    for lane in lanes.values():
        lane.sample_us()
    for _ in range(rounds):
        for key in draw.sample(list(lanes), len(lanes)):
            samples[key].append(lanes[key].sample_us())
    return samples


def main() -> None:
    parser = script(__file__, __doc__, measures=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--intervals", type=float, nargs="+", default=[0.0, 200.0])
    cache_argument(parser, "ruler-cache")
    options = parser.parse_args()
    from cudal2_agent.sandbox.cuda.device import Device

    rows = list(measured(Device(0), options.rounds, options.intervals, options.cache))
    for row in rows:
        back = "" if row["back_to_back_us"] is None else f"{row['back_to_back_us']:8.3f} us back to back"
        print(f"{row['kernel']:>32} {row['interval_us']:6.0f} us apart {row['server_us']:8.3f} us {back}", flush=True)
    write_json(options.out, {**stamp(__file__, options.commit), "rows": rows})


if __name__ == "__main__":
    execute(main)
