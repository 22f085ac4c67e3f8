"""Modules measured on this GPU: kernels written by hand, or the fuser's first ones, beside every baseline of PyTorch.

    python -m benchmarks.modules.timing --out FILE [--problems FOLDER_OR_FILE...] [--seconds 300]

One JSON line a task: times of the candidate and of all baselines, tests, notes and seconds of each stage; failures too.
Problem files (.py) are traced in the jail; a .json holds a task that was traced elsewhere.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import cache_argument
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Measured, Wrong
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.reward.speedup import median_us, paired_speedup
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions
from cudal2_agent.policies.fusion.policy import FusionPolicy
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.cuda.batch_evaluator import BatchEvaluator
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.modules.tracing.tracer import TraceOptions, Tracer
from cudal2_agent.sandbox.workers.messages import Done, Evaluate, StageEntered
from tests.gpu.modules_by_hand import EXAMPLES


class Stages:
    """Seconds of each stage of an evaluation."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last: tuple[str, float] | None = None

    def __call__(self, message: Any) -> None:
        if isinstance(message, StageEntered):
            self.end()
            self._last = (message.stage, time.monotonic())

    def end(self) -> None:
        if self._last is not None:
            stage, begin = self._last
            self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.monotonic() - begin, 3)
        self._last = None


def by_hand() -> Iterator[tuple[str, ModuleTask | str, Sequence[Candidate | None]]]:
    for name, make in EXAMPLES.items():
        example = make()
        yield name, example.task, [example.right]


def of_problems(paths: Sequence[Path], device: Device) -> Iterator[tuple[str, ModuleTask | str, Sequence[Candidate | None]]]:
    """Traced tasks with the fuser's first candidate; words in place of a task that has none."""
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    with Tracer(TraceOptions()) as tracer:
        for file in (each for each in files if each.suffix in (".py", ".json")):
            name = f"{file.parent.name}/{file.stem}"
            try:
                if file.suffix == ".json":
                    task = ModuleTask.model_validate_json(file.read_text())
                else:
                    task = tracer.trace(file.read_text(), name, arch=device.arch)
                policy = FusionPolicy()
                candidates = policy.propose(Observation(task=task, chip=device.chip, round=0, seed=0), 1)
                yield name, task if candidates else policy.exhausted, candidates or [None]
            except Cudal2Error as exc:
                yield name, f"{type(exc).__name__}: {exc}", [None]


def measured(
    name: str, task: ModuleTask, one: Candidate, builder: Builder, evaluator: BatchEvaluator, stages: Stages, time_: TimeOptions
) -> dict[str, Any]:
    line: dict[str, Any] = {"task": name, "bytes": task.operand_bytes, "flops": task.flops}
    built = builder.build_one(one, task)
    if not isinstance(built, Built):
        return line | {"status": built.status, "message": built.headline}
    stages.seconds = {}
    answer = evaluator.evaluate(Evaluate(built=built, task=task, verify=VerifyOptions(), time=time_, effort="full"))
    stages.end()
    assert isinstance(answer, Done)  # a time was asked for
    found = answer.evaluation
    line |= {"status": found.status, "seconds": stages.seconds}
    if not isinstance(found, Measured):
        tests = found.tests if isinstance(found, Wrong) else ()
        return line | {"message": found.headline, "tests": [f"{test.tier}/{test.name}" for test in tests]}
    best = min(found.baselines, key=median_us) if found.baselines else None
    speedup = None if best is None else paired_speedup(found.timing, best)
    return line | {
        "us": round(median_us(found.timing), 3),
        "baselines_us": {each.name: round(median_us(each), 3) for each in found.baselines},
        "unsteady": {each.name: round(each.unsteadiness, 4) for each in (found.timing, *found.baselines)},
        "fastest": None if best is None else best.name,
        "speedup": None if speedup is None else [round(each, 4) for each in (speedup.ratio, speedup.low, speedup.high)],
        "worst": max((test.worst for test in found.tests), default=0.0),
        "ruler": found.ruler and {"sets": found.ruler.sets, "launches": found.ruler.launches, "weakened": found.ruler.weakened},
        "details": {each.name: each.detail for each in found.baselines},
        "notes": found.notes,
        "side": found.side.model_dump(),
        "telemetry": {"sm_mhz": found.telemetry.sm_clock_mhz[-1:], "reasons": found.telemetry.throttle_reasons},
        "gpu": found.environment.gpu,
        "torch": found.environment.torch,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modules.timing", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=Path, nargs="*", default=[])
    parser.add_argument("--only", nargs="*", help="names of the tasks that are written by hand")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no further task begins")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--without-autotune", action="store_true")
    cache_argument(parser, "modules-cache")
    given = parser.parse_args()
    device, stages, begin = Device(0), Stages(), time.monotonic()
    evaluator = BatchEvaluator(device, stages)
    builder = Builder(CompileOptions(cache_dir=str(given.cache), jobs=4), device.chip)
    options = TimeOptions(rounds=given.rounds, max_autotune=not given.without_autotune, side=False)
    written = (each for each in by_hand() if given.only is None or each[0] in given.only)
    tasks = [*written] if not given.problems else of_problems(given.problems, device)
    with given.out.open("a") as out:

        def say(line: dict[str, Any]) -> None:
            print(json.dumps(line), flush=True)
            out.write(json.dumps(line) + "\n")
            out.flush()

        for name, task, candidates in tasks:
            for one in candidates:
                if time.monotonic() - begin > given.seconds:
                    break
                started = time.monotonic()
                if one is None or isinstance(task, str):
                    say({"task": name, "status": "no candidate", "message": task})
                    continue
                try:
                    line = measured(name, task, one, builder, evaluator, stages, options)
                except Exception as exc:  # noqa: BLE001 (one task's failure is a line of the results)
                    line = {"task": name, "status": "failed", "message": f"{type(exc).__name__}: {str(exc)[:600]}"}
                line["wall_s"] = round(time.monotonic() - started, 1)
                say(line)
    builder.close()


if __name__ == "__main__":
    main()
