"""The agent's own time per step: the real graph, checkpoints, store and retrieval with a scripted policy and sandbox.

Retrieval uses the knowledge base of the settings (CUDAL2_HOME). A missing index is built first.

Run from the repository's root: python -m benchmarks.agent_overhead [--steps 48] [--source-bytes 20000]
Prints JSON. Unit: milliseconds. The time of a step starts at the end of the previous step and excludes sandbox and policy.
So the first step of a round includes the retrieval of that round.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

from cudal2_agent.agent.index.default_index import open_retriever
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import name_run, new_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.store.store import open_store
from tests.doubles import TASK, ScriptedPolicy, ScriptedSandbox, candidate, diagnose, explain

LIMIT_MS = 50.0


def run_scripted(home: Path, steps: int, source_bytes: int, round_size: int) -> RunResult:
    settings = Settings(home=home, budget=steps, round_size=round_size, minutes=60.0)
    policy = ScriptedPolicy([candidate(number, padding=source_bytes) for number in range(steps)])
    sandbox = ScriptedSandbox({number: 20.0 + number % 7 for number in range(steps)}, failures=range(5, steps, 11))
    with open_store(settings.store_url) as store, open_retriever(load_settings(), _say) as retriever:
        parts = Dependencies(
            sandbox=sandbox, policy=policy, retriever=retriever, store=store, diagnose=diagnose, explain=explain
        )
        return start_run(new_run(name_run(TASK), TASK, settings, parts, None), parts, lambda _: None)


def _say(event: Event) -> None:
    if isinstance(event, Notice):
        print(event.message, file=sys.stderr)


def report(outcome: RunResult) -> dict[str, object]:
    own_ms = sorted(1000 * step.seconds["agent"] for step in outcome.steps)
    return {
        "steps": len(own_ms),
        "median_ms": round(statistics.median(own_ms), 2),
        "mean_ms": round(statistics.fmean(own_ms), 2),
        "p95_ms": round(own_ms[int(0.95 * (len(own_ms) - 1))], 2),
        "max_ms": round(own_ms[-1], 2),
        "limit_ms": LIMIT_MS,
        "within_limit": statistics.median(own_ms) < LIMIT_MS,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--source-bytes", type=int, default=20_000)
    parser.add_argument("--round-size", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        outcome = run_scripted(Path(home), arguments.steps, arguments.source_bytes, arguments.round_size)
    print(json.dumps({**vars(arguments), **report(outcome)}, indent=1))


if __name__ == "__main__":
    main()
