"""A model that remembers nothing holds four right kernels: whatever their order, the run ends with the fastest and says so.

Server protocol, policy, graph, store and predicted times are real: the emulator proves each kernel once, and the timing model
predicts it. Nothing is measured. Ties are shown with times that the test injects.
"""

import json
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.render.run_answer import print_outcome
from cudal2_agent.agent.report.report import render_report
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import name_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.wiring.policy import open_policy
from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.plan import parse_plan
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate, Origin
from cudal2_agent.contract.records.evaluation import Prediction, Unmeasured
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.settings.options import ChatOptions, CompileOptions
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.diagnosis.diagnosis import diagnose_built
from cudal2_agent.sandbox.diagnosis.differences import explain
from cudal2_agent.store.store import open_store
from tests import doubles
from tests.author.four import FOUR, NOTHING_LEFT, Forgetful, Proving, idea_of, table_of
from tests.author.script import TASK, Turn
from tests.doubles.chat_server import ScriptedServer

TIED = (60.0, 14.3, 16.0, 14.0)
ORDERS = list(permutations(range(4)))


class Nothing:
    """A knowledge base without an answer."""

    def search(self, _: object) -> list[object]:
        return []


def predict(times_us: Sequence[float]) -> Callable[[AnyCandidate, GemmTask, Inspection], Prediction]:
    known = {turn.draft.source: time_us for turn, time_us in zip(FOUR, times_us, strict=True)}

    def predicted(candidate: AnyCandidate, task: GemmTask, _: Inspection) -> Prediction:
        time_us = known[candidate.source]
        terms = {"smem": 0.9 * time_us, "launch": 0.7, "dram": 2.0}
        return Prediction(predicted_us=time_us, model="injected", floor_us=roofline_us(task, doubles.CHIP), terms=terms)

    return predicted


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prediction, ...]:
    """The timing model's predictions of the four, as the emulator's worker makes them."""
    settings = Settings(home=tmp_path_factory.mktemp("modelled"), device="emulator")
    candidates = [
        Candidate(source=turn.draft.source, plan=parse_plan(turn.draft.source), origin=Origin(policy="chat")) for turn in FOUR
    ]
    found = []
    with open_sandbox_of(TASK.arch, settings, ignore) as sandbox:
        for _, built in sorted(sandbox.build(candidates, TASK), key=lambda each: each[0]):
            assert isinstance(built, Built)
            evaluation = sandbox.evaluate(built, TASK, "quick")
            assert isinstance(evaluation, Unmeasured)
            found.append(evaluation.prediction)
    return tuple(found)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> CompileOptions:
    return CompileOptions(cache_dir=str(tmp_path_factory.mktemp("four")))


def drive(home: Path, sandbox: Proving, order: Sequence[Turn], budget: int = 4) -> tuple[RunResult, list[str]]:
    """A run over the author's kernels in an order. Returns it with the prompts that the author got."""
    run_id = name_run(TASK)
    with ScriptedServer(Forgetful(order)) as server:
        chat = ChatOptions(model="test", base_url=server.base_url, samples=1)
        settings = Settings(home=home, policy="chat", budget=budget, round_size=1, minutes=5.0, chat=chat, api_key="k")
        with open_store(settings.store_url) as store, open_policy(TASK, settings, store, run_id, ignore) as policy:
            parts = Dependencies(sandbox, policy, Nothing(), store, diagnose_built, explain)  # type: ignore[arg-type]
            outcome = start_run(run_id, TASK, settings, parts, ignore, resumable=False)
    return outcome, [request.prompt for request in server.requests]


