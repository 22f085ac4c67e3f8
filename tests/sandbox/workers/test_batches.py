"""Batches with misbehaving workers: a candidate costs itself and one worker, and the others of its batch go on."""

import time

import pytest

from cudal2_agent.contract.errors import MachineError, WorkerError
from cudal2_agent.contract.records.evaluation import Crashed, Measured, TimedOut, Wrong
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.workers import pool as pool_module
from cudal2_agent.sandbox.workers.messages import BatchEnded, CandidateBatch, decode_request, encode
from tests.doubles import TASK
from tests.sandbox.workers.test_pool import LIMIT_S, Bench, request
from tests.sandbox.workers.test_worker import Raises, answers

GOOD = ("stage load", "stage verify", "stage time", "measured")


def batch(*scripts, limit_s=LIMIT_S, effort="screen"):
    single = request("x", limit_s=limit_s)
    built = tuple(request(*acts, f"name {position}").built for position, acts in enumerate(scripts))
    return CandidateBatch(effort=effort, built=built, task=TASK, verify=single.verify, time=TimeOptions(timeout_s=limit_s))


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.pool.close()


def run(bench, *scripts, **named):
    return list(bench.pool.batch(batch(*scripts, **named)))


def kinds(outcomes):
    return [(position, type(outcome)) for position, outcome in outcomes]


def test_a_batch_answers_candidate_by_candidate_in_one_worker(bench):
    outcomes = run(bench, GOOD, ("stage verify", "wrong"), GOOD)
    assert kinds(outcomes) == [(0, Measured), (1, Wrong), (2, Measured)]
    assert outcomes[0][1].timing.samples_us == outcomes[2][1].timing.samples_us, "one process"
    assert bench.restarts == []
    assert isinstance(bench.run("measured"), Measured), "the worker is in step"


@pytest.mark.parametrize(
    ("acts", "kind"),
    [
        (("stage time", "exit"), Crashed),
        (("stage time", "hang"), TimedOut),
        (("stage verify", "poisoned"), Crashed),
        (("stage load", "internal odd"), Crashed),
        (("stage time", "half-a-line"), Crashed),
        (("stage verify", "garbage"), Crashed),
    ],
)
def test_what_a_candidate_does_to_its_worker_costs_itself_only(bench, acts, kind):
    outcomes = run(bench, GOOD, acts, GOOD, GOOD)
    assert kinds(outcomes) == [(0, Measured), (1, kind), (2, Measured), (3, Measured)]
    assert len(bench.restarts) == 1
    assert isinstance(bench.run("measured"), Measured)


def test_every_candidate_may_break_its_worker(bench):
    outcomes = run(bench, ("stage load", "exit"), ("stage time", "exit"), ("stage verify", "poisoned"))
    assert kinds(outcomes) == [(0, Crashed), (1, Crashed), (2, Crashed)]
    assert [outcome.stage for _, outcome in outcomes] == ["load", "time", "verify"]


def test_a_worker_that_ends_between_two_candidates_is_neithers_fault(bench):
    outcomes = run(bench, (*GOOD, "exit-once"), GOOD)
    assert kinds(outcomes) == [(0, Measured), (1, Measured)]
    assert len(bench.restarts) == 1


def test_a_task_that_cannot_be_prepared_is_an_error_and_no_candidates_fault(bench):
    with pytest.raises(WorkerError, match="two workers in a row"):
        run(bench, ("stage prepare", "exit"), GOOD)


def test_what_is_not_a_candidates_fault_is_raised(bench):
    with pytest.raises(MachineError, match="out of memory"):
        run(bench, GOOD, ("stage time", "failed"), GOOD)
    assert isinstance(bench.run("measured"), Measured)


def test_a_batch_that_ends_too_early_is_not_asked_for_ever(bench):
    with pytest.raises(WorkerError, match="without its outcomes"):
        run(bench, ("ended",))


def test_an_answer_twice_about_one_candidate_loses_the_worker(bench):
    outcomes = run(bench, ("stage load", "measured", "measured"), GOOD)
    assert kinds(outcomes) == [(0, Measured), (1, Measured)]
    assert len(bench.restarts) == 1


def test_each_stage_is_told_once_with_its_candidate(bench):
    told = []
    bench.pool._on_stage = lambda built, stage: told.append((built.candidate.source[-1], stage))
    run(bench, ("stage load", "stage time", "stage time", "measured"), ("stage load", "stage time", "measured"))
    assert told == [("0", "load"), ("0", "time"), ("1", "load"), ("1", "time")]


def test_a_new_tuning_comes_to_whoever_keeps_it(bench):
    kept = []
    list(bench.pool.batch(batch(("stage prepare", "tuned", *GOOD)), kept.append))
    assert [(one.task, one.detail) for one in kept] == [(TASK, "scripted")]


def test_a_caller_that_stops_leaves_a_worker_in_step(bench):
    outcomes = bench.pool.batch(batch(GOOD, GOOD, GOOD))
    first = next(outcomes)[1]
    outcomes.close()
    again = bench.run("measured")
    assert again.timing.samples_us == first.timing.samples_us, "the rest was waited for"
    assert bench.restarts == []


def test_a_rest_that_does_not_end_is_not_waited_for(bench, monkeypatch):
    monkeypatch.setattr(pool_module, "DRAIN_S", 0.2)
    outcomes = bench.pool.batch(batch(GOOD, ("stage time", "hang"), limit_s=60))
    next(outcomes)
    started = time.monotonic()
    outcomes.close()
    assert time.monotonic() - started < 10
    assert isinstance(bench.run("measured"), Measured)


def test_an_interrupt_in_a_batch_leaves_no_stale_answer_behind(bench):
    def interrupt(_built, _stage):
        raise KeyboardInterrupt

    bench.pool._on_stage = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(bench, GOOD, GOOD)
    bench.pool._on_stage = lambda _built, _stage: None
    assert isinstance(bench.run("stage load", "wrong"), Wrong)


def test_a_slow_caller_is_no_hang(bench):
    outcomes = bench.pool.batch(batch(GOOD, GOOD))
    next(outcomes)
    time.sleep(2 * LIMIT_S)
    assert kinds(outcomes) == [(1, Measured)]


class Batches(Raises):
    """A backend that answers the first candidate of a batch and fails at the second."""

    position = 0

    def batch(self, sent):
        measured = decode_request(encode(sent)).built
        assert len(measured) == 2
        yield self._fault_free()
        self.position = 1
        raise self._error

    def _fault_free(self):
        from cudal2_agent.contract.records.evaluation import Rejected
        from cudal2_agent.sandbox.workers.messages import Done

        return Done(evaluation=Rejected(rule="r", message="m"), position=0)


def test_a_session_blames_the_candidate_that_is_worked_on():
    from cudal2_agent.sandbox.workers.messages import Done, Failed

    broken = Done(evaluation=Crashed(stage="time", message="CUDA_ERROR_ILLEGAL_ADDRESS"), healthy=False)
    said, code = answers(Batches(ValueError(), broken), encode(batch(GOOD, GOOD)))
    assert [one.position for one in said] == [0, 1]
    assert (said[1].healthy, code) == (False, 1)
    said, code = answers(Batches(ValueError("ours")), encode(batch(GOOD, GOOD)))
    assert isinstance(said[1], Failed)
    assert (said[1].kind, code) == ("internal", 1)


def test_a_backend_that_measures_nothing_refuses_a_batch():
    [reply], code = answers(Raises(ValueError()), encode(batch(GOOD)))
    assert "measures nothing" in reply.reason
    assert code == 1
    assert encode(BatchEnded()).strip() == b'{"message":"ended"}'
