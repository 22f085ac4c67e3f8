"""The workbench over scripted parts: predictions, kept verdicts, time limits."""

import time
from collections.abc import Iterator, Sequence
from threading import Event, Thread

import pytest

from cudal2_agent.agent.observe.retrieval import CODE_KINDS, DOCUMENT_KINDS
from cudal2_agent.agent.wiring.run_workbench import RunWorkbench
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import CompileFailed, Evaluation, Prediction, TestResult, Wrong
from cudal2_agent.contract.records.task import GemmTask
from tests.doubles import INSPECTION, TASK, ScriptedRetriever, ScriptedSandbox, candidate, unmeasured

FLOOR = Prediction(predicted_us=1.0, model="roofline", floor_us=1.0)
TEST = TestResult(tier="exact", name="zero-one", passed=False, message="all outputs are wrong")


class NoModel(ScriptedSandbox):
    """Only the emulator's run gives a modelled time."""

    def predict(self, built: Built, _: GemmTask) -> Prediction:  # noqa: ARG002
        return FLOOR


class Slow(ScriptedSandbox):
    """Builds until it is cancelled, and proves for half a second."""

    def build(
        self, candidates: Sequence[AnyCandidate], task: GemmTask, cancel: Event | None = None
    ) -> Iterator[tuple[int, Built | Evaluation]]:
        if candidates[0] == candidate(9):
            assert cancel is not None
            cancel.wait(10)
            return
        yield from super().build(candidates, task)

    def witness(self, built: Built, task: GemmTask, seconds: float | None = None) -> Evaluation:
        time.sleep(0.5)
        return super().witness(built, task, seconds)


def bench(sandbox: ScriptedSandbox) -> RunWorkbench:
    made = RunWorkbench(TASK)
    made.connect(sandbox, ScriptedRetriever())
    return made


def test_a_model_that_knows_a_kernel_needs_no_run_of_it() -> None:
    sandbox = ScriptedSandbox({3: 4.0})
    predicted = bench(sandbox).predict(candidate(3), 5.0)
    assert isinstance(predicted, Prediction)
    assert (predicted.predicted_us, sandbox.witnessed) == (4.0, [])


def test_a_kernel_that_only_the_emulator_can_model_is_run_once_for_both_tools() -> None:
    sandbox = NoModel(witness={3: unmeasured(6.0, "emulator")})
    tools = bench(sandbox)
    assert tools.verify(candidate(3), 5.0).passed
    predicted = tools.predict(candidate(3), 5.0)
    assert isinstance(predicted, Prediction)
    assert (predicted.predicted_us, sandbox.witnessed) == (6.0, [3])


def test_a_wrong_or_broken_kernel_has_no_prediction() -> None:
    wrong = Wrong(test=TEST, tests=(TEST,), inspection=INSPECTION)
    tools = bench(NoModel(witness={3: wrong}, failures=(4,)))
    assert tools.predict(candidate(3), 5.0) == wrong
    assert isinstance(tools.predict(candidate(4), 5.0), CompileFailed)
    assert isinstance(tools.verify(candidate(4), 5.0), CompileFailed)


def test_a_build_and_a_wait_for_a_proof_end_on_time() -> None:
    tools = bench(Slow({}))
    with pytest.raises(TimeoutError):
        tools.compile(candidate(9), 0.1)
    other = Thread(target=tools.verify, args=(candidate(1), 5.0))
    other.start()
    time.sleep(0.1)
    with pytest.raises(TimeoutError):
        tools.verify(candidate(2), 0.1)
    other.join()


def test_a_search_returns_notes_and_code() -> None:
    retriever = ScriptedRetriever()
    tools = RunWorkbench(TASK)
    tools.connect(ScriptedSandbox({}), retriever)
    assert {hit.chunk.path for hit in tools.search("wgmma", 5.0)} == {"x.md"}
    assert [query.kinds for query in retriever.queries] == [DOCUMENT_KINDS, CODE_KINDS]
