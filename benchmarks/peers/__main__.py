"""Peers in one run. Needs a GPU; build the libraries first, where there is a compiler.

    python -m benchmarks.peers.libraries --out build/peers --paper CHECKOUT
    python -m benchmarks.peers --libraries build/peers --rows benchmarks/h200/rows --out FILE.json

Progress goes to stderr. FILE.json is written after every shape; the same command goes on from the rows in it. Shapes that are
held out are refused. A peer that cannot run has a line below the table.
"""

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.shapes import chosen_shapes
from benchmarks.peers.supervision import ShapeJob, TimeAllowance, supervise
from benchmarks.peers.table import PEERS, tables
from cudal2_agent.contract.errors import Cudal2Error, UsageError
from cudal2_agent.contract.whole_file import whole_file

WORKER = (sys.executable, "-m", "benchmarks.peers.worker")
DEEP_GEMM = "deepgemm"


def main() -> int:
    options = _parser().parse_args()
    try:
        shapes = chosen_shapes(options.shapes)
        record = PeersFile(options.out, " ".join(["python -m benchmarks.peers", *sys.argv[1:]]), options.commit)
        jobs = record.missing(jobs_of(shapes, options.peers or PEERS, deep_gemm=options.deepgemm is not None))
        request = {
            "libraries": str(options.libraries) if options.libraries else None,
            "rows": [str(file) for file in options.rows],
            "deepgemm": str(options.deepgemm) if options.deepgemm else None,
            "search_seconds": options.search_seconds,
            "peers": options.peers,
        }
        outcome = supervise(WORKER, jobs, request, TimeAllowance(options.seconds, options.peer_seconds), record.hear)
    except Cudal2Error as exc:
        print(f"error: {exc}", file=sys.stderr)
        return exc.exit_code
    record.end(outcome.troubles, outcome.left)
    print("\n".join(tables(record.result)))
    return 0 if record.result["rows"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", default=[], help="M x N x K, at most 40; default: a random sample of the grid")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[], help="beside AutoTuning; default: all")
    parser.add_argument("--out", type=Path, required=True, help="the result; rows that it holds are not measured again")
    parser.add_argument("--libraries", type=Path, help="folder of built libraries")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="rows of a campaign, for this project's kernels")
    parser.add_argument("--deepgemm", type=Path, help="the folder that holds the package deep_gemm, timed in BF16")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the whole run")
    parser.add_argument("--peer-seconds", type=float, default=30.0, help="of one peer on one shape")
    parser.add_argument("--search-seconds", type=float, default=0.6, help="of one peer's search on one shape")
    parser.add_argument("--commit", default="")
    return parser


def jobs_of(shapes: Sequence[str], peers: Sequence[str], *, deep_gemm: bool) -> list[ShapeJob]:
    """For every shape FP16, then BF16 where DeepGEMM is asked for. A run that ends early has both for the same shapes."""
    in_f16 = [peer for peer in peers if peer != DEEP_GEMM]
    jobs = []
    for shape in shapes:
        if in_f16:
            jobs.append(ShapeJob(shape=shape))
        if deep_gemm and DEEP_GEMM in peers:
            others = dict.fromkeys((one for one in in_f16 if not one.startswith("cudal2")), "timed in FP16")
            jobs.append(ShapeJob(shape=shape, element="bf16", without=others))
    return jobs


class PeersFile:
    """The result file: the rows so far, written whole after every row. Raises: UsageError for a file of another kind."""

    def __init__(self, file: Path, command: str, commit: str) -> None:
        self._file, self._began = file, time.monotonic()
        self._earlier = _earlier(file)
        self.result: dict[str, Any] = {
            "command": command,
            "commit": commit,
            "date": datetime.date.today().isoformat(),
            "environment": self._earlier.get("environment"),
            "rows": list(self._earlier.get("rows", [])),
            "troubles": list(self._earlier.get("troubles", [])),
            "left": [],
        }

    def missing(self, jobs: Sequence[ShapeJob]) -> list[ShapeJob]:
        """The jobs without a row."""
        done = {(row["shape"], row["element"]) for row in self.result["rows"]}
        return [job for job in jobs if (job.shape, job.element) not in done]

    def hear(self, job: ShapeJob, told: dict[str, Any]) -> None:
        """Note what a worker tells, and print it. Raises: UsageError where the file's rows are of another machine."""
        if "environment" in told:
            self._meet(told["environment"])
        if "row" in told:
            self.result["rows"].append(told["row"])
            self._write()
        if line := _progress(job, told):
            print(f"{time.monotonic() - self._began:6.1f} s  {line}", file=sys.stderr, flush=True)

    def end(self, troubles: Sequence[str], left: Sequence[str]) -> None:
        self.result["troubles"] += troubles
        self.result["left"] = list(left)
        self._write()

    def _meet(self, environment: dict[str, Any]) -> None:
        before = self._earlier.get("environment")
        if before and self._earlier.get("rows") and before["key"] != environment["key"]:
            raise UsageError(f"{self._file} holds rows of {before['key']}, this is {environment['key']}; name another --out")
        self.result["environment"] = environment

    def _write(self) -> None:
        with whole_file(self._file) as temporary:
            temporary.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")


def _earlier(file: Path) -> dict[str, Any]:
    """What the file holds; nothing where there is none. Raises: UsageError."""
    if not file.exists():
        return {}
    try:
        found = dict(json.loads(file.read_text(encoding="utf-8")))
        return found | {"rows": list(found["rows"])}
    except (ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"{file} is not a result of this benchmark; name another --out") from exc


def _progress(job: ShapeJob, told: dict[str, Any]) -> str:
    """A line of progress; empty where there is nothing to say."""
    if "begins" in told:
        return f"{job.name}: {told['begins']}"
    if "row" not in told:
        return ""
    ratios = [f"{name} {one['speedup']['ratio']:.3f}" for name, one in told["row"]["peers"].items()]
    return f"{job.name}: done: {', '.join(ratios) or 'no time'}"


if __name__ == "__main__":
    sys.exit(main())
