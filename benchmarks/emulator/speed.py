"""Speed of the emulator: tiles and whole products with and without race detection, and `verify` from the command line.

Run from the repository's root: python -m benchmarks.emulator.speed --out benchmarks/results/NAME.json
Every figure is the best of several interleaved runs, because other load on the machine only slows a run down.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import execute, script, stamp, write_json
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.emulator.kernel import WORKSPACE, EmulatedKernel
from cudal2_agent.sandbox.emulator.machine import Conditions

TURNS = 7
VERIFY_TURNS = 3
# (name, shape, family, axes of its schedule, limit without and with the race detector in milliseconds)
CASES: tuple[tuple[str, tuple[int, int, int], str, dict[str, Any], float, float | None], ...] = (
    ("mma_sync tile 128x128x64", (128, 128, 64), "mma_sync", {"block_m": 128, "block_n": 128, "split_k": 1}, 1.0, None),
    (
        "mma_sync 1024x1024x1024",
        (1024, 1024, 1024),
        "mma_sync",
        {"block_m": 128, "block_n": 128, "block_k": 32, "split_k": 1, "warps_m": 2, "warps_n": 4},
        500.0,
        1000.0,
    ),
    (
        "wgmma_tma tile 128x256x256",
        (128, 256, 256),
        "wgmma_tma",
        {"consumers": 2, "block_n": 256, "splits": 1, "cluster_m": 1, "cluster_n": 1, "cluster_k": 1},
        15.0,
        30.0,
    ),
)
VERIFIED = (4096, 1024, 512)
VERIFY_LIMIT_S = 10.0


def candidate_of(task: GemmTask, family_name: str, axes: dict[str, Any]) -> Candidate:
    """The first schedule in the space of a family that has these axes."""
    family = next(one for one in families(task.arch) if one.name == family_name)
    chip = REFERENCE_CHIPS[task.arch]
    schedule = next(one for one in family.space(task, chip) if axes.items() <= one.values().items())
    return family.write(schedule, task)


def runner(task: GemmTask, candidate: Candidate, compiler: Compiler) -> Callable[[bool], float]:
    """A function that runs the kernel once, with or without race detection, and returns the milliseconds it took."""
    compiled = compiler.compile(candidate, task.arch)
    if not isinstance(compiled, Compiled):
        raise SystemExit(f"{task.shape}: {compiled}")
    plan = resolve(candidate.plan, task, LIMITS[task.arch], REFERENCE_CHIPS[task.arch].sms)
    kernel = EmulatedKernel("kernel", Path(compiled.ptx_path).read_text(), plan, task)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((task.m, task.k), (task.k, task.n)))
    d = np.zeros((task.m, task.n), np.float16)
    workspace = np.zeros(plan.workspace_bytes, np.uint8)
    bound = kernel.bind({"A": a.view(np.uint16), "B": b.view(np.uint16), "D": d.view(np.uint16), WORKSPACE: workspace})

    def once(races: bool) -> float:
        started = time.perf_counter()
        launched = bound.run(Conditions(races=races))
        milliseconds = 1e3 * (time.perf_counter() - started)
        if any(not found.suspect for one in launched for found in one.outcome.findings):
            raise SystemExit(f"{task.shape}: {launched[0].outcome.findings[0].message}")
        return milliseconds

    return once


def verify_s(candidate: Candidate, home: Path, *, cold: bool) -> float:
    """Seconds of `cudal2-agent verify` in its own process. `cold`: nothing is compiled yet."""
    folder = Path(tempfile.mkdtemp(dir=home)) if cold else home
    file = home / "kernel.cu"
    file.write_text(candidate.source)
    shape = "x".join(str(size) for size in VERIFIED)
    command = [
        sys.executable,
        "-m",
        "cudal2_agent.agent.cli.main",
        "verify",
        str(file),
        "--shape",
        shape,
        "--device",
        "emulator",
        "--json",
    ]
    environment = {**os.environ, "CUDAL2_HOME": str(folder), "PYTHONPATH": str(Path.cwd())}
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode or json.loads(done.stdout)["evaluation"]["verified_by"] != "emulator":
        raise SystemExit(f"verify failed: {done.stdout} {done.stderr}")
    return seconds


def measure() -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as home:
        compiler = Compiler(CompileOptions(cache_dir=str(Path(home) / "compile")))
        for name, (m, n, k), family, axes, limit, limit_races in CASES:
            task = GemmTask(m=m, n=n, k=k)
            once = runner(task, candidate_of(task, family, axes), compiler)
            taken = [(once(False), once(True)) for _ in range(TURNS)]
            rows.append({"name": name, "ms": min(one for one, _ in taken), "limit_ms": limit})
            rows.append({"name": f"{name}, races", "ms": min(one for _, one in taken), "limit_ms": limit_races})
        task = GemmTask(m=VERIFIED[0], n=VERIFIED[1], k=VERIFIED[2])
        for family, axes in (("wgmma_tma", {"persistent": False, "splits": 1}), ("mma_sync", {"split_k": 1, "block_m": 128})):
            candidate = candidate_of(task, family, axes)
            cold = min(verify_s(candidate, Path(home), cold=True) for _ in range(VERIFY_TURNS))
            warm = min(verify_s(candidate, Path(home), cold=False) for _ in range(VERIFY_TURNS))
            for state, seconds in (("compiled anew", cold), ("compiled before", warm)):
                name = f"verify {task.shape} of {family}, {state}"
                rows.append({"name": name, "ms": 1e3 * seconds, "limit_ms": 1e3 * VERIFY_LIMIT_S})
    return rows


def main() -> None:
    options = script(__file__, __doc__, measures=True).parse_args()
    head, rows = stamp(__file__, options.commit), measure()
    write_json(options.out, {**head, "rows": rows})
    for row in rows:
        limit = f"{row['limit_ms']:.0f}" if row["limit_ms"] else "-"
        print(f"{row['name']:<60} {row['ms']:9.2f} ms   limit {limit}")


if __name__ == "__main__":
    execute(main)
