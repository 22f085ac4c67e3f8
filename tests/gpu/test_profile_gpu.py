"""Nsight Compute on a real GPU: plausible counters, and candidates that crash, hang or do not finish."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import ProfileFailed, ProfilerUnavailable
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, HostCandidate, Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Measured, Prediction, Unmeasured
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.reward.speedup import baseline_of
from cudal2_agent.contract.settings.options import CompileOptions, ProfileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.sandbox.local import LocalSandbox, open_sandbox
from cudal2_agent.sandbox.profiling.metric_set import load_metric_set
from cudal2_agent.sandbox.profiling.ncu import find_ncu
from cudal2_agent.sandbox.workers.pool import WorkerPool

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
ATTACKS = Path(__file__).with_name("attacks")
SHAPE = {"m": 1024, "n": 1024, "k": 1024}
# A split of K in two through the workspace, and its reduction: two launches a run.
TWO_LAUNCHES = """/* cudal2: {"arch": "sm_80",
 "launches": [
  {"entry": "split", "grid": ["ceil(N/16)", "ceil(M/16)", 2], "block": [16, 16, 1],
   "args": [{"tensor": "A"}, {"tensor": "B"}, {"workspace": 0}, {"scalar": "M"}, {"scalar": "N"}, {"scalar": "K"}]},
  {"entry": "reduce", "grid": ["ceil(M*N/256)", 1, 1], "block": [256, 1, 1],
   "args": [{"workspace": 0}, {"tensor": "D", "access": "write"}, {"scalar": "M*N"}]}],
 "workspace": {"bytes": "8*M*N"}} */
#include <cuda_fp16.h>
extern "C" __global__ void split(const half* a, const half* b, float* parts, int m, int n, int k) {
  const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y, half_k = (k + 1) / 2;
  if (row >= m || column >= n) return;
  const int begin = blockIdx.z * half_k, end = min(k, begin + half_k);
  float sum = 0;
  for (int i = begin; i < end; ++i) sum += __half2float(a[row * (size_t)k + i]) * __half2float(b[i * (size_t)n + column]);
  parts[blockIdx.z * (size_t)m * n + row * (size_t)n + column] = sum;
}
extern "C" __global__ void reduce(const float* parts, half* d, int count) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < count) d[i] = __float2half(parts[i] + parts[count + i]);
}
"""


@pytest.fixture(scope="module", autouse=True)
def _ncu() -> None:
    try:
        find_ncu(None)
    except ProfilerUnavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def arch() -> Arch:
    pool = WorkerPool([WorkerOptions()])
    try:
        return pool.ready().chip.arch
    finally:
        pool.close()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache") / "compile")


@pytest.fixture(scope="module")
def sandbox(arch: Arch, cache: str) -> Iterator[LocalSandbox]:
    opened = opened_sandbox(arch, cache, 60.0)
    yield opened
    opened.close()


def opened_sandbox(arch: Arch, cache: str, timeout_s: float) -> LocalSandbox:
    return open_sandbox(
        arch=arch,
        device="cuda:0",
        compile_options=CompileOptions(cache_dir=cache),
        verify_options=VerifyOptions(timeout_s=30),
        quick=TimeOptions(rounds=3, all_baselines=False, side=False),
        full=TimeOptions(rounds=3),
        worker=WorkerOptions(),
        predict=lambda _candidate, _task, _inspection: Prediction(predicted_us=1, model="none", floor_us=1),
        emit=ignore,
        profile=ProfileOptions(timeout_s=timeout_s),
    )


def built_from(sandbox: LocalSandbox, task: GemmTask, candidate: Candidate | HostCandidate) -> Built:
    ((_, built),) = sandbox.build([candidate], task)
    assert isinstance(built, Built), built
    return built


def attack(sandbox: LocalSandbox, task: GemmTask, name: str) -> Built:
    return built_from(sandbox, task, Candidate.from_source((ATTACKS / f"{name}.cu").read_text(), Origin(policy="attack")))


def honest(sandbox: LocalSandbox, task: GemmTask) -> Built:
    return attack(sandbox, task, "honest")


def first_choice(task: GemmTask, sandbox: LocalSandbox) -> Candidate:
    """A tensor-core kernel, from the family specific to this GPU if there is one."""
    family = [family for family in families(task.arch) if family.supports(task)][-1]
    return family.write(next(iter(family.space(task, sandbox.chip))), task)


def test_counters_of_a_tensor_core_kernel(sandbox: LocalSandbox, arch: Arch) -> None:
    task = GemmTask(arch=arch, **SHAPE)
    built = built_from(sandbox, task, first_choice(task, sandbox))
    assert isinstance(sandbox.verify(built, task), Unmeasured)
    profile = sandbox.profile(built, task)
    wanted = load_metric_set(arch).metrics
    for launch in profile.launches:
        absent = set(wanted) - set(launch.metrics)
        assert not absent, f"not counted: {sorted(absent)}"
    [main] = [launch for launch in profile.launches if launch.metrics["duration_ns"] == max(
        each.metrics["duration_ns"] for each in profile.launches)]  # fmt: skip
    assert 1_000 < main.metrics["duration_ns"] < 10_000_000
    assert 0 < main.metrics["tensor_pct"] <= 100
    assert main.metrics["tensor_instructions"] > 0
    # Cold caches: both inputs come from device memory at least once, and not a hundred times.
    read = main.metrics["dram_read_bytes"]
    assert 0.5 * 2 * (task.m * task.k + task.k * task.n) < read < 100 * task.operand_bytes
    assert profile.tool.startswith("ncu 20")
    assert profile.seconds < 60


def test_every_launch_of_a_run_is_counted_in_order(sandbox: LocalSandbox, arch: Arch) -> None:
    task = GemmTask(arch=arch, **SHAPE)
    built = built_from(sandbox, task, Candidate.from_source(TWO_LAUNCHES, Origin(policy="test")))
    assert isinstance(sandbox.verify(built, task), Unmeasured)
    split, reduce = sandbox.profile(built, task).launches
    assert (split.entry, split.grid, split.block) == ("split", (64, 64, 2), (16, 16, 1))
    assert (reduce.entry, reduce.grid, reduce.block) == ("reduce", (4096, 1, 1), (256, 1, 1))
    assert split.metrics["duration_ns"] > reduce.metrics["duration_ns"]
    # Constants take one tensor-pipe instruction per warp; a multiplication takes more.
    assert split.metrics["tensor_instructions"] <= 64 * 64 * 2 * 8


def test_the_kernel_that_cublaslt_chose(sandbox: LocalSandbox, arch: Arch) -> None:
    task = GemmTask(arch=arch, **SHAPE)
    measured = sandbox.evaluate(honest(sandbox, task), task, "quick")
    assert isinstance(measured, Measured), measured
    chosen = baseline_of(measured, AUTOTUNED)
    assert chosen is not None
    launches = sandbox.profile_library(chosen.detail, task).launches
    longest = max(launches, key=lambda launch: launch.metrics["duration_ns"])
    assert longest.metrics["tensor_instructions"] > 0
    assert longest.metrics["duration_ns"] < 1_000_000
    with pytest.raises(ProfileFailed, match="cuBLASLt does not suggest"):
        sandbox.profile_library("layout nn, algorithm -1", task)


def test_counters_repeat(sandbox: LocalSandbox, arch: Arch) -> None:
    """Only the kernel's instructions are counted: two profiles agree."""
    task = GemmTask(arch=arch, **SHAPE)
    built = honest(sandbox, task)
    first, second = (sandbox.profile(built, task).launches[0].metrics for _ in range(2))
    assert first["instructions"] == second["instructions"] > 0


