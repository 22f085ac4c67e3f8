"""The timer's own test: a kernel against itself, and this timer against another version in one run.

Run from the repository's root on a machine with a GPU:
    python -m benchmarks.ruler itself --out FILE.json
    python -m benchmarks.ruler versions --old FOLDER --out FILE.json
`itself`: the same kernel in both slots of paired rounds. Gives ratios, and how many nominal 95 % intervals contain 1.
`versions`: workers of both versions evaluate the same compiled kernels in turns on one GPU. FOLDER is the checkout of the
other version. Gives times, and the seconds of an evaluation.
"""

import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, cache_argument, execute, result_arguments, script, stamp, write_json
from benchmarks.ruler.prior_kernels import best_of_the_prior, task_of
from cudal2_agent.contract.records.evaluation import Timing
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.reward.speedup import paired_speedup
from cudal2_agent.contract.settings.options import TimeOptions, VerifyOptions
from cudal2_agent.sandbox.workers.messages import Evaluate

# From 2 us to 1 ms on an H200.
OWN_SHAPES = ((256, 256, 256), (1024, 1024, 512), (4096, 1024, 512), (2048, 2048, 2048), (8192, 8192, 6144))
SHAPES = (
    (64, 64, 64),
    (128, 128, 2048),
    (256, 1024, 512),
    (64, 64, 16384),
    (1024, 1024, 1024),
    (4096, 1024, 512),
    (2048, 2048, 2048),
    (8192, 256, 4096),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
)
OFFLINE_REPEATS, SERVER_REPEATS = 40, 4
LANE_USES = 4  # repeats on the same two lanes
PAIRED_ROUNDS = 21
TURNS = 3
CANDIDATES = 4
# The worker of one version, in the folder of its checkout. Where a part was in earlier versions stands beside where it is.
_CHILD = """
import importlib, json, sys, time
from pathlib import Path

installed = "cudal2_agent" if Path("cudal2_agent").is_dir() else ""  # before, the parts were at the top

def part(name, *places):
    for place in places:
        try:
            return getattr(importlib.import_module((installed + place).lstrip(".")), name)
        except ModuleNotFoundError as exc:
            missing = exc
    raise SystemExit(f"no {name} in {Path.cwd()}: {missing}")

Evaluate = part("Evaluate", ".sandbox.workers.messages", ".sandbox.messages")
Built = part("Built", ".contract.records.build", ".contract.build")
TimeOptions, VerifyOptions = (
    part(name, ".contract.settings.options", ".contract.options") for name in ("TimeOptions", "VerifyOptions")
)
Device = part("Device", ".sandbox.cuda.device")
Evaluator = part("Evaluator", ".sandbox.cuda.evaluator")

def of_this_version(line):
    plain = json.loads(line)  # a request with fields that this version may not know
    for name, record in (("built", Built), ("verify", VerifyOptions), ("time", TimeOptions)):
        plain[name] = {field: value for field, value in plain[name].items() if field in record.model_fields}
    return Evaluate.model_validate(plain)

answers = sys.stdout
sys.stdout = sys.stderr
evaluator = Evaluator(Device(0), lambda _stage: None)
print("ready", file=answers, flush=True)
for line in sys.stdin:
    request = of_this_version(line)
    begin = time.perf_counter()
    done = evaluator.evaluate(request)
    evaluation = done.evaluation
    answer = {"seconds": time.perf_counter() - begin, "status": evaluation.status}
    if evaluation.status == "measured":
        answer["samples_us"] = evaluation.timing.samples_us
        answer["baselines"] = {one.name: one.samples_us for one in evaluation.baselines}
        answer["notes"] = evaluation.notes
    else:
        answer["message"] = str(evaluation)[:600]
    print(json.dumps(answer), file=answers, flush=True)
"""


# ---- a kernel against itself -----------------------------------------------------------------------------------------------
def itself(cache: Path) -> list[Row]:
    from cudal2_agent.sandbox.cuda.device import Device

    device = Device(0)
    rows = []
    for shape in OWN_SHAPES:
        for mode, repeats in ((TimingMode.OFFLINE, OFFLINE_REPEATS), (TimingMode.SERVER, SERVER_REPEATS)):
            rows.append(_against_itself(device, task_of(shape, mode), repeats, cache))
            print(_itself_line(rows[-1]), flush=True)
    return rows


