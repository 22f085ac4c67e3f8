"""A store of a million steps as sweeps make them: size, rates, memory, and the time of the commands over it.

Run from the repository's root:
    python -m benchmarks.store --out benchmarks/results/store_DATE.json --commit HASH [--steps 1000000] [--keep STORE.sqlite]
A million steps take about half an hour and 2 GB on two cores. With --keep the store stays, and a later call
fills it further. The JSON is written to the file and a table beside it. Exits with 1 if a target is missed.
"""

import argparse
import datetime
import os
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.store.filling import fill
from benchmarks.store.invented_runs import STEPS_PER_RUN, Inventor
from benchmarks.store.real_runs import load_runs
from benchmarks.store.store_bench import command, file_bytes, reading, resemblance, writing
from benchmarks.store.store_table import StoreResult, misses, render
from cudal2_agent.store.store import open_store

PACKAGES = ("sqlalchemy", "pydantic", "backports.zstd")
STEPS = 1_000_000
EXPORTED_RUNS = 200


def main() -> int:
    arguments = _arguments()
    with TemporaryDirectory(prefix="store-bench-", dir=arguments.folder) as folder:
        result = _measured(arguments, Path(folder))
    arguments.out.write_text(result.model_dump_json(indent=1) + "\n")
    table = render(result)
    arguments.out.with_suffix(".md").write_text(table)
    print(table)
    missed = misses(result)
    print("\n".join(f"missed: {one}" for one in missed) or "all targets are met")
    return 1 if missed else 0


def _measured(arguments: argparse.Namespace, folder: Path) -> StoreResult:
    path = arguments.keep or folder / "store.sqlite"
    models = load_runs()
    alike = resemblance(models, folder)
    filled = fill(f"sqlite:///{path}", arguments.steps, arguments.processes)
    size = file_bytes(path)
    with open_store(f"sqlite:///{path}") as store:
        counts = store.step_counts()
    exported = sorted(counts)[:: max(1, len(counts) // EXPORTED_RUNS)]
    lists = [["trajectories", "list", "--limit", "40"], ["trajectories", "list"], ["trajectories", "stats"]]
    exports = [["trajectories", "export", "--format", kind, *exported] for kind in ("steps", "sweep")]
    url = f"sqlite:///{path}"
    return StoreResult(
        command=shlex.join(["python", "-m", "benchmarks.store", *sys.argv[1:]]),
        commit=arguments.commit,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        python=platform.python_version(),
        packages={name: version(name) for name in PACKAGES},
        steps=sum(counts.values()),
        runs=len(counts),
        processes=arguments.processes,
        file_bytes=size,
        fill_seconds=filled.seconds,
        fill_peak_bytes=filled.peak_bytes,
        filled_steps=filled.steps,
        resemblance=alike,
        reading=reading(path),
        commands=(
            *(command(url, folder, one) for one in lists),
            *(command(url, folder, one, repeats=1) for one in exports),
        ),
        exported_steps=sum(counts[run_id] for run_id in exported),
        writing=writing(path, Inventor(models)),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file; the table is written beside it")
    parser.add_argument("--commit", default="unknown", help="the measured commit")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps in the store, in runs of {STEPS_PER_RUN}")
    parser.add_argument("--processes", type=int, default=2, help="processes that fill it")
    parser.add_argument("--keep", type=Path, help="the store's file, which stays")
    parser.add_argument("--folder", type=Path, help="where the store is made without --keep")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
