"""A model's sources whose predictions are far behind the best measured time are recorded and not timed."""

from pathlib import Path

import pytest

from cudal2_agent.agent.run.dependencies import Dependencies
from cudal2_agent.agent.run.lifecycle import name_run, start_run
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Measured, Unmeasured
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.chat.prompts.history import tried_text
from cudal2_agent.store.store import open_store
from tests import doubles
from tests.doubles import TASK, ScriptedPolicy, ScriptedRetriever, ScriptedSandbox, candidate, number_of

TIMES = {0: 10.0, 1: 12.0, 2: 11.0, 3: 9.0}  # measured, 20 us where none is given


def free(number: int) -> Candidate:
    """A candidate in the form that a model writes."""
    return candidate(number).model_copy(update={"origin": Origin(policy="chat", prompt_hash="p")})


class Run:
    """A run of three rounds of two kernels. `seen`: what its policy saw."""

    def __init__(self, home: Path, sandbox: ScriptedSandbox, *, task: GemmTask = TASK, **options: object) -> None:
        settings = Settings(home=home, budget=6, round_size=2, minutes=1.0, finalists=1, **options)  # type: ignore[arg-type]
        self.policy = ScriptedPolicy([free(number) for number in range(6)], reads_code=True)
        self.sandbox = sandbox
        store = open_store(settings.store_url)
        made = Dependencies(
            sandbox=sandbox,
            policy=self.policy,
            retriever=ScriptedRetriever(),
            store=store,
            diagnose=doubles.diagnose,
            explain=doubles.explain,
        )
        self.outcome: RunResult = start_run(name_run(task), task, settings, made, lambda _: None)

    @property
    def timed(self) -> list[int]:
        return sorted(number for number, effort in self.sandbox.evaluated if effort == "quick")

    def evaluation(self, number: int) -> Measured | Unmeasured:
        [*found] = [one.evaluation for one in self.outcome.steps if number_of(one.candidate) == number]
        assert isinstance(found[0], Measured | Unmeasured)
        return found[0]


def test_a_source_far_behind_is_recorded_with_its_prediction_and_not_timed(tmp_path: Path) -> None:
    run = Run(tmp_path, ScriptedSandbox(TIMES, estimates={2: 12.0, 3: 40.0, 4: 19.0, 5: 21.0}))
    assert run.timed == [0, 1, 2, 4]
    left_out = run.evaluation(3)
    assert isinstance(left_out, Unmeasured)
    assert left_out.prediction.predicted_us == 40.0
    assert left_out.headline == "verified by nothing: predicted 40.00 us against 10.00 us measured; not timed"
    assert run.outcome.best is not None
    assert number_of(run.outcome.best.candidate) == 0


def test_the_next_prompt_says_why_it_was_not_timed(tmp_path: Path) -> None:
    run = Run(tmp_path, ScriptedSandbox(TIMES, estimates={2: 12.0, 3: 40.0}))
    [*told] = [row for row in tried_text(run.policy.seen[2]) if "40.00" in row]
    assert len(told) == 1
    assert "predicted 40.00 us against 10.00 us measured; not timed" in told[0]


def test_the_best_predicted_source_of_a_round_is_timed_however_slow_it_is(tmp_path: Path) -> None:
    run = Run(tmp_path, ScriptedSandbox(TIMES, estimates={2: 50.0, 3: 40.0}))
    assert run.timed == [0, 1, 3, 4, 5]


def test_a_source_that_the_model_does_not_know_is_timed(tmp_path: Path) -> None:
    run = Run(tmp_path, ScriptedSandbox(TIMES, estimates={2: 12.0}))
    assert run.timed == [0, 1, 2, 3, 4, 5]


def test_predictions_for_another_chip_leave_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = doubles.CHIP.model_copy(update={"name": "another H100"})
    monkeypatch.setattr(ScriptedSandbox, "chip", property(lambda _: other))
    run = Run(tmp_path, ScriptedSandbox(TIMES, estimates={2: 12.0, 3: 40.0}))
    assert run.timed == [0, 1, 2, 3, 4, 5]


def test_the_option_turns_it_off(tmp_path: Path) -> None:
    run = Run(tmp_path, ScriptedSandbox(TIMES, estimates={2: 12.0, 3: 40.0}), screen_sources=False)
    assert run.timed == [0, 1, 2, 3, 4, 5]


def test_a_server_is_not_predicted(tmp_path: Path) -> None:
    server = TASK.model_copy(update={"mode": TimingMode.SERVER})
    run = Run(tmp_path, ScriptedSandbox(TIMES, estimates={2: 12.0, 3: 40.0}), task=server)
    assert run.timed == [0, 1, 2, 3, 4, 5]


def test_schedules_are_always_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Origin, "trusted_writer", property(lambda _: True))
    run = Run(tmp_path, ScriptedSandbox(TIMES, estimates={2: 12.0, 3: 40.0}))
    assert sorted(number for number, effort in run.sandbox.evaluated if effort == "screen") == [0, 1, 2, 3, 4, 5]
