"""Peers in one run. Needs a GPU; build the libraries first, where there is a compiler.

    python -m benchmarks.peers.libraries --out build/peers --paper CHECKOUT
    python -m benchmarks.peers --libraries build/peers --rows benchmarks/campaigns/rows --out FILE.json

Progress goes to stderr. FILE.json is written after every shape; the same command goes on from the rows in it. Shapes that are
held out are refused. A peer that cannot run has a line below the table.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ResultFile, execute, script, stamp
from benchmarks.peers.shapes import chosen_shapes
from benchmarks.peers.supervision import ShapeJob, TimeAllowance, supervise
from benchmarks.peers.table import PEERS, tables
from cudal2_agent.contract.errors import UsageError

WORKER = (sys.executable, "-m", "benchmarks.peers.worker")
DEEP_GEMM = "deepgemm"


def main() -> int:
    options = _parser().parse_args()
    shapes = chosen_shapes(options.shapes)
    record = PeersFile(options.out, stamp(__file__, options.commit))
    jobs = record.missing(jobs_of(shapes, options.peers or PEERS, deep_gemm=options.deepgemm is not None))
    request = {
        "libraries": str(options.libraries) if options.libraries else None,
        "rows": [str(file) for file in options.rows],
        "deepgemm": str(options.deepgemm) if options.deepgemm else None,
        "search_seconds": options.search_seconds,
        "peers": options.peers,
    }
    outcome = supervise(WORKER, jobs, request, TimeAllowance(options.seconds, options.peer_seconds), record.hear)
    record.end(outcome.troubles, outcome.left)
    print("\n".join(tables(record.result)))
    return 0 if record.result["rows"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = script(__file__, __doc__, measures=True)
    parser.add_argument("--shapes", nargs="*", default=[], help="M x N x K, at most 40; default: a random sample of the grid")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[], help="beside AutoTuning; default: all")
    parser.add_argument("--libraries", type=Path, help="folder of built libraries")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="rows of a campaign, for this project's kernels")
    parser.add_argument("--deepgemm", type=Path, help="the folder that holds the package deep_gemm, timed in BF16")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the whole run")
    parser.add_argument("--peer-seconds", type=float, default=30.0, help="of one peer on one shape")
    parser.add_argument("--search-seconds", type=float, default=0.6, help="of one peer's search on one shape")
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

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self._file, self._began = ResultFile(path, head, resume=True), time.monotonic()
        earlier = self._file.earlier
        self.result = self._file.content
        self.result |= {
            "environment": earlier.get("environment"),
            "troubles": list(earlier.get("troubles", [])),
            "left": [],
        }

    def missing(self, jobs: Sequence[ShapeJob]) -> list[ShapeJob]:
        """The jobs without a row."""
        done = {(row["shape"], row["element"]) for row in self._file.rows}
        return [job for job in jobs if (job.shape, job.element) not in done]

    def hear(self, job: ShapeJob, told: dict[str, Any]) -> None:
        """Note what a worker reports, and print it. Raises: UsageError where the file's rows are of another machine."""
        if "environment" in told:
            self._meet(told["environment"])
        if "row" in told:
            self._file.add(told["row"])
        if line := _progress(job, told):
            print(f"{time.monotonic() - self._began:6.1f} s  {line}", file=sys.stderr, flush=True)

    def end(self, troubles: Sequence[str], left: Sequence[str]) -> None:
        self._file.write(troubles=[*self.result["troubles"], *troubles], left=list(left))

    def _meet(self, environment: dict[str, Any]) -> None:
        earlier = self._file.earlier
        before = earlier.get("environment")
        if before and earlier.get("rows") and before["key"] != environment["key"]:
            raise UsageError(
                f"{self._file.path} holds rows of {before['key']}, this is {environment['key']}; name another --out"
            )
        self.result["environment"] = environment


def _progress(job: ShapeJob, told: dict[str, Any]) -> str:
    """A line of progress; empty where there is nothing to say."""
    if "begins" in told:
        return f"{job.name}: {told['begins']}"
    if "row" not in told:
        return ""
    ratios = [f"{name} {one['speedup']['ratio']:.3f}" for name, one in told["row"]["peers"].items()]
    return f"{job.name}: done: {', '.join(ratios) or 'no time'}"


if __name__ == "__main__":
    execute(main)
