"""A module through the sandbox: traced at its own and at smaller dims, built, proved by a jailed worker that loads torch."""

from pathlib import Path

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
pytest.importorskip("torch", reason="modules are proved with PyTorch")

from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Unmeasured, Wrong
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer
from tests.sandbox.building.build_kernels import ORIGIN
from tests.sandbox.emulator.modules.corpus.kernel import launch
from tests.sandbox.emulator.modules.corpus.rows import SOFTMAX

PROBLEM = """
import torch
batch_size = 4096
dim = 2040
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
def get_inputs():
    return [torch.rand(batch_size, dim)]
def get_init_inputs():
    return []
"""
PLAN = plan_from_json({"arch": "sm_90a", "launches": [launch("softmax", "batch_size", 128, "x", "out=", ".dim")]})


@pytest.mark.slow
def test_a_problem_of_another_size_is_proved_by_the_worker(tmp_path: Path, tracer: Tracer) -> None:
    task = tracer.trace(PROBLEM, "softmax")
    source = SOFTMAX.candidate().source
    right = Candidate(source=source, plan=PLAN, origin=ORIGIN)
    broken = Candidate(source=source.replace("i < columns; i", "i < columns - 1; i"), plan=PLAN, origin=ORIGIN)
    settings = Settings(device="emulator", home=tmp_path)
    with open_sandbox_of(Arch.SM_90A, settings, lambda _event: None) as sandbox:
        outcomes = dict(sandbox.build([right, broken], task))
        assert isinstance(outcomes[0], Built)
        assert isinstance(outcomes[1], Built)
        proved, refused = sandbox.verify(outcomes[0], task), sandbox.verify(outcomes[1], task)
    assert isinstance(proved, Unmeasured)
    assert proved.verified_by == "emulator", proved.reason
    reduced = next(test for test in proved.tests if test.name == "reduced")
    assert reduced.message == "the tests before this one ran whole grids at batch_size 32, dim 56"
    assert isinstance(refused, Wrong)
    assert refused.test.message.endswith("(at batch_size 32, dim 56)")
