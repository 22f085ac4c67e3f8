"""Soundness of problems, and what their bounds accept of right programs and refuse of wrong ones, at reduced sizes on a CPU.

    python -m benchmarks.modules FOLDER [--only 1,19,23] [--seed 7]

FOLDER holds problem files in KernelBench's form. A right program must pass every case; a wrong one must fail one.
"""

import argparse
import time
from collections import Counter
from pathlib import Path

import torch

from benchmarks.modules.programs import RIGHT, WRONG, around
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.sandbox.modules.cases import CASES
from cudal2_agent.sandbox.modules.executor import Run
from cudal2_agent.sandbox.modules.interpreter import Interpreter
from cudal2_agent.sandbox.modules.prepared import prepare
from cudal2_agent.sandbox.modules.soundness import check
from cudal2_agent.sandbox.modules.tracing.tracer import open_tracer

MOST_WORK = 1 << 20  # elements of all results of a problem at the sizes that are tried


def rated(task: ModuleTask, seed: int) -> dict[str, str | None]:
    """By program that applies, why it was refused; None where no case refused it."""
    programs, verdicts = {**RIGHT, **WRONG}, dict[str, str | None]()
    for case in CASES:
        prepared = None if case.special else prepare(task, case, seed, torch.device("cpu"))
        for name, program in programs.items() if prepared is not None else ():
            if verdicts.get(name) is None:
                used: list[str] = []
                outputs = Interpreter(task.graph).run(prepared.values, around=around(program, used))
                verdict = prepared.judge.judge(Run(outputs))
                if used:
                    verdicts[name] = None if verdict.right else f"{case.name}: {verdict.describe()}"
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="numbers that files begin with")
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    only, applied, accepted, sound = {*filter(None, asked.only.split(","))}, Counter[str](), Counter[str](), Counter[str]()
    files = sorted(asked.folder.glob("*.py"), key=lambda path: (len(path.name.split("_")[0]), path.name))
    with open_tracer() as tracer:
        for path in files:
            if only and path.name.split("_")[0] not in only:
                continue
            try:
                task = tracer.reduced(tracer.trace(path.read_text("utf-8"), path.stem), MOST_WORK)
                started = time.monotonic()
                found = check(task, asked.seed)
                took = time.monotonic() - started
                verdicts = rated(task, asked.seed)
            except (UsageError, ValueError) as exc:
                sound["not judged"] += 1
                print(f"| {path.stem} | not judged | | {str(exc)[:200]} |", flush=True)
                continue
            sound[found.status] += 1
            own = ", ".join(sorted({f"{each.kind} {each.operation}".strip() for each in found.accepted if each.on == "own"}))
            print(f"| {path.stem} | {found.status} | {took:.1f} s | {own} | {found.reason} |", flush=True)
            for name, why in verdicts.items():
                applied[name] += 1
                accepted[name] += why is None
                if found.status == "sound" and (name in RIGHT) != (why is None):
                    print(f"    {name}: {why or 'accepted'}", flush=True)
    print(dict(sound))
    for name in (*RIGHT, *WRONG):
        print(f"| {name} | {'right' if name in RIGHT else 'wrong'} | {accepted[name]} of {applied[name]} accepted |")


if __name__ == "__main__":
    main()
