"""What peers need ahead of a run: `python -m benchmarks.peers.libraries --out FOLDER`.

Builds CUTLASS's kernels by nvcc. `--paper FOLDER` also builds the CUDA-L2 paper's H100 kernels of the shapes from a checkout of
its repository. Neither its sources nor the libraries belong into this repository. A library that is there is not built again.
`--deepgemm FOLDER` lets DeepGEMM compile its kernels of the shapes, which needs the GPU; else they are compiled in the run.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness import execute, script
from benchmarks.peers.libraries.deep_gemm import compile_ahead
from benchmarks.peers.libraries.jobs import (
    LIMIT_S,
    PAPER,
    LibraryJob,
    build,
    cutlass_headers,
    cutlass_jobs,
    padded_kernels,
    paper_jobs,
)
from benchmarks.peers.shapes import chosen_shapes
from cudal2_agent.sandbox.building.toolchain import find_nvcc


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--paper", type=Path, help="a checkout of the paper's repository")
    parser.add_argument("--deepgemm", type=Path, help="the folder that holds the package deep_gemm")
    parser.add_argument("--cutlass", type=Path, help="CUTLASS's sources; default: those of the package nvidia-cutlass")
    parser.add_argument("--without-cutlass", action="store_true", help="build no kernels of CUTLASS's collective builder")
    parser.add_argument("--shapes", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=1, help="compilers at once; each takes up to 3 GB")
    parser.add_argument("--library-seconds", type=float, default=LIMIT_S, help="of the build of one library")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    jobs = list(_library_jobs(options))
    if jobs:
        nvcc = find_nvcc(None, host=True)
        with ThreadPoolExecutor(options.jobs) as compilers:
            for told in compilers.map(lambda job: build(job, options.out, nvcc, options.library_seconds), jobs):
                print(told, flush=True)
    if options.deepgemm:
        for told in compile_ahead(options.deepgemm, chosen_shapes(options.shapes), options.jobs):
            print(told, flush=True)


def _library_jobs(options: argparse.Namespace) -> Iterator[LibraryJob]:
    if options.paper or not options.without_cutlass:
        headers = cutlass_headers(options.cutlass)
        if not options.without_cutlass:
            yield from cutlass_jobs(headers)
        if options.paper:
            shapes = chosen_shapes(options.shapes)
            for shape in padded_kernels(options.paper, shapes):
                print(f"{PAPER}{shape}: not built, because it multiplies padded operands", flush=True)
            yield from paper_jobs(options.paper, shapes, headers)


if __name__ == "__main__":
    execute(main)