def test_a_crash_and_a_hang_cost_one_profile_each(arch: Arch, cache: str) -> None:
    sandbox = opened_sandbox(arch, cache, 25.0)
    task = GemmTask(arch=arch, **SHAPE)
    try:
        with pytest.raises(ProfileFailed, match="warm-up"):
            sandbox.profile(attack(sandbox, task, "illegal_address"), task)
        assert sandbox.profile(honest(sandbox, task), task).launches
        begin_s = time.monotonic()
        with pytest.raises(ProfileFailed, match="warm-up"):
            sandbox.profile(attack(sandbox, task, "spins"), task)
        assert time.monotonic() - begin_s < 60
        assert sandbox.profile(honest(sandbox, task), task).launches
        assert isinstance(sandbox.verify(honest(sandbox, task), task), Unmeasured), "the worker lives on"
    finally:
        sandbox.close()


def test_a_kernel_that_does_nothing_has_no_profile(sandbox: LocalSandbox, arch: Arch) -> None:
    task = GemmTask(arch=arch, **SHAPE)
    with pytest.raises(ProfileFailed, match="left unwritten"):
        sandbox.profile(attack(sandbox, task, "unwritten"), task)


def test_the_command(tmp_path: Path, arch: Arch) -> None:
    file = tmp_path / "two.cu"
    file.write_text(TWO_LAUNCHES)
    words = ["profile", str(file), str(ATTACKS / "honest.cu"), "--shape", "512x512x512", "--arch", arch.value, "--json"]
    command = [sys.executable, "-m", "cudal2_agent.agent.cli.main", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert [file["diagnosis"]["basis"] for file in answer["files"]] == ["counters", "counters"]
    assert answer["differences"]
