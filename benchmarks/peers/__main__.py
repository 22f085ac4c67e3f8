"""Peers in one run. Needs a GPU; build the libraries first, where there is a compiler.

    python -m benchmarks.peers.libraries --out build/peers --paper CHECKOUT
    python -m benchmarks.peers --libraries build/peers --rows benchmarks/h200/rows --out FILE.json

Shapes that are held out are refused. A peer that cannot run has a line below the table.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

from benchmarks.peers.shapes import chosen_shapes
from benchmarks.peers.supervision import ShapeJob, supervise
from benchmarks.peers.table import tables
from contract.errors import Cudal2Error
from contract.whole_file import whole_file

WORKER = (sys.executable, "-m", "benchmarks.peers.worker")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", default=[], help="M x N x K, at most 40; default: a random sample of the grid")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--libraries", type=Path, help="folder of built libraries")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="rows of a campaign, for this project's kernels")
    parser.add_argument("--deepgemm", type=Path, help="a checkout of DeepGEMM, timed in BF16")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the whole run")
    parser.add_argument("--search-seconds", type=float, default=0.6, help="of one peer's search on one shape")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    try:
        shapes = chosen_shapes(options.shapes)
    except Cudal2Error as exc:
        print(f"error: {exc}", file=sys.stderr)
        return exc.exit_code
    jobs = [ShapeJob(shape=shape) for shape in shapes]
    if options.deepgemm:
        jobs += [ShapeJob(shape=shape, element="bf16", without=_only_deep_gemm()) for shape in shapes]
    request = {
        "libraries": str(options.libraries) if options.libraries else None,
        "rows": [str(file) for file in options.rows],
        "deepgemm": str(options.deepgemm) if options.deepgemm else None,
        "search_seconds": options.search_seconds,
    }
    outcome = supervise(WORKER, jobs, request, options.seconds)
    result = {
        "command": " ".join(["python -m benchmarks.peers", *sys.argv[1:]]),
        "commit": options.commit,
        "date": datetime.date.today().isoformat(),
        "environment": outcome.environment,
        "rows": outcome.rows,
        "troubles": outcome.troubles,
        "left": outcome.left,
    }
    with whole_file(options.out) as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(tables(result)))
    return 0 if outcome.rows else 1


def _only_deep_gemm() -> dict[str, str]:
    """In BF16 the others are left out; their FP16 figures are in the other rows."""
    return dict.fromkeys(("cublaslt-searched", "triton", "cutlass", "cuda-l2-paper"), "timed in FP16")


if __name__ == "__main__":
    sys.exit(main())
