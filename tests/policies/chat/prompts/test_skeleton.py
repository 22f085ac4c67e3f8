"""The skeleton of the first prompt is run by the emulator for every layout and type, with edges and a ring that wraps."""

from collections.abc import Sequence
from itertools import islice

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.sandbox.verification.executor import Violation
from tests.policies.chat.conversing import observe
from tests.policies.chat.prompts.test_composition import EXAMPLES, blocks
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.trial import WRONG_RESULT, Trial, schedules

SMS = REFERENCE_CHIPS[Arch.SM_90A].sms
TASKS = [task.model_copy(update={"m": 136, "n": 136, "k": 328}) for task in EXAMPLES if task.arch is Arch.SM_90A]


def skeleton(task: GemmTask) -> str:
    prompt = Prompts(24_000, ()).first(observe(task=task, chip=REFERENCE_CHIPS[task.arch]), Assignment(0, None, ())).prompt
    return blocks(prompt)[1]


def verdicts(source: str, task: GemmTask, compiler: PtxCompiler) -> Sequence[Violation | None]:
    candidate = Candidate.from_source(source, Origin(policy="chat"))
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, SMS)
    return [trial.verdict(conditions) for conditions in islice(schedules(1), 3)]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.layout}-{task.element}-{task.accumulate}")
def test_the_skeleton_is_right(task: GemmTask, compiler: PtxCompiler) -> None:
    source = skeleton(task)
    assert "wgmma_shared" in source
    assert verdicts(source, task, compiler) == [None, None, None]


@pytest.mark.parametrize(
    ("right", "wrong", "kind"),
    [
        ("kStepB = 16 * 128", "kStepB = 32", WRONG_RESULT),
        ("  wait_for_dependencies();", "  ", "dependency"),
        ("if (block >= blocks) continue;", "if (block >= blocks) break;", "cluster-exit"),
        ("  fence_proxy_async();\n", "", "missing-proxy-fence"),
    ],
)
def test_what_the_skeleton_shows_is_needed(right: str, wrong: str, kind: str, compiler: PtxCompiler) -> None:
    source = skeleton(TASKS[0])
    assert source.count(right) == 1
    found = verdicts(source.replace(right, wrong), TASKS[0], compiler)
    assert kind in [violation.kind for violation in found if violation]
