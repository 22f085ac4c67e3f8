"""A seeded sample of all kernel families: every kernel must be proved right on the GPU."""

import random
from collections.abc import Iterator

import pytest

from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Unmeasured
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.sandbox.local import LocalSandbox, open_sandbox
from cudal2_agent.sandbox.workers.pool import WorkerPool

pytestmark = pytest.mark.gpu

SAMPLE = 10
TASKS = [
    {"m": 520, "n": 1000, "k": 1016, "layout": "nn"},
    {"m": 520, "n": 1000, "k": 1016, "layout": "tn"},
    {"m": 520, "n": 1000, "k": 1016, "layout": "nt"},
    {"m": 384, "n": 640, "k": 2048, "layout": "nn", "accumulate": "f16"},
    {"m": 384, "n": 640, "k": 2048, "layout": "tn", "accumulate": "f16"},
    {"m": 257, "n": 321, "k": 515, "layout": "nn"},
    {"m": 257, "n": 321, "k": 515, "layout": "tn", "element": "bf16"},
    {"m": 384, "n": 640, "k": 2048, "layout": "nt", "accumulate": "f16"},
    {"m": 257, "n": 321, "k": 515, "layout": "nt", "element": "bf16"},
    {"m": 64, "n": 64, "k": 64, "layout": "nn"},
    {"m": 128, "n": 128, "k": 16384, "layout": "tn", "element": "bf16"},
    {"m": 1, "n": 7, "k": 3, "layout": "nn"},
    {"m": 4104, "n": 4360, "k": 328, "layout": "nn"},
    {"m": 8200, "n": 2056, "k": 136, "layout": "tn", "element": "bf16"},
    {"m": 4104, "n": 4360, "k": 512, "layout": "nn", "accumulate": "f16"},
    {"m": 520, "n": 1000, "k": 1016, "layout": "tn", "bias": True},
    {"m": 257, "n": 321, "k": 515, "layout": "nn", "element": "bf16", "bias": True},
    {"m": 128, "n": 136, "k": 8192, "layout": "nt", "bias": True},
]


@pytest.fixture(scope="module")
def chip() -> Chip:
    pool = WorkerPool([WorkerOptions()])
    try:
        return pool.ready().chip
    finally:
        pool.close()


@pytest.fixture(scope="module")
def sandbox(chip: Chip, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSandbox]:
    opened = open_sandbox(
        arch=chip.arch,
        device="cuda:0",
        compile_options=CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache") / "compile"), jobs=8),
        verify_options=VerifyOptions(timeout_s=30),
        quick=TimeOptions(rounds=3, all_baselines=False, side=False),
        full=TimeOptions(rounds=3),
        worker=WorkerOptions(),
        predict=predict,
        emit=ignore,
    )
    yield opened
    opened.close()


def sample(task: GemmTask, chip: Chip) -> list[Candidate]:
    rng = random.Random(task.id)
    written = []
    for family in families(chip.arch):
        if family.supports(task):
            space = list(family.space(task, chip))
            written += [family.write(schedule, task) for schedule in rng.sample(space, min(SAMPLE, len(space)))]
    return written


@pytest.mark.parametrize("fields", TASKS, ids=lambda fields: "-".join(str(value) for value in fields.values()))
def test_sampled_kernels_are_right(sandbox: LocalSandbox, chip: Chip, fields: dict[str, object]) -> None:
    task = GemmTask.model_validate({**fields, "arch": chip.arch})
    candidates = sample(task, chip)
    assert candidates
    wrong = []
    for position, built in sandbox.build(candidates, task):
        schedule = candidates[position].origin.schedule
        if not isinstance(built, Built):
            wrong.append((schedule, built))
            continue
        evaluation = sandbox.verify(built, task)
        if not isinstance(evaluation, Unmeasured):
            wrong.append((schedule, evaluation.model_copy(update={"inspection": None})))
    assert not wrong
