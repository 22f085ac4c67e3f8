"""The bench over scripted arms and a scripted sandbox: what is measured, what is shared, what fails, and how it goes on."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cudal2_agent.agent.bench.proposals.arms import BenchArm
from cudal2_agent.agent.bench.proposals.bench_session import PREDICTIONS, BenchSession, ProposalBench, known_candidates
from cudal2_agent.agent.bench.proposals.one_task import MAX_FINALISTS
from cudal2_agent.agent.bench.proposals.proposal_rows import BenchSize, ProposalRow, read_rows
from cudal2_agent.contract.errors import UsageError, WorkerError
from cudal2_agent.contract.events import Event, Notice
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import Crashed, Evaluation
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Observation, Precedent
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.store import open_store
from tests.doubles import CHIP, TASK, ScriptedPolicy, ScriptedSandbox, candidate, measured, number_of

OTHER = GemmTask(m=512, n=256, k=256)


class Raising(ScriptedPolicy):
    def propose(self, _: Observation, __: int) -> list[Candidate]:
        raise ZeroDivisionError("no")


def arm(name: str, numbers: Sequence[int], seen: list[ScriptedPolicy] | None = None) -> BenchArm:
    def opened(*_: object) -> ScriptedPolicy:
        policy = ScriptedPolicy([candidate(number) for number in numbers])
        if seen is not None:
            seen.append(policy)
        return policy

    return BenchArm(name, opened)


def bench(
    arms: Sequence[BenchArm], sandbox: ScriptedSandbox, budget: int = 8, said: list[Event] | None = None
) -> ProposalBench:
    size = BenchSize(count=min(budget, 8), budget=budget)
    return ProposalBench(arms, lambda *_: (), sandbox, size, 0, (said if said is not None else []).append)


def row_of(arms: Sequence[BenchArm], sandbox: ScriptedSandbox, budget: int = 8) -> ProposalRow:
    (row,) = bench(arms, sandbox, budget).rows([TASK])
    return row


def test_a_candidate_of_two_arms_is_screened_once() -> None:
    sandbox = ScriptedSandbox({1: 5.0, 2: 4.0, 3: 8.0})
    row = row_of([arm("one", [1, 2]), arm("two", [2, 3])], sandbox)
    screened = sorted(number for number, effort in sandbox.evaluated if effort == "screen")
    assert screened == [1, 1, 2, 3]  # the first one also prepares
    assert [one.candidates for one in row.arms] == [
        (candidate(1).id, candidate(2).id),
        (candidate(2).id, candidate(3).id),
    ]
    assert row.by_id[candidate(2).id].screened == pytest.approx(10 / 4)
    assert row.basis == "measured"


def test_the_race_holds_what_may_be_near_the_best() -> None:
    times = {1: 5.0, 2: 5.1, 3: 5.2, 4: 5.3, 5: 9.0}
    sandbox = ScriptedSandbox(times)
    row = row_of([arm("one", [4, 3, 2, 1]), arm("two", [5, 1])], sandbox)
    assert sorted({number for number, effort in sandbox.evaluated if effort == "race"}) == [1, 2, 4]
    assert row.by_id[candidate(5).id].race_status is None
    assert row.by_id[candidate(1).id].raced == pytest.approx(10 / 5.5)


def test_what_the_race_chose_races_again_and_the_second_race_judges() -> None:
    sandbox = ScriptedSandbox({1: 5.0, 2: 5.1, 3: 5.2, 4: 9.0})
    row = row_of([arm("one", [2, 1, 3]), arm("two", [4, 3])], sandbox)
    raced = [number for number, effort in sandbox.evaluated if effort == "race"]
    assert sorted(raced) == [1, 1, 2, 2, 3, 3], "the best known, the first and the best of each arm; 4 is far behind"
    assert row.by_id[candidate(1).id].confirmed == pytest.approx(10 / 5.5)
    assert row.by_id[candidate(4).id].confirmed is None


def test_a_fault_that_only_the_second_race_finds_counts() -> None:
    class Late(ScriptedSandbox):
        """Finds its candidates wrong from the second race on."""

        races = 0

        def race(self, built: Sequence[Built], task: GemmTask) -> list[Evaluation]:
            self.races += 1
            found = super().race(built, task)
            return found if self.races == 1 else [Crashed(stage="timing", message="late") for _ in found]

    row = row_of([arm("one", [1])], Late({1: 5.0}))
    assert row.by_id[candidate(1).id].failed
    assert row.by_id[candidate(1).id].confirmed is None


def test_a_race_has_a_limit() -> None:
    sandbox = ScriptedSandbox({number: 5.0 + number / 1000 for number in range(60)})
    row_of([arm(str(number), [number, number + 1]) for number in range(0, 60, 2)], sandbox)
    assert sorted({number for number, effort in sandbox.evaluated if effort == "race"}) == list(range(MAX_FINALISTS))


def test_a_failed_build_and_a_wrong_kernel_are_recorded() -> None:
    wrong: dict[int, Evaluation] = {2: measured(0.001)}  # beyond the roofline
    sandbox = ScriptedSandbox({1: 5.0}, failures=[3], outcomes=wrong)
    row = row_of([arm("one", [1, 2, 3])], sandbox)
    assert row.by_id[candidate(3).id].failed
    assert row.by_id[candidate(3).id].fault.startswith("line 1")
    assert row.by_id[candidate(2).id].screened is None


def test_an_arm_that_proposes_nothing_and_one_that_raises_leave_the_others() -> None:
    raising = BenchArm("raising", lambda *_: Raising([]))
    unopened = BenchArm("unopened", lambda *_: (_ for _ in ()).throw(UsageError("it needs a library")))
    said: list[Event] = []
    (row,) = bench([arm("none", []), raising, unopened, arm("one", [1])], ScriptedSandbox(), said=said).rows([TASK])
    assert [one.error for one in row.arms] == ["", "ZeroDivisionError: no", "UsageError: it needs a library", ""]
    assert [len(one.candidates) for one in row.arms] == [0, 0, 0, 1]
    assert Notice(message="arm raising at 256x256x256: ZeroDivisionError: no") in said


def test_a_task_for_which_nothing_is_proposed_has_a_row() -> None:
    sandbox = ScriptedSandbox()
    row = row_of([arm("none", [])], sandbox)
    assert (row.candidates, sandbox.evaluated) == ((), [])


def test_duplicates_within_an_arm_and_surplus_do_not_count() -> None:
    class Eager(ScriptedPolicy):
        def propose(self, _: Observation, __: int) -> list[Candidate]:
            return [candidate(1), candidate(1), *(candidate(number) for number in range(2, 20))]

    row = row_of([BenchArm("eager", lambda *_: Eager([]))], ScriptedSandbox())
    assert len(row.arms[0].candidates) == len(set(row.arms[0].candidates)) == 8


def test_an_arm_that_searches_sees_its_own_times_and_no_others() -> None:
    seen: list[ScriptedPolicy] = []
    times = {number: 5.0 + number for number in range(40)}
    row = row_of([arm("one", range(20), seen), arm("two", range(20, 40))], ScriptedSandbox(times), budget=20)
    first, second, third = seen[0].seen
    assert first.attempts == ()
    assert [len(one.attempts) for one in (second, third)] == [8, 16]
    assert [attempt.time_us for attempt in second.attempts] == [5.0 + number for number in range(8)]
    assert [len(ids) for ids in row.arms[0].rounds] == [8, 8, 4]
    assert len(row.arms[0].propose_s) == 3


def test_without_a_gpu_the_row_holds_predictions() -> None:
    sandbox = ScriptedSandbox({1: 5.0}, can_execute=False)
    row = row_of([arm("one", [1])], sandbox)
    assert (row.basis, row.environment, row.prepare_s) == ("predicted", None, 0.0)
    (only,) = row.candidates
    assert (only.predicted_us, only.screened, only.gpu_s) == (5.0, None, 0.0)
    assert all(effort == "screen" for _, effort in sandbox.evaluated)


def test_a_task_that_does_not_fit_is_left_out_with_a_notice() -> None:
    class Small(ScriptedSandbox):
        def build(self, candidates, task, cancel=None):
            if task == OTHER:
                raise UsageError("its operands do not fit")
            yield from super().build(candidates, task, cancel)

    said: list[Event] = []
    rows = list(bench([arm("one", [1])], Small(), said=said).rows([OTHER, TASK]))
    assert [row.task for row in rows] == [TASK]
    assert any(isinstance(one, Notice) and "512x256x256 is left out" in one.message for one in said)


def test_no_task_begins_after_the_time_is_spent() -> None:
    said: list[Event] = []
    sandbox = ScriptedSandbox(evaluate_s=0.05)
    rows = list(bench([arm("one", [1, 2])], sandbox, said=said).rows([TASK, OTHER, TASK], minutes=0.2 / 60))
    assert len(rows) == 1
    assert said[-1] == Notice(message="the time is spent; 2 tasks were not run")


def session(arms: Sequence[BenchArm], store, said: list[Event]) -> BenchSession:
    return BenchSession(arms, BenchSize(), Settings(device="none"), store, said.append)


def test_a_killed_bench_goes_on_with_what_is_left(tmp_path: Path) -> None:
    class Dying(ScriptedSandbox):
        def screen(self, built, task):
            if task == OTHER:
                raise WorkerError("the machine is gone")
            yield from super().screen(built, task)

    out, said, arms = tmp_path / "rows.jsonl", list[Event](), [arm("one", [1])]
    with open_store(f"sqlite:///{tmp_path / 's.sqlite'}") as store:
        with pytest.raises(WorkerError):
            session(arms, store, said).measured([TASK, OTHER], [], out, Dying(), None)
        before, _ = read_rows([out])
        assert [row.task for row in before] == [TASK]
        sandbox = ScriptedSandbox()
        session(arms, store, said).measured([TASK, OTHER], before, out, sandbox, None)
        assert "1 of 2 tasks have a row already" in str(said)
        assert len(sandbox.evaluated) == 4  # prepared, screened and raced twice for the task that was left
        again, _ = read_rows([out])
        assert [row.task for row in again] == [TASK, OTHER]
        more = session([*arms, arm("two", [2])], store, said).measured([TASK], again, out, ScriptedSandbox(), None)
        assert [one.name for one in more[0].arms] == ["one", "two"]


def test_an_interrupted_bench_says_what_is_left(tmp_path: Path) -> None:
    class Interrupted(ScriptedSandbox):
        def race(self, _, __):
            raise KeyboardInterrupt

    said: list[Event] = []
    with open_store(f"sqlite:///{tmp_path / 's.sqlite'}") as store, pytest.raises(KeyboardInterrupt):
        session([arm("one", [1])], store, said).measured([TASK, OTHER], [], tmp_path / "r", Interrupted(), None)
    assert said[-1] == Notice(message="interrupted with 2 tasks left; the same command resumes")


def test_the_other_arms_end_where_one_cannot_be_measured() -> None:
    class Lost(ScriptedSandbox):
        def screen(self, built, task):
            if any(number_of(one.candidate) == 9 for one in built):
                raise WorkerError("the GPU is lost")
            yield from super().screen(built, task)

    with pytest.raises(WorkerError):
        list(bench([arm("one", range(20)), arm("two", range(100, 600))], Lost(), budget=400).rows([TASK]))


def test_predictions_are_announced(tmp_path: Path) -> None:
    said: list[Event] = []
    with open_store(f"sqlite:///{tmp_path / 's.sqlite'}") as store:
        session([arm("one", [1])], store, said).measured([TASK], [], tmp_path / "r", ScriptedSandbox(can_execute=False), None)
    assert Notice(message=PREDICTIONS) in said


def test_known_schedules_that_no_family_writes_any_more_are_left_out() -> None:
    def known(task: GemmTask, _: object) -> list[Precedent]:
        schedules = [{"family": "gone"}, {"family": "mma_sync", "axis": 1}]
        return [Precedent(run_id="r", task=task, schedule=one, speedup=1.0) for one in schedules]

    assert known_candidates(known, TASK, CHIP) == []


def test_known_schedules_are_measured_with_the_proposals() -> None:
    from cudal2_agent.policies.schedule.families.registry import families
    from cudal2_agent.policies.schedule.policy import SchedulePolicy

    first = SchedulePolicy(families(TASK.arch)).propose(Observation(task=TASK, chip=CHIP, round=1, seed=0), 1)[0]
    assert first.origin.schedule is not None
    found = known_candidates(
        lambda task, _: [Precedent(run_id="r", task=task, schedule=first.origin.schedule or {}, speedup=1.0)], TASK, CHIP
    )
    assert [one.id for one in found] == [first.id]
    assert number_of(candidate(3)) == 3
