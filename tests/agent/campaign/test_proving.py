"""Winners are proved; a refuted one gives way to the next best of its run, and its steps say so."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest

from cudal2_agent.agent.campaign.proving import prove_all, proved
from cudal2_agent.agent.campaign.winners import shape_result
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Evaluation, TestResult, Wrong
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.campaign_results import ResultFilter, replace_result
from cudal2_agent.store.store import Store, open_store
from tests.agent.campaign.test_winners import raced
from tests.doubles import CHIP, INSPECTION, OBSERVATION, TASK, ScriptedSandbox, run_record, step, unmeasured
from tests.store.campaigns.rows import result, winner

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


class SourceSandbox:
    """Proves by source: candidates that are listed fail."""

    def __init__(self, refuted: set[str]) -> None:
        self._refuted = refuted
        self.witnessed: list[str] = []

    def build(self, candidates: Sequence[Candidate], _: GemmTask) -> Iterator[tuple[int, Built]]:
        for position, one in enumerate(candidates):
            yield position, Built(candidate=one, inspection=INSPECTION, artifact_path="", cached=False, seconds=0.01)

    def witness(self, built: Built, _: GemmTask) -> Evaluation:
        self.witnessed.append(built.candidate.id)
        return WRONG if built.candidate.id in self._refuted else unmeasured(20.0, "emulator")


def launched(place: int, *, programmatic: bool) -> Winner:
    """A winner as a row holds it: a schedule of the space, and the id of the source that it gives."""
    family = families(TASK.arch)[0]
    schedule = family.parse(next(islice(family.space(TASK, CHIP), place, None)).model_dump(mode="json"))
    candidate = family.write(schedule, TASK)
    return winner(candidate_id=candidate.id, schedule=candidate.origin.schedule, programmatic=programmatic)


def proved_by_row(row: ShapeResult, refuted: set[str], store: Store) -> tuple[ShapeResult, list[str]]:
    sandbox = SourceSandbox(refuted)
    return proved(store, sandbox, row), sandbox.witnessed  # type: ignore[arg-type]


@pytest.mark.parametrize("run_id", ["elsewhere", None, "run-1"])
def test_without_its_steps_a_winner_is_written_again_and_proved(store: Store, run_id: str | None) -> None:
    """Run 1 is in the store, with other steps than those of the winners."""
    best, plain = launched(0, programmatic=True), launched(1, programmatic=False)
    row = result(TASK, run_id=run_id, best=best, best_without=plain)
    found, witnessed = proved_by_row(row, set(), store)
    assert found == row.model_copy(update={"witness": "agreed"})
    assert sorted(witnessed) == sorted({best.candidate_id, plain.candidate_id})


def test_without_its_steps_a_refuted_winner_has_no_successor_but_the_plain_one(store: Store) -> None:
    best, plain = launched(0, programmatic=True), launched(1, programmatic=False)
    row = result(TASK, run_id="elsewhere", best=best, best_without=plain)
    found, _ = proved_by_row(row, {best.candidate_id}, store)
    assert (found.best, found.best_without) == (plain, plain)
    assert found.witness.startswith("agreed: refuted")
    found, _ = proved_by_row(row, {best.candidate_id, plain.candidate_id}, store)
    assert (found.best, found.best_without) == (None, None)
    assert found.witness.startswith("refuted: ")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schedule": None}, "not in this store"),
        ({"candidate_id": "another"}, "its family writes another source today"),
        ({"schedule": {"family": "gone"}}, "its schedule cannot be written: there is no kernel family 'gone'"),
    ],
)
def test_what_cannot_be_written_again_is_not_proved(store: Store, changes: dict[str, object], why: str) -> None:
    one = launched(0, programmatic=False).model_copy(update=changes)
    found, witnessed = proved_by_row(result(TASK, run_id="elsewhere", best=one, best_without=one), set(), store)
    assert found.witness.startswith("unavailable: the winner's step is not in this store")
    assert why in found.witness
    assert found.best == one
    assert witnessed == []
