"""`cudal2-agent optimize` over a list of shapes on the GPU of this machine, each in its own process.

Run from the repository's root: python -m benchmarks.optimize_shapes --commit HASH --out benchmarks/results/NAME.json
Writes JSON with the command, commit, date and environment; prints a table. Times in microseconds.
"""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.evaluation import BASELINES, Evaluation, Measured
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import median_us, speedup_over

SHAPES = ("4096x1024x512", "64x64x64", "128x128x16384", "2048x2048x2048", "8192x8192x8192", "1000x1000x1000")
CODE = "from cudal2_agent.agent.cli.main import main; main()"


def optimize(shape: str, minutes: float, budget: int, extra: list[str], folder: Path) -> dict[str, Any]:
    """The result of one run."""
    command = [sys.executable, "-c", CODE, "optimize", "--shape", shape, "--minutes", str(minutes), "--budget", str(budget)]
    started = time.monotonic()
    done = subprocess.run([*command, "--out", str(folder), "--json", *extra], stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(done.stdout)
    row = {
        "command": f"cudal2-agent optimize --shape {shape} --minutes {minutes:g} --budget {budget} {' '.join(extra)}".strip(),
        "wall_seconds": round(time.monotonic() - started, 1),
        "steps": answer["steps"],
        "reason": answer["reason"],
        "task": answer["task"],
    }
    evaluation = TypeAdapter[Evaluation](Evaluation).validate_json((folder / "evaluation.json").read_text())
    return row | (measured_fields(evaluation, answer) if isinstance(evaluation, Measured) else {"status": evaluation.status})


def measured_fields(evaluation: Measured, answer: dict[str, Any]) -> dict[str, Any]:
    task = GemmTask.model_validate(answer["task"])
    speedups = {name: speedup_over(evaluation, name) for name in BASELINES}
    return {
        "status": evaluation.status,
        "best": answer["best"]["label"],
        "time_us": round(median_us(evaluation.timing), 3),
        "tflops": round(task.flops / median_us(evaluation.timing) / 1e6, 1),
        "floor_us": round(roofline_us(task, REFERENCE_CHIPS[task.arch]), 3),
        "baselines_us": {timing.name: round(median_us(timing), 3) for timing in evaluation.baselines},
        "speedup": {
            name: [round(value, 4) for value in (found.ratio, found.low, found.high)]
            for name, found in speedups.items()
            if found
        },
        "side": evaluation.side.model_dump(mode="json"),
        "verification": [f"{test.tier}/{test.name}" for test in evaluation.tests],
        "sm_clock_mhz": [min(evaluation.telemetry.sm_clock_mhz, default=0), max(evaluation.telemetry.sm_clock_mhz, default=0)],
        "notes": list(evaluation.notes),
        "environment": evaluation.environment.model_dump(mode="json"),
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'shape':>16} {'time':>9} {'TFLOP/s':>8} " + " ".join(f"{name:>20}" for name in BASELINES) + "  seconds")
    for row in rows:
        task = row["task"]
        shape = f"{task['m']}x{task['n']}x{task['k']}"
        if row["status"] != "measured":
            print(f"{shape:>16} {row['status']}")
            continue
        versus = " ".join(f"{row['speedup'].get(name, [float('nan')])[0]:>19.3f}x" for name in BASELINES)
        print(f"{shape:>16} {row['time_us']:>9.2f} {row['tflops']:>8.1f} {versus}  {row['wall_seconds']:.0f}  {row['best']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--budget", type=int, default=96)
    parser.add_argument("--commit", required=True, help="the measured commit")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("extra", nargs="*", help="more options of optimize, after --")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for shape in arguments.shapes:
            rows.append(optimize(shape, arguments.minutes, arguments.budget, arguments.extra, Path(scratch) / shape))
            result = {
                "benchmark": "optimize_shapes",
                "commit": arguments.commit,
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "rows": rows,
            }
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
