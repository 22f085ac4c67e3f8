"""The skeleton of the first prompt is run by the emulator for every layout and type, with edges and a ring that wraps."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Unmeasured
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.policies.chat.assignment import Assignment
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.sandbox.building.builder import Builder
from cudal2_agent.sandbox.building.check import Checked, check
from cudal2_agent.sandbox.building.toolchain import builds_cutlass
from cudal2_agent.sandbox.local import open_sandbox
from cudal2_agent.sandbox.verification.executor import Violation
from cudal2_agent.sandbox.workers.pool import WorkerPool
from tests.policies.chat.conversing import observe
from tests.policies.chat.prompts.test_composition import EXAMPLES, blocks
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.trial import WRONG_RESULT, Trial, interleavings

SMS = REFERENCE_CHIPS[Arch.SM_90A].sms
TASKS = [task.model_copy(update={"m": 136, "n": 136, "k": 328}) for task in EXAMPLES if task.arch is Arch.SM_90A]


def skeleton(task: GemmTask) -> str:
    prompt = Prompts(24_000, ()).first(observe(task=task, chip=REFERENCE_CHIPS[task.arch]), Assignment(0, None, ())).prompt
    return blocks(prompt)[1]


def verdicts(source: str, task: GemmTask, compiler: PtxCompiler) -> Sequence[Violation | None]:
    candidate = Candidate.from_source(source, Origin(policy="chat"))
    trial = Trial(compiler.compile(candidate, task.arch), candidate, task, SMS)
    return [trial.verdict(conditions) for conditions in islice(interleavings(1), 3)]


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


# Beginnings of instructions that the skeletons with CuTe are there for.
CUTE_OPCODES = {
    Arch.SM_80: ("cp.async.cg.shared.global", "cp.async.wait_group", "ldmatrix.sync.aligned.x4", "mma.sync.aligned.m16n8k16"),
    Arch.SM_90A: ("wgmma.mma_async.sync.aligned.m64n128k16", "cp.async.bulk.tensor.2d", "mbarrier.try_wait", "setmaxnreg"),
}
CUTE_TASKS = [
    GemmTask(m=m, n=n, k=k, arch=arch, layout=layout, element=element, accumulate=accumulate)
    for arch, (m, n, k) in {Arch.SM_80: (128, 64, 160), Arch.SM_90A: (136, 136, 328)}.items()
    for layout, element, accumulate in (("nn", "f16", "f32"), ("tn", "f16", "f16"), ("nt", "bf16", "f32"))
]


def cute(task: GemmTask) -> str:
    observation = observe(task=task, chip=REFERENCE_CHIPS[task.arch], cutlass=True)
    return blocks(Prompts(24_000, ()).first(observation, Assignment(1, None, ())).prompt)[1]


@pytest.mark.parametrize("task", CUTE_TASKS, ids=lambda task: f"{task.arch}-{task.layout}-{task.element}-{task.accumulate}")
def test_a_skeleton_with_cute_keeps_the_rules(task: GemmTask) -> None:
    candidate = Candidate.from_source(cute(task), Origin(policy="chat"))
    assert candidate.compiler == "nvcc"
    assert isinstance(check(candidate, task, LIMITS[task.arch], SMS), Checked)


@pytest.mark.slow
@pytest.mark.skipif(not builds_cutlass(None), reason="there is no nvcc, or no CUTLASS")
@pytest.mark.parametrize("task", CUTE_TASKS, ids=lambda task: f"{task.arch}-{task.layout}-{task.element}-{task.accumulate}")
def test_a_skeleton_with_cute_is_right(task: GemmTask, compiler: PtxCompiler) -> None:
    source = cute(task)
    assert verdicts(source, task, compiler) == [None, None, None]
    ptx = compiler.compile(Candidate.from_source(source, Origin(policy="chat")), task.arch)
    begun = {line.split(None, 1)[0] for line in ptx.splitlines() if line.strip()}
    assert not [opcode for opcode in CUTE_OPCODES[task.arch] if not any(word.startswith(opcode) for word in begun)]


@pytest.mark.slow
@pytest.mark.skipif(not builds_cutlass(None), reason="there is no nvcc, or no CUTLASS")
@pytest.mark.parametrize("task", CUTE_TASKS[::3], ids=lambda task: task.arch)
def test_a_skeleton_with_cute_passes_inspection(task: GemmTask, tmp_path: Path) -> None:
    """In the jail, to machine code: CUTLASS's headers use nothing that the rules over SASS refuse."""
    builder = Builder(CompileOptions(cache_dir=str(tmp_path), timeout_s=300), REFERENCE_CHIPS[task.arch])
    outcome = builder.build_one(Candidate.from_source(cute(task), Origin(policy="chat")), task)
    assert isinstance(outcome, Built), outcome


@pytest.mark.gpu
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
