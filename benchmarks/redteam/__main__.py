"""The red team against the sandbox: what rejects each hostile file, and whether each unusual right kernel passes.

Run from the repository's root. On a GPU each attack is timed against the honest kernel of the same tile:
    python -m benchmarks.redteam --device emulator --out benchmarks/results/redteam_emulator_DATE.json
    python -m benchmarks.redteam --device cuda:0 --out FILE.json [--only PATTERN] [--resume]
The JSON is written after every candidate, and a table beside it at the end. Exits with 1 if an attack passed, ended its run or
leaked a file, or if a right kernel was rejected.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import cache_argument, execute, script, stamp, write_text
from benchmarks.redteam.redteam_bench import RedteamBench, RedteamLimits
from benchmarks.redteam.redteam_table import RedteamResult, RedteamRow, bad, render, short
from tests.redteam.case import Case
from tests.redteam.corpus import corpus


def main() -> int:
    arguments = _arguments()
    cases = _chosen(corpus(), arguments.only)
    earlier = _resumed(arguments.out, cases) if arguments.resume else None
    done = earlier.rows if earlier is not None else ()
    left = [case for case in cases if case.id not in {row.name for row in done}]
    made = stamp(__file__, arguments.commit)
    result = RedteamResult(
        device=arguments.device,
        commit=made["commit"],
        date=made["date"],
        cores=os.cpu_count() or 1,
        seconds=earlier.seconds if earlier is not None else 0.0,
        rows=done,
    )
    started = time.monotonic()
    with _forbidden_file() as secret:
        limits = RedteamLimits(candidate_s=arguments.limit, cache=str(arguments.cache), secret=secret)
        for row, gpu in _rows(left, arguments.device, arguments.workers, limits):
            seconds = result.seconds + time.monotonic() - started
            started = time.monotonic()
            result = result.model_copy(update={"rows": (*result.rows, row), "seconds": seconds, "gpu": gpu or result.gpu})
            write_text(arguments.out, result.model_dump_json(indent=1) + "\n")
            print(short(row), flush=True)
    write_text(arguments.out, result.model_dump_json(indent=1) + "\n")
    write_text(arguments.out.with_suffix(".md"), render(result))
    wrong = [row for row in result.rows if bad(row)]
    print(f"{len(result.rows) - len(wrong)} of {len(result.rows)} as they should be; {result.seconds:.0f} s")
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = script(__file__, __doc__, measures=True)
    parser.add_argument("--device", required=True, help="emulator or cuda:0")
    parser.add_argument("--only", default="", help="candidates whose class/name contains this text; separate several by commas")
    parser.add_argument("--resume", action="store_true", help="keep the rows of unchanged candidates in the file")
    parser.add_argument(
        "--limit", type=float, default=20.0, help="seconds for compilation, proof and timing of a candidate, each"
    )
    parser.add_argument("--workers", type=int, default=0, help="concurrent sandboxes; one on a GPU")
    cache_argument(parser, "redteam-kernels")
    return parser.parse_args()


def _chosen(cases: Sequence[Case], only: str) -> list[Case]:
    """The chosen cases, grouped by task, because a worker keeps what it prepares for a task. Cases that hang come last."""
    wanted = [case for case in cases if not only or any(part in case.id for part in only.split(","))]
    return sorted(wanted, key=lambda case: (case.hangs, case.task.model_dump_json(), case.honest))


def _resumed(path: Path, cases: Sequence[Case]) -> RedteamResult | None:
    """The rows of an earlier run for cases that have not changed."""
    if not path.exists():
        return None
    same, result = {(case.id, case.digest) for case in cases}, RedteamResult.model_validate_json(path.read_text())
    return result.model_copy(update={"rows": tuple(row for row in result.rows if (row.name, row.digest) in same)})


def _rows(cases: Sequence[Case], device: str, workers: int, limits: RedteamLimits) -> Iterator[tuple[RedteamRow, str]]:
    """The row of each case as it finishes, with the name of the GPU."""
    count = 1 if device != "emulator" else workers or os.cpu_count() or 1
    benches = [RedteamBench(device, limits) for _ in range(count)]
    idle = list(benches)

    def one(case: Case) -> tuple[RedteamRow, str]:
        bench = idle.pop()
        try:
            return bench.row(case), bench.gpu
        finally:
            idle.append(bench)

    try:
        with ThreadPoolExecutor(count) as pool:
            if device != "emulator":
                benches[0].build_ahead(cases)
                benches[0].warm_up(next(case for case in corpus() if case.honest))
            yield from pool.map(one, cases)
    finally:
        for bench in benches:
            bench.close()


@contextmanager
def _forbidden_file() -> Iterator[str]:
    """The path of a file that no compiler may open, with recognisable contents."""
    with tempfile.TemporaryDirectory(prefix="redteam-") as folder:
        path = Path(folder) / "secret.txt"
        path.write_text("file-that-nobody-may-read\n")
        yield str(path)


if __name__ == "__main__":
    execute(main)
