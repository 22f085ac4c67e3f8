"""Winners are proved; a refuted one gives way to the next best of its run, and its steps say so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.campaign.proving import prove_all
from agent.campaign.winners import shape_result
from agent.run.result import RunResult
from contract.evaluation import Evaluation, TestResult, Wrong
from contract.run_settings import RunSettings
from policies.trajectories.campaigns.queue import CampaignQueue
from policies.trajectories.campaigns.results import ResultFilter, replace_result
from policies.trajectories.store import Store, open_store
from tests.agent.campaign.test_winners import raced
from tests.doubles import INSPECTION, OBSERVATION, ScriptedSandbox, run_record, step, unmeasured

FAULT = TestResult(tier="exact", name="race", passed=False, message="two writes race")
WRONG = Wrong(test=FAULT, tests=(FAULT,), inspection=INSPECTION)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A campaign with one row. Candidate 1 is the fastest, then 2, then 3."""
    with open_store(f"sqlite:///{tmp_path / 'trajectories.sqlite'}") as made:
        made.start_run(run_record())
        made.record_observation("run-1", OBSERVATION)
        steps = [step(number, number, evaluation=raced(4.0 + number)) for number in (1, 2, 3)]
        for one in steps:
            made.record_step(one)
        run = RunResult(run=run_record(), steps=steps, best=None, reason="", spent_s=1.0)
        queue = CampaignQueue(made, "grid")
        queue.open(RunSettings())
        queue.take_over([shape_result(run)])
        yield made


def prove(store: Store, verdicts: dict[int, Evaluation]) -> ScriptedSandbox:
    sandbox = ScriptedSandbox(witness=verdicts)
    rows = list(prove_all(store, sandbox, ResultFilter()))  # type: ignore[arg-type]
    assert all(row in store.results() for row in rows)
    return sandbox


def test_a_winner_that_agrees_stays(store: Store) -> None:
    assert prove(store, {}).witnessed == [1], "the same kernel wins with and without programmatic launch"
    [row] = store.results()
    assert row.witness == "agreed"
    assert row.best is not None
    assert row.best.step_index == 1
    assert prove(store, {}).witnessed == [], "it is proved once"


def test_what_the_steps_of_a_file_lack_stays_in_the_row(store: Store) -> None:
    """An exported step has no tests, from which the row's error came."""
    [row] = store.results()
    assert row.best is not None
    known = row.model_copy(update={"best": row.best.model_copy(update={"worst_error": 0.5})})
    with store.writing() as connection:
        replace_result(connection, 1, known)
    prove(store, {})
    [proved] = store.results()
    assert proved == known.model_copy(update={"witness": "agreed"})


def test_a_refuted_winner_gives_way_to_the_next_best(store: Store) -> None:
    assert prove(store, {1: WRONG, 2: WRONG}).witnessed == [1, 2, 3]
    [row] = store.results()
    assert row.best is not None
    assert row.best.step_index == 3
    assert row.witness.startswith("agreed: refuted")
    assert row.witness.count("refuted") == 2
    statuses = [one.evaluation.status for one in store.steps("run-1")]
    assert statuses == ["wrong", "wrong", "measured"]


def test_where_all_are_refuted_there_is_no_winner(store: Store) -> None:
    prove(store, dict.fromkeys((1, 2, 3), WRONG))
    [row] = store.results()
    assert (row.best, row.best_without) == (None, None)
    assert row.witness.startswith("refuted: ")


def test_what_cannot_be_executed_stays_with_the_reason(store: Store) -> None:
    prove(store, {1: unmeasured(5.0)})
    [row] = store.results()
    assert row.witness == "unavailable: the emulator did not execute the kernel"
    assert row.best is not None


def test_without_its_steps_a_row_says_so(store: Store) -> None:
    [row] = store.results()
    queue = CampaignQueue(store, "grid")
    later = row.model_copy(update={"run_id": "elsewhere", "task": row.task.model_copy(update={"m": 512})})
    queue.take_over([later])
    prove(store, {})
    assert "run elsewhere is not in this store" in store.results()[1].witness
