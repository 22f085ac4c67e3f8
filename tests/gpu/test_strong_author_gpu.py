"""The scripted strong author on an H100 or H200: its kernels proved and timed, and the run that it drives."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.errors import ProfilerUnavailable
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Evaluation, Measured, Wrong
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.reward.speedup import median_us
from cudal2_agent.contract.settings.options import CompileOptions, ProfileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.sandbox.local import LocalSandbox, open_sandbox
from cudal2_agent.sandbox.workers.pool import WorkerPool
from cudal2_agent.store.store import open_store
from tests.author.script import SCRIPT, TASK, Author, Sight
from tests.doubles.chat_server import ScriptedServer

pytestmark = pytest.mark.gpu

HAS_EMULATOR = find_spec("cudal2_agent.sandbox.emulator._core") is not None
TURNS = {turn.name: turn for turn in SCRIPT}
RIGHT = ("05_right", "06_profile_guided", "07_better", "08_cluster")
EXECUTED = ["rejected", "compile_failed", "compile_failed", "wrong", *["measured"] * len(RIGHT)]


@pytest.fixture(scope="module")
def chip() -> Chip:
    pool = WorkerPool([WorkerOptions()])
    try:
        found = pool.ready().chip
    finally:
        pool.close()
    if found.arch is not Arch.SM_90A:
        pytest.skip(f"the author writes for {TASK.arch}, this GPU is {found.arch}")
    return found


@pytest.fixture(scope="module")
def sandbox(chip: Chip, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSandbox]:  # noqa: ARG001
    opened = open_sandbox(
        arch=TASK.arch,
        device="cuda:0",
        compile_options=CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache") / "compile")),
        verify_options=VerifyOptions(),
        quick=TimeOptions(rounds=7, all_baselines=False, side=False),
        full=TimeOptions(),
        worker=WorkerOptions(),
        predict=predict,
        emit=ignore,
        profile=ProfileOptions(),
    )
    yield opened
    opened.close()


def build(sandbox: LocalSandbox, name: str) -> Built:
    candidate = Candidate.from_source(TURNS[name].draft.source, Origin(policy="chat"))
    [(_, built)] = sandbox.build([candidate], TASK)
    assert isinstance(built, Built), built
    return built


@pytest.fixture(scope="module")
def evaluations(sandbox: LocalSandbox) -> dict[str, Evaluation]:
    return {name: sandbox.evaluate(build(sandbox, name), TASK, "quick") for name in ("04_wrong_result", *RIGHT)}


def test_mixed_up_fragments_fail_the_first_exact_test(evaluations: dict[str, Evaluation]) -> None:
    wrong = evaluations["04_wrong_result"]
    assert isinstance(wrong, Wrong)
    assert (wrong.test.tier, wrong.test.name) == ("exact", "zero-one")


@pytest.mark.parametrize("name", RIGHT)
def test_each_right_kernel_is_proved(evaluations: dict[str, Evaluation], name: str) -> None:
    assert isinstance(evaluations[name], Measured), evaluations[name]


def test_each_step_of_the_script_is_faster_than_the_one_before(evaluations: dict[str, Evaluation]) -> None:
    times_us = []
    for name in RIGHT:
        evaluation = evaluations[name]
        assert isinstance(evaluation, Measured)
        times_us.append(median_us(evaluation.timing))
    assert times_us == sorted(times_us, reverse=True)


def sight(sandbox: LocalSandbox) -> Sight:
    """Whether this machine allows reading counters."""
    try:
        sandbox.profile(build(sandbox, "05_right"), TASK)
    except ProfilerUnavailable:
        return "executed"
    return "profiled"


def test_the_author_reaches_a_verified_kernel_through_its_mistakes(
    sandbox: LocalSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDAL2_CHAT_SAMPLES", "1")
    monkeypatch.setenv("CUDAL2_CHAT_REPAIRS", str(len(SCRIPT)))
    monkeypatch.chdir(tmp_path)
    told = sight(sandbox)
    author = Author(told)
    with ScriptedServer(author) as server:
        words = ["optimize", "--shape", f"{TASK.m}x{TASK.n}x{TASK.k}", "--device", "cuda:0", "--no-knowledge", "--json"]
        chat = ["--policy", "chat", "--model", "test", "--base-url", server.base_url, "--budget", str(len(SCRIPT))]
        code = main([*words, *chat, "--minutes", "8", "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert not author.missing
    assert code == 0, said.err
    with open_store(f"sqlite:///{tmp_path / 'home' / 'trajectories.sqlite'}") as store:
        steps = store.steps(json.loads(said.out)["run_id"])
    assert [step.evaluation.status for step in steps[: len(SCRIPT)]] == EXECUTED
    if told == "profiled":
        assert all(step.diagnosis and step.diagnosis.basis == "counters" for step in steps[4:7])
    final = steps[-1].evaluation
    assert isinstance(final, Measured)
    for step in steps:
        if isinstance(step.evaluation, Measured):  # each was the fastest of its round, so that the emulator was asked
            assert step.evaluation.witness is not None
            assert step.evaluation.witness.confirms is HAS_EMULATOR, step.evaluation.witness
            assert (step.reward is not None) is HAS_EMULATOR
    assert AUTOTUNED in {timing.name for timing in final.baselines}