def answer(outcome: RunResult, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    print_outcome(outcome, Path("out"), as_json=True)
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_in_all_orders_the_run_ends_with_the_fastest_and_says_so(
    tmp_path: Path, cache: CompileOptions, modelled: tuple[Prediction, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    times_us = [prediction.predicted_us for prediction in modelled]
    assert sorted(times_us, reverse=True) == times_us, "the author wrote each faster than the one before"
    known = {turn.draft.source: prediction for turn, prediction in zip(FOUR, modelled, strict=True)}
    sandbox = Proving(cache, lambda candidate, _task, _inspection: known[candidate.source])
    for order in ORDERS:
        outcome, prompts = drive(tmp_path, sandbox, [FOUR[place] for place in order])
        assert [step.candidate.source for step in outcome.steps] == [FOUR[place].draft.source for place in order]
        assert outcome.best is not None
        assert outcome.best.candidate.source == FOUR[3].draft.source, order
        told = answer(outcome, capsys)
        assert (told["measured"], told["ranked_by"], told["tied"]) == (False, "predicted", [])
        assert told["best"]["predicted_us"] == times_us[3]  # type: ignore[index]
        report = render_report(outcome, Path("out"))
        name, most_us = largest(modelled[3])
        predicted = f"Predicted: {times_us[3]:.2f} us (by timing-model on H200); each resource alone would need, in us: "
        assert f"{predicted}{name} {most_us:.2f}" in report
        assert "By prediction it is the fastest of 4 kernels that were found right." in report
        check_prompts(order, prompts, modelled)


def largest(prediction: Prediction) -> tuple[str, float]:
    return max(prediction.terms.items(), key=lambda term: term[1])


def check_prompts(order: Sequence[int], prompts: Sequence[str], modelled: Sequence[Prediction]) -> None:
    """Each prompt names all that was tried, with its outcome, time, terms and change, and shows the fastest so far."""
    for number, prompt in enumerate(prompts):
        rows = table_of(prompt).strip("`\n").splitlines()[2:]
        assert len(rows) == number
        for place in order[:number]:
            [row] = [row for row in rows if idea_of(FOUR[place]) in row]
            name, most_us = largest(modelled[place])
            assert f"{modelled[place].predicted_us:.2f} us predicted, not measured" in row
            assert "verified by the emulator" in row
            assert f"{name} {most_us:.2f}, " in row
            assert " registers, " in row
            assert (" of " in row.split(" | ")[2]) == (place != order[0]), "each but the first differs from its parent"
        assert "built, not executed" not in prompt
        if number:
            fastest = min(order[:number], key=lambda place: modelled[place].predicted_us)
            [best] = [row for row in rows if "(the best)" in row]
            assert idea_of(FOUR[fastest]) in best
            assert f"Its time is a prediction: {modelled[fastest].predicted_us:.2f} us by timing-model on H200." in prompt


def test_the_author_repeats_nothing_and_the_run_ends_when_it_has_nothing_new(tmp_path: Path, cache: CompileOptions) -> None:
    outcome, prompts = drive(tmp_path, Proving(cache, predict((60.0, 25.0, 16.0, 14.0))), FOUR, budget=8)
    assert [step.candidate.source for step in outcome.steps] == [turn.draft.source for turn in FOUR]
    assert outcome.reason == "the policy has nothing new"
    assert len(prompts) > 4
    assert all(exchange.candidate_id is None for exchange in outcome.exchanges if exchange.reply == NOTHING_LEFT)


@pytest.mark.parametrize("order", [(3, 1, 0, 2), (0, 1, 2, 3)])
def test_of_kernels_that_tie_the_fastest_is_kept_and_the_tie_is_told(
    tmp_path: Path, cache: CompileOptions, capsys: pytest.CaptureFixture[str], order: Sequence[int]
) -> None:
    outcome, _ = drive(tmp_path, Proving(cache, predict(TIED)), [FOUR[place] for place in order])
    fastest, later = sorted((1, 3), key=TIED.__getitem__)
    assert outcome.best is not None
    assert outcome.best.candidate.source == FOUR[fastest].draft.source
    told = answer(outcome, capsys)
    assert told["tied"] == [step.candidate.id for step in outcome.steps if step.candidate.source == FOUR[later].draft.source]
    assert f"Tied within 3 %: chat {told['tied'][0][:8]} ({TIED[later]:.2f} us)" in render_report(outcome, Path("out"))  # type: ignore[index]
