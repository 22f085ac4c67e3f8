"""Builds the peers' libraries by nvcc, ahead of a run: `python -m benchmarks.peers.libraries --out FOLDER`.

`--paper FOLDER` also builds the CUDA-L2 paper's H100 kernels of the shapes from a checkout of its repository. Neither its
sources nor the libraries belong into this repository. A library that is there is not built again.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.peers.libraries.jobs import build, cutlass_headers, cutlass_jobs, paper_jobs
from benchmarks.peers.shapes import chosen_shapes
from sandbox.building.toolchain import find_nvcc


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.libraries", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--paper", type=Path, help="a checkout of the paper's repository")
    parser.add_argument("--shapes", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=1, help="compilers at once; each takes up to 3 GB")
    options = parser.parse_args()
    headers, nvcc = cutlass_headers(), find_nvcc(None)
    jobs = cutlass_jobs(headers)
    if options.paper:
        jobs += paper_jobs(options.paper, chosen_shapes(options.shapes), headers)
    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as compilers:
        for told in compilers.map(lambda job: build(job, options.out, nvcc), jobs):
            print(told, flush=True)


if __name__ == "__main__":
    main()
