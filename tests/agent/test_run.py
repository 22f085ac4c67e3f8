"""The real graph, the real store and the real checkpoints over a scripted policy and sandbox."""

from pathlib import Path

import pytest

from agent.parts import Parts
from agent.run import Outcome, new_run, start_run
from contract.evaluation import BASELINES, Measured
from contract.events import Event
from contract.settings import Settings
from policies.trajectories.store import Store, open_store
from tests import doubles
from tests.doubles import TASK, ScriptedPolicy, ScriptedRetriever, ScriptedSandbox, candidate, number_of


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", budget=12, round_size=4, minutes=1.0)


@pytest.fixture
def store(settings: Settings) -> Store:
    return open_store(settings.store_url)


def parts(store: Store, sandbox: ScriptedSandbox, count: int = 12) -> Parts:
    policy = ScriptedPolicy([candidate(number) for number in range(count)])
    return Parts(sandbox=sandbox, policy=policy, retriever=ScriptedRetriever(), store=store, diagnose=doubles.diagnose)


def drive(settings: Settings, made: Parts, events: list[Event] | None = None) -> Outcome:
    emit = events.append if events is not None else (lambda _: None)
    return start_run(new_run(TASK, settings, made, None), settings, made, emit)


def test_search_then_full_measurement_of_the_three_fastest(settings: Settings, store: Store) -> None:
    sandbox = ScriptedSandbox({number: 20.0 - number for number in range(12)})
    outcome = drive(settings, parts(store, sandbox))
    assert sandbox.evaluated == [(n, "quick") for n in range(12)] + [(n, "full") for n in (11, 10, 9)]
    assert outcome.best is not None
    assert number_of(outcome.best.candidate) == 11
    assert isinstance(outcome.best.evaluation, Measured)
    assert {timing.name for timing in outcome.best.evaluation.baselines} == set(BASELINES)
    assert [step.index for step in outcome.steps] == list(range(15))
    assert outcome.reason == "the budget of 12 candidates is spent"
    assert store.run(outcome.run.run_id).status == "finished"
    assert store.steps(outcome.run.run_id) == outcome.steps
