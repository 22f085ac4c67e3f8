"""Problem files traced at their full sizes in the jail, for machines that measure: one .json a task.

    python -m benchmarks.modules.traced FOLDER_OR_FILE... --out FOLDER [--arithmetic f16]

Takes problem files (.py, named as KernelBench's, in folders level1, level2, …) and traced tasks (.json), which are traced
again. Files that are there already are kept.
"""

import time
from pathlib import Path

from benchmarks.harness import execute, script
from cudal2_agent.contract.errors import Cudal2Error
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.sandbox.modules.tracing.tracer import open_tracer


def named(file: Path) -> tuple[str, str]:
    """(name, text) of a problem."""
    if file.suffix == ".json":
        task = ModuleTask.model_validate_json(file.read_text("utf-8"))
        return task.name, task.problem
    return f"{file.parent.name.removeprefix('level')}/{file.stem}", file.read_text("utf-8")


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("problems", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arithmetic", type=Arithmetic, default=Arithmetic.F32, choices=list(Arithmetic))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    files = [file for path in given.problems for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    with open_tracer() as tracer:
        for file in (each for each in files if each.suffix in (".py", ".json")):
            name, problem = named(file)
            target, begin = given.out / f"{name.replace('/', '_')}.json", time.monotonic()
            if target.exists():
                continue
            try:
                task = tracer.trace(problem, name, arithmetic=given.arithmetic)
            except Cudal2Error as exc:
                print(f"{name}: {type(exc).__name__}: {exc}", flush=True)
                continue
            target.write_text(task.model_dump_json(), encoding="utf-8")
            print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    execute(main)
