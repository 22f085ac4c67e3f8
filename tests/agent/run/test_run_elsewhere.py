"""Whole runs whose sandbox is elsewhere: what is asked of it, and what a link that is lost for good leaves."""

import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.run.lifecycle import resume_run
from cudal2_agent.contract.errors import DeviceUnavailable
from cudal2_agent.contract.events import RunStarted
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.remote.calls import BuildCall, FarCall
from cudal2_agent.sandbox.remote.far_answers import FarAnswer
from cudal2_agent.sandbox.remote.remote_sandbox import RemoteSandbox, open_over
from cudal2_agent.store.store import Store, open_store
from tests.agent.run.test_run import drive, parts
from tests.doubles import ScriptedPolicy, ScriptedSandbox, candidate, number_of, unmeasured
from tests.sandbox.remote.test_command_link import OPENING
from tests.sandbox.remote.through_json import ThroughJson, service_over

TIMES = {number: 20.0 - number for number in range(12)}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", budget=12, round_size=4, minutes=1.0, finalists=3)


@pytest.fixture
def store(settings: Settings) -> Store:
    return open_store(settings.store_url)


def elsewhere(scripted: ScriptedSandbox, *, is_slow: bool) -> tuple[ThroughJson, RemoteSandbox]:
    link = ThroughJson(service_over(scripted))
    link.is_slow = is_slow
    return link, open_over(link, OPENING, lambda *_: unmeasured(9.0).prediction, lambda _: None)


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_run_elsewhere_has_the_steps_of_a_run_here(is_slow: bool, settings: Settings, store: Store) -> None:
    scripted = ScriptedSandbox(TIMES, failures=(5,))
    _, sandbox = elsewhere(scripted, is_slow=is_slow)
    events: list[Any] = []
    there = drive(
        settings.model_copy(update={"device": "exec:ssh gpu1 w"}),
        replace(parts(store, ScriptedSandbox()), sandbox=sandbox),
        events,
    )
    here = drive(settings, parts(store, ScriptedSandbox(TIMES, failures=(5,))))
    assert sorted(number for number, effort in scripted.evaluated if effort == "screen") == [n for n in range(12) if n != 5]
    outcomes = [{(number_of(s.candidate), s.round, s.evaluation.headline) for s in run.steps} for run in (here, there)]
    assert outcomes[0] == outcomes[1]
    assert there.best is not None
    assert number_of(there.best.candidate) == 11
    assert [event.device for event in events if isinstance(event, RunStarted)] == ["scripted of exec:ssh gpu1 w"]
    assert there.run.settings.device == "exec:ssh gpu1 w"


def test_over_a_slow_link_a_round_of_a_model_takes_one_answer(settings: Settings, store: Store) -> None:
    """With all verdicts, counters and compiled code: after the last round there is the race alone."""
    written = [candidate(n).model_copy(update={"origin": Origin(policy="chat")}) for n in range(8)]
    link, sandbox = elsewhere(ScriptedSandbox(TIMES), is_slow=True)
    made = replace(parts(store, ScriptedSandbox()), sandbox=sandbox, policy=ScriptedPolicy(written, reads_code=True))
    ended = drive(settings.model_copy(update={"budget": 8}), made)
    asked = [call.deed.do for call in link.calls]
    assert asked == ["open", "build", "build", "execute"]
    assert ended.best is not None
    assert ended.best.profile is not None
    assert all(call.deed.ahead for call in link.calls if isinstance(call.deed, BuildCall))


def test_a_link_that_is_lost_for_good_leaves_a_run_to_resume(settings: Settings, store: Store) -> None:
    class Ending(ThroughJson):
        left = 4

        def call(self, call: FarCall, cancel: threading.Event | None = None) -> Generator[FarAnswer]:
            self.left -= 1
            if self.left < 0:
                raise DeviceUnavailable("exec:ssh gpu1 w: it ended before a worker answered; exit code 255")
            yield from super().call(call, cancel)

    scripted = ScriptedSandbox(TIMES)
    link = Ending(service_over(scripted))
    sandbox = RemoteSandbox(link, OPENING, lambda *_: unmeasured(9.0).prediction, lambda _: None)
    with pytest.raises(DeviceUnavailable, match="exit code 255"):
        drive(settings, replace(parts(store, ScriptedSandbox()), sandbox=sandbox))
    [run] = store.runs()
    before = store.steps(run.run_id)
    assert (run.status, 0 < len(before) < 12) == ("failed", True)
    _, again = elsewhere(scripted, is_slow=False)
    ended = resume_run(run, settings, replace(parts(store, ScriptedSandbox()), sandbox=again), lambda _: None)
    assert ended.steps[: len(before)] == before
    assert sorted(number_of(step.candidate) for step in ended.steps[:12]) == list(range(12))
    assert ended.run.status == "finished"