def _against_itself(device: Any, task: GemmTask, repeats: int, cache: Path) -> Row:
    from cudal2_agent.sandbox.cuda.evaluator import load
    from cudal2_agent.sandbox.cuda.timing.sampling import open_lane
    from cudal2_agent.sandbox.cuda.timing.track import Track

    (built,) = best_of_the_prior(task, 1, cache)
    options = TimeOptions(rounds=PAIRED_ROUNDS)
    draw = random.Random(secrets.randbits(64))
    track = Track(task, device, options)
    track.pools.renew(draw)
    kernel = load(built, task, device)
    ratios, intervals, times = [], [], []
    lanes: dict[str, Any] = {}
    for repeat in range(repeats):
        if repeat % LANE_USES == 0:
            lanes = {name: open_lane(track, kernel, options, draw) for name in ("one", "two")}
            for lane in lanes.values():
                lane.sample_us()
        samples: dict[str, list[float]] = {"one": [], "two": []}
        for _ in range(options.rounds):
            for name in draw.sample(list(lanes), 2):
                samples[name].append(lanes[name].sample_us())
        one, two = (Timing(name=name, samples_us=tuple(samples[name])) for name in samples)
        found = paired_speedup(one, two, seed=repeat)
        ratios.append(found.ratio)
        intervals.append((found.low, found.high))
        times.append(statistics.median(samples["one"]))
    lanes.clear()
    kernel.close()
    track.close()
    device.pool.free_all_blocks()
    return {
        "shape": task.shape,
        "mode": task.mode.value,
        "time_us": statistics.median(times),
        "ratio": statistics.geometric_mean(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "intervals": len(intervals),
        "contain_1": sum(low <= 1 <= high for low, high in intervals),
        "widest": max(high - low for low, high in intervals),
    }


def _itself_line(row: Row) -> str:
    return (
        f"{row['shape']:>16} {row['mode']:>7} {row['time_us']:9.2f} us  ratio {row['ratio']:.4f} "
        f"({row['lowest']:.4f} to {row['highest']:.4f})  {row['contain_1']} of {row['intervals']} intervals contain 1"
    )


# ---- two versions ----------------------------------------------------------------------------------------------------------
class VersionWorker:
    """The evaluator of one version in its own process."""

    def __init__(self, folder: Path) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def ask(self, request: Evaluate) -> Row:
        assert self._process.stdin is not None
        plain = request.model_dump(mode="json")
        plain["verify"]["seed"] = plain["verify"]["seed"] or 0  # versions up to 89dc97f demand a number
        print(json.dumps(plain), file=self._process.stdin, flush=True)
        told: dict[str, Any] = json.loads(self._answer())
        return told

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with {self._process.wait()}")
        return line


def versions(old: Path, cache: Path, deadline: float) -> list[Row]:
    workers = {"old": VersionWorker(old.resolve()), "new": VersionWorker(Path.cwd())}
    rows = []
    for shape in SHAPES:
        if time.monotonic() > deadline:
            print(f"{shape}: left out, the time limit is reached", flush=True)
            continue
        rows.append(_compared(task_of(shape), workers, cache))
        print(_version_line(rows[-1]), flush=True)
    for worker in workers.values():
        worker.close()
    return rows


def _compared(task: GemmTask, workers: dict[str, VersionWorker], cache: Path) -> Row:
    """Times of the first kernel in both versions, and the seconds of each evaluation of all kernels."""
    built = best_of_the_prior(task, CANDIDATES, cache)
    quick = TimeOptions(rounds=7, all_baselines=False, side=False)
    verify = VerifyOptions(rounds=3)
    requests = [Evaluate(message="evaluate", built=each, task=task, verify=verify, time=quick) for each in built]
    times: dict[str, list[float]] = {name: [] for name in workers}
    speedups: dict[str, list[float]] = {name: [] for name in workers}
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for worker in workers.values():
        worker.ask(requests[0])  # prepares operands and baselines of the task
    for turn in range(TURNS):
        for name in ("old", "new") if turn % 2 else ("new", "old"):
            for index, request in enumerate(requests):
                told = workers[name].ask(request)
                if told["status"] != "measured":
                    raise SystemExit(f"{task.shape}, {name}: {told}")
                seconds[name].append(told["seconds"])
                if index == 0:
                    times[name].append(statistics.median(told["samples_us"]))
                    (samples,) = told["baselines"].values()
                    pairs = zip(samples, told["samples_us"], strict=True)
                    speedups[name].append(statistics.median(theirs / ours for theirs, ours in pairs))
    return {
        "shape": task.shape,
        **{f"{name}_us": statistics.median(values) for name, values in times.items()},
        **{f"{name}_speedup": statistics.median(values) for name, values in speedups.items()},
        **{f"{name}_seconds": statistics.median(values) for name, values in seconds.items()},
    }


def _version_line(row: Row) -> str:
    return (
        f"{row['shape']:>16}  {row['old_us']:9.3f} {row['new_us']:9.3f} us  {row['new_us'] / row['old_us']:.4f}   "
        f"over AutoTuning {row['old_speedup']:.3f} {row['new_speedup']:.3f}   "
        f"evaluation {row['old_seconds']:.2f} {row['new_seconds']:.2f} s "
        f"{row['new_seconds'] / row['old_seconds']:.2f}"
    )


def main() -> None:
    parser = script(__file__, __doc__)
    result_arguments(parser)
    parser.add_argument("what", choices=["itself", "versions"])
    parser.add_argument("--old", type=Path, help="checkout of the other version")
    parser.add_argument("--minutes", type=float, default=8.0)
    cache_argument(parser, "ruler-cache")
    options = parser.parse_args()
    head = stamp(__file__, options.commit)
    if options.what == "itself":
        rows = itself(options.cache)
    else:
        rows = versions(options.old, options.cache, time.monotonic() + 60 * options.minutes)
    write_json(options.out, {**head, "rows": rows})


if __name__ == "__main__":
    execute(main)
