"""Plain CUDA kernels built for the tests of the emulator's backend, and the evaluator that proves them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.plan.plan import Launch, LaunchPlan
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import TestResult, Wrong
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, Tier, VerifyOptions
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.emulator.evaluator import Evaluator
from cudal2_agent.sandbox.timing_model.model import predict
from cudal2_agent.sandbox.workers.messages import Done, Evaluate, NotExecuted, Reduced, Verified
from tests.sandbox.building.build_kernels import ORIGIN, TENSORS

TASK = GemmTask(m=24, n=40, k=48, arch=Arch.SM_90A)
SCALARS: tuple[dict[str, Any], ...] = tuple({"scalar": name} for name in "MNK")
BEFORE = "  const int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;\n"
GUARD = "  if (row >= m || column >= n) return;\n"
SUM = """\
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(a[row * k + i]) * __half2float(b[i * n + column]);
"""
STORE = "  d[row * n + column] = __float2half(sum);\n"


def naive(
    *, first: str = "", guard: str = GUARD, total: str = SUM, store: str = STORE, parameters: str = "", outside: str = ""
) -> str:
    """A thread for each output; parts of it may be replaced."""
    head = f"gemm(const half* a, const half* b, half* d, int m, int n, int k{parameters})"
    body = first + BEFORE + guard + total + store
    return f'#include <cuda_fp16.h>\n{outside}\nextern "C" __global__ void {head} {{\n{body}}}\n'


def plan(*, args: tuple[dict[str, Any], ...] = (), launch: dict[str, Any] | None = None, **fields: Any) -> LaunchPlan:
    shape = {"entry": "gemm", "grid": ("ceil(N/16)", "ceil(M/16)", 1), "block": (256, 1, 1)}
    made = Launch.model_validate(shape | {"args": (*TENSORS, *SCALARS, *args)} | (launch or {}))
    return LaunchPlan.model_validate({"arch": "sm_90a", "launches": (made,)} | fields)


TIERS = {"exact", "accuracy", "special", "guards", "freshness", "repeatability", "emulator"}

Build = Callable[..., Built]


def builder(cache: Path) -> Build:
    """Builds sources with plans; a failed build fails the test."""
    made = Builder(CompileOptions(cache_dir=str(cache)), REFERENCE_CHIPS[Arch.SM_90A])

    def build(source: str, launch_plan: LaunchPlan | None = None, task: GemmTask | ModuleTask = TASK) -> Built:
        candidate = Candidate(source=source, plan=launch_plan or plan(), origin=ORIGIN)
        built = made.build_one(candidate, task)
        assert isinstance(built, Built), built
        return built

    return build


def prove(
    built: Built,
    task: GemmTask | ModuleTask = TASK,
    *,
    timeout_s: float = 60.0,
    reduced: Reduced | None = None,
    seed: int | None = 2,
    tier: Tier = "all",
) -> Done | Verified | NotExecuted:
    evaluator = Evaluator(REFERENCE_CHIPS[task.arch], lambda _: None, predict)
    options = VerifyOptions(seed=seed, timeout_s=timeout_s, tier=tier)
    return evaluator.evaluate(Evaluate(built=built, task=task, verify=options, reduced=reduced))


def passed(answer: object) -> tuple[set[str], str]:
    """Tiers of a verified kernel's tests, and the name of the last one: `schedules` where whole grids ran."""
    assert isinstance(answer, Verified), answer
    return {test.tier for test in answer.tests}, answer.tests[-1].name


def failure(answer: object) -> TestResult:
    """The test that the answer's kernel failed, which is the last one."""
    assert isinstance(answer, Done), answer
    assert isinstance(answer.evaluation, Wrong), answer.evaluation
    assert answer.evaluation.test is answer.evaluation.tests[-1]
    return answer.evaluation.test
