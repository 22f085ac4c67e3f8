"""Modules whose kernels are written by hand, measured on this GPU beside every baseline of PyTorch.

    python -m benchmarks.modules.timing --out FILE [--seconds 300]

One JSON line a task: times of the candidate and of all baselines, tests, notes and seconds of each stage; failures too.
"""

import argparse
import json
import time
from pathlib import Path

from benchmarks.harness import cache_argument
from benchmarks.modules.measuring import Stages
from benchmarks.modules.rows import Row, attempt_of, figures_of, head_of
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.cuda.batch_evaluator import BatchEvaluator
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.workers.messages import Done, Evaluate
from tests.gpu.modules_by_hand import EXAMPLES


def measured(task: ModuleTask, one: Candidate, builder: Builder, evaluator: BatchEvaluator, options: TimeOptions) -> Row:
    built = builder.build_one(one, task)
    if not isinstance(built, Built):
        return attempt_of(one, built)
    answer = evaluator.evaluate(Evaluate(built=built, task=task, verify=VerifyOptions(), time=options, effort="full"))
    assert isinstance(answer, Done)  # a time was asked for
    found = answer.evaluation
    return attempt_of(one, found) | (figures_of(found) if isinstance(found, Measured) else {})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modules.timing", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of the tasks")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no further task begins")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--without-autotune", action="store_true")
    cache_argument(parser, "modules-cache")
    given = parser.parse_args()
    device, stages, begin = Device(0), Stages(lambda _: None, None), time.monotonic()
    evaluator = BatchEvaluator(device, stages)
    builder = Builder(CompileOptions(cache_dir=str(given.cache), jobs=4), device.chip)
    options = TimeOptions(rounds=given.rounds, max_autotune=not given.without_autotune, side=False)
    for name, make in EXAMPLES.items():
        if (given.only is not None and name not in given.only) or time.monotonic() - begin > given.seconds:
            continue
        started, example, stages.seconds = time.monotonic(), make(), {}
        row = head_of(example.task)
        try:
            row |= measured(example.task, example.right, builder, evaluator, options)
        except Exception as exc:  # noqa: BLE001 (one task's failure is a line of the results)
            row |= {"status": "failed", "message": f"{type(exc).__name__}: {str(exc)[:600]}"}
        stages.end()
        row |= {"seconds": stages.seconds, "wall_s": round(time.monotonic() - started, 1)}
        print(json.dumps(row), flush=True)
        with given.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
    builder.close()


if __name__ == "__main__":
    main()
