"""The kernels of the first prompt, skeleton and small example, are verified on the GPU for every kind of task."""

from pathlib import Path

import pytest

from contract.build import Built
from contract.candidate import Candidate, Origin
from contract.chip import REFERENCE_CHIPS
from contract.evaluation import Unmeasured
from contract.events import ignore
from contract.options import CompileOptions, TimeOptions, VerifyOptions, WorkerOptions
from contract.task import GemmTask
from policies.chat.assignment import Assignment
from policies.chat.prompts.composition import Prompts
from policies.schedule.prediction import predict
from sandbox.local import open_sandbox
from sandbox.workers.pool import WorkerPool
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
