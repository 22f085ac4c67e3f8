"""A scripted author drives one `optimize` run on the GPU of this machine: the outcome of each of its kernels.

Run from the repository's root: python -m benchmarks.strong_author --commit HASH --out benchmarks/results/NAME.json
Use `--sight executed` if Nsight Compute may not read counters. Writes JSON with the command, commit, date and environment, and
prints a table. Times are in microseconds, from the search (against AutoTuning only) and from the final measurement.
"""

import argparse
import datetime
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from cudal2_agent.agent.cli.session import optimize_task
from cudal2_agent.contract.records.evaluation import AUTOTUNED, BASELINES, Measured
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.speedup import median_us, speedup_over
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.store.store import open_store
from tests.author.script import SCRIPT, TASK, Author, Sight
from tests.doubles.chat_server import ScriptedServer

NAMES = {turn.draft.source: turn.name for turn in SCRIPT}
SHOWN_FINDINGS = 3


def drive(author: Author, home: Path, device: str, minutes: float) -> tuple[list[Step], int]:
    """The steps of one run of the author, and the number of requests."""
    with ScriptedServer(author) as server:
        settings = settings_for(home, server.base_url, device, minutes)
        optimize_task(TASK, settings, home / "out", as_json=False)
        requests = len(server.requests)
    with open_store(settings.store_url) as store:
        [run] = store.runs()
        return store.steps(run.run_id), requests


def settings_for(home: Path, base_url: str, device: str, minutes: float) -> Settings:
    return load_settings(
        home=home,
        device=device,
        minutes=minutes,
        budget=len(SCRIPT),
        policy="chat",
        model="test",
        base_url=base_url,
        chat_samples=1,
        chat_repairs=len(SCRIPT),
        use_knowledge=False,
    )


def row(step: Step, final: bool) -> dict[str, Any]:
    """The outcome of one kernel of the author."""
    findings = step.diagnosis.findings[:SHOWN_FINDINGS] if step.diagnosis else ()
    found = {
        "reply": NAMES[step.candidate.source],
        "final": final,
        "status": step.evaluation.status,
        "message": step.evaluation.fault,
        "diagnosis": step.diagnosis.basis if step.diagnosis else None,
        "findings": [finding.model_dump(mode="json") for finding in findings],
        "counters": [launch.metrics for launch in step.profile.launches] if step.profile else [],
        "seconds": {name: round(value, 3) for name, value in step.seconds.items()},
    }
    return found | (times(step.evaluation) if isinstance(step.evaluation, Measured) else {})


def times(measured: Measured) -> dict[str, Any]:
    speedups = {name: found for name in BASELINES if (found := speedup_over(measured, name))}
    return {
        "time_us": round(median_us(measured.timing), 3),
        "tflops": round(TASK.flops / median_us(measured.timing) / 1e6, 1),
        "baselines_us": {timing.name: round(median_us(timing), 3) for timing in measured.baselines},
        "speedup": {name: [round(value, 4) for value in (one.ratio, one.low, one.high)] for name, one in speedups.items()},
        "environment": measured.environment.model_dump(mode="json"),
    }


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{'reply':<22} {'status':<15} {'us':>8} {'TFLOP/s':>8} {'x AutoTuning':>12}  diagnosis")
    for one in rows:
        name = one["reply"] + (" (final)" if one["final"] else "")
        numbers = f"{one['time_us']:>8.2f} {one['tflops']:>8.1f}" if "time_us" in one else " " * 17
        versus = f"{one['speedup'][AUTOTUNED][0]:>12.3f}" if AUTOTUNED in one.get("speedup", {}) else " " * 12
        found = ", ".join(finding["bottleneck"] for finding in one["findings"])
        said = f"{one['diagnosis']}: {found}" if one["diagnosis"] else one["message"][:80]
        print(f"{name:<22} {one['status']:<15} {numbers} {versus}  {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sight", choices=get_args(Sight), default="profiled", help="what this machine can observe: counters, times or nothing"
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--commit", required=True, help="the measured commit")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    author = Author(arguments.sight)
    with tempfile.TemporaryDirectory() as scratch:
        steps, requests = drive(author, Path(scratch), arguments.device, arguments.minutes)
    rows = [row(step, final=index >= len(SCRIPT)) for index, step in enumerate(steps)]
    given = f"--sight {arguments.sight} --device {arguments.device} --minutes {arguments.minutes:g}"
    result = {
        "benchmark": "strong_author",
        "command": f"python -m benchmarks.strong_author {given}",
        "commit": arguments.commit,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "task": TASK.model_dump(mode="json"),
        "requests": requests,
        "given": author.given,
        "missing": author.missing,
        "rows": rows,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print_table(rows)
    for missing in author.missing:
        print(missing)


if __name__ == "__main__":
    main()
