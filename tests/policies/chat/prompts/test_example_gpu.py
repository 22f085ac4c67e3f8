"""The kernels of the first prompt, skeleton and small example, are verified on the GPU for every kind of task."""

from pathlib import Path

import pytest

from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Unmeasured
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.sandbox.local import open_sandbox
from cudal2_agent.sandbox.workers.pool import WorkerPool
from tests.policies.chat.conversing import observe
from tests.policies.chat.prompts.test_composition import EXAMPLES, blocks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", [(130, 77, 51), (264, 136, 200)], ids=["prime", "whole-rows"])
@pytest.mark.parametrize("task", EXAMPLES[6:], ids=lambda task: f"{task.layout}-{task.element}-{task.accumulate}")
def test_the_example_is_right(task: GemmTask, shape: tuple[int, int, int], tmp_path: Path) -> None:
    pool = WorkerPool([WorkerOptions()])
    try:
        arch = pool.ready().chip.arch
    finally:
        pool.close()
    m, n, k = shape
    task = task.model_copy(update={"arch": arch, "m": m, "n": n, "k": k})
    observation = observe(task=task, chip=REFERENCE_CHIPS[arch])
    text = blocks(Prompts(24_000, ()).first(observation, Assignment(0, None, ())).prompt)[1]
    sandbox = open_sandbox(
        arch=task.arch,
        device="cuda:0",
        compile_options=CompileOptions(cache_dir=str(tmp_path)),
        verify_options=VerifyOptions(),
        quick=TimeOptions(rounds=3, all_baselines=False, side=False),
        full=TimeOptions(rounds=3),
        worker=WorkerOptions(),
        predict=predict,
        emit=ignore,
    )
    try:
        for _, outcome in sandbox.build([Candidate.from_source(text, Origin(policy="chat"))], task):
            assert isinstance(outcome, Built), outcome
            found = sandbox.verify(outcome, task)
            assert isinstance(found, Unmeasured), found
            assert found.verified_by == "gpu"
    finally:
        sandbox.close()
