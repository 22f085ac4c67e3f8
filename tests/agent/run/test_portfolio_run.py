"""A whole run of the portfolio over scripted policies: the real graph and store."""

from pathlib import Path

import pytest

from cudal2_agent.agent.report.attribution import improvements
from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import name_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.contract.errors import EndpointError
from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.trajectory import Observation
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.portfolio.policy import Portfolio
from cudal2_agent.store.store import Store, open_store
from tests import doubles
from tests.doubles import TASK, ScriptedPolicy, ScriptedRetriever, ScriptedSandbox, candidate


def free(number: int) -> Candidate:
    """A candidate in the form that a model writes."""
    return candidate(number).model_copy(update={"origin": Origin(policy="chat", prompt_hash="p")})


def scheduled(number: int) -> Candidate:
    return candidate(number).model_copy(update={"origin": Origin(policy="schedule", schedule={"number": number})})


class Failing(ScriptedPolicy):
    """Its server disappears in the third round."""

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        if observation.round > 2:
            raise EndpointError("the server is gone")
        return super().propose(observation, count)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(Settings(home=tmp_path).store_url)


def drive(store: Store, home: Path, chat: ScriptedPolicy, times_us: dict[int, float], events: list[Event]) -> RunResult:
    settings = Settings(home=home, budget=24, round_size=4, minutes=1.0, policy="portfolio")
    arms = {"schedule": ScriptedPolicy([scheduled(number) for number in range(24)]), "chat": chat}
    made = Dependencies(
        sandbox=ScriptedSandbox(times_us),
        policy=Portfolio(arms, settings.budget, 0, events.append),
        retriever=ScriptedRetriever(),
        store=store,
        diagnose=doubles.diagnose,
        explain=doubles.explain,
    )
    return start_run(name_run(TASK), TASK, settings, made, events.append)


def test_chat_starts_from_a_proven_kernel_and_its_gains_are_its_own(store: Store, tmp_path: Path) -> None:
    chat = ScriptedPolicy([free(number) for number in range(100, 124)], reads_code=True)
    outcome = drive(store, tmp_path, chat, {0: 15.0, **{100 + n: 14.0 - 0.3 * n for n in range(24)}}, [])
    assert [step.candidate.origin.policy for step in outcome.steps[:4]] == ["schedule"] * 4
    assert chat.seen[0].round == 2
    assert chat.seen[0].best is not None
    assert chat.seen[0].best.id == candidate(0).id
    trajectory = store.trajectory(outcome.run.run_id)
    better = improvements(trajectory.steps, trajectory.observations, TASK, outcome.run.chip)
    assert {one.policy for one in better[1:]} == {"chat"}
    tried = [step.candidate.origin.policy for step in outcome.steps[:24]]
    assert tried[12:].count("chat") > tried[12:].count("schedule")
    assert outcome.best is not None
    assert outcome.best.candidate.origin.policy == "chat"


def test_a_server_that_goes_away_costs_one_notice_and_no_step(store: Store, tmp_path: Path) -> None:
    events: list[Event] = []
    outcome = drive(store, tmp_path, Failing([free(number) for number in range(100, 124)]), {100: 10.0}, events)
    said = [event.message for event in events if isinstance(event, Notice)]
    assert said == ["the server is gone; the run goes on without the chat policy"]
    assert outcome.reason == "the budget of 24 candidates is spent"
    assert outcome.run.status == "finished"
