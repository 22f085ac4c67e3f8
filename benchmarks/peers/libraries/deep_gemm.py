"""Lets DeepGEMM compile its kernels of many shapes at once: `python -m benchmarks.peers.libraries.deep_gemm FOLDER SHAPE ...`.

It compiles a kernel when it is first called, and keeps it on disk. One process compiles one kernel at a time.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cudal2_agent.contract.records.task import parse_shape

LIMIT_S = 300.0


def compile_ahead(folder: Path, shapes: Sequence[str], processes: int) -> Iterator[str]:
    """Share the shapes out; what each process says at its end, in one line."""
    groups = [list(shapes[first::processes]) for first in range(min(processes, len(shapes)))]
    running = [subprocess.Popen(_command(folder, group), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for group in groups]
    for process, group in zip(running, groups, strict=True):
        try:
            text, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            text = f"no end after {LIMIT_S:g} s".encode()
        said = " ".join(text.decode(errors="replace").split())
        yield f"deepgemm, {', '.join(group)}: {'compiled' if process.returncode == 0 else f'fails: {said[-200:]}'}"


def _command(folder: Path, shapes: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "benchmarks.peers.libraries.deep_gemm", str(folder), *shapes]


def compile_kernels(folder: Path, shape: str) -> None:
    """Multiply once in each layout of B."""
    from benchmarks.peers.deep_gemm_peer import FUNCTIONS, deep_gemm

    torch, module, _ = deep_gemm(folder)
    m, n, k = parse_shape(shape)
    a, d = (torch.zeros(size, dtype=torch.bfloat16, device="cuda") for size in ((m, k), (m, n)))
    for transposed, function in FUNCTIONS.items():
        b = torch.zeros((n, k) if transposed else (k, n), dtype=torch.bfloat16, device="cuda")
        getattr(module, function)(a, b, d)
    torch.cuda.synchronize()


if __name__ == "__main__":
    for one in sys.argv[2:]:
        compile_kernels(Path(sys.argv[1]), one)
