"""The pool with misbehaving workers: each costs one worker, and never ends or hangs the run."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from cudal2_agent.contract.errors import DeviceUnavailable, MachineError, WorkerError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Crashed, Measured, TimedOut, Wrong
from cudal2_agent.contract.settings.options import TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.sandbox.workers import messages as messages_module
from cudal2_agent.sandbox.workers import pool as pool_module
from cudal2_agent.sandbox.workers.messages import Evaluate, Verified
from cudal2_agent.sandbox.workers.pool import WorkerPool
from tests.doubles import INSPECTION, PLAN, TASK

SCRIPT = str(Path(__file__).with_name("scripted_worker.py"))
LIMIT_S = 0.4


class Bench:
    """A pool of scripted workers, and its events."""

    def __init__(self, scratch: Path, start: str = "ready", workers: int = 1, start_timeout_s: float = 30.0) -> None:
        self.stages: list[str] = []
        self.restarts: list[str] = []
        self.state = scratch / "state"
        limits = {"start_timeout_s": start_timeout_s, "scratch_dir": str(scratch)}  # where the script keeps its state
        options = [WorkerOptions(device=index, **limits) for index in range(workers)]
        self.pool = WorkerPool(
            options,
            on_stage=lambda _, stage: self.stages.append(stage),
            on_restart=self.restarts.append,
            environment={"STATE_FILE": str(self.state)},
            command=[sys.executable, "-P", SCRIPT, start],
        )

    def run(self, *acts: str, limit_s: float = LIMIT_S, timed: bool = True):
        return self.pool.evaluate(request(*acts, limit_s=limit_s, timed=timed))


def request(*acts: str, limit_s: float = LIMIT_S, timed: bool = True) -> Evaluate:
    candidate = Candidate(source="\n".join(acts), plan=PLAN, origin=Origin(policy="scripted"))
    built = Built(candidate=candidate, inspection=INSPECTION, artifact_path="none", cached=False, seconds=0.0)
    timing = TimeOptions(timeout_s=limit_s) if timed else None
    return Evaluate(built=built, task=TASK, verify=VerifyOptions(timeout_s=limit_s), time=timing)


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.pool.close()


@pytest.fixture
def open_bench(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "BACK_OFF_S", 0.01)
    made: list[Bench] = []

    def make(**arguments) -> Bench:
        made.append(Bench(tmp_path, **arguments))
        return made[-1]

    yield make
    for each in made:
        each.pool.close()


def test_measures_on_one_worker_again_and_again(bench):
    first = bench.run("stage load", "stage verify", "stage time", "stage recheck", "measured")
    second = bench.run("stage load", "measured")
    assert isinstance(first, Measured)
    assert isinstance(second, Measured)
    assert first.timing.samples_us == second.timing.samples_us, "the script answers with its process id: one process, reused"
    assert bench.stages == ["load", "verify", "time", "recheck", "load"]
    assert bench.restarts == []


def test_says_what_the_worker_says_of_its_gpu(bench):
    assert bench.pool.ready().environment.gpu == "scripted"


def test_wrong_leaves_the_worker_alone(bench):
    assert isinstance(bench.run("stage verify", "wrong"), Wrong)
    assert isinstance(bench.run("measured"), Measured)
    assert bench.restarts == []


def test_verified_where_no_time_was_asked(bench):
    assert isinstance(bench.run("stage verify", "verified", timed=False), Verified)


def test_a_death_is_the_candidates_crash_with_its_stage_and_last_words(bench):
    outcome = bench.run("stage load", "stage verify", "exit")
    assert isinstance(outcome, Crashed)
    assert outcome.stage == "verify"
    assert "exit code 1" in outcome.message
    assert "fell over its own feet" in outcome.message
    assert outcome.inspection == INSPECTION
    assert isinstance(bench.run("measured"), Measured)
    assert len(bench.restarts) == 1


def test_a_signal_is_named(bench):
    outcome = bench.run("stage time", "segfault")
    assert isinstance(outcome, Crashed)
    assert "SIGSEGV" in outcome.message


def test_a_line_cut_short_is_a_crash_not_an_answer(bench):
    outcome = bench.run("stage time", "half-a-line")
    assert isinstance(outcome, Crashed)
    assert "exit code 0" in outcome.message


@pytest.mark.parametrize("act", ["garbage", "ready"])
def test_what_is_no_answer_is_a_crash(bench, act):
    outcome = bench.run("stage verify", act, "measured")
    assert isinstance(outcome, Crashed)
    assert isinstance(bench.run("measured"), Measured)


@pytest.mark.parametrize("act", ["hang", "drip"])
def test_no_answer_in_time_is_a_time_out_of_that_stage(bench, act):
    bench.pool.ready()
    started = time.monotonic()
    outcome = bench.run("stage load", "stage time", act)
    assert outcome == TimedOut(stage="time", limit_s=LIMIT_S, inspection=INSPECTION)
    assert time.monotonic() - started < LIMIT_S + 5
    assert isinstance(bench.run("measured"), Measured)


def test_each_stage_has_its_own_deadline(bench):
    stages = ["stage load", "stage verify", "stage time", "stage recheck"]
    outcome = bench.run(*stages, "hang", limit_s=0.3)
    assert isinstance(outcome, TimedOut)
    assert outcome.stage == "recheck"


def test_a_flood_of_output_without_a_line_ends(bench, monkeypatch):
    monkeypatch.setattr("cudal2_agent.sandbox.workers.channel.MAX_LINE_BYTES", 1 << 20)
    outcome = bench.run("stage verify", "flood-stdout-forever", limit_s=20)
    assert isinstance(outcome, Crashed)
    assert "more than 1048576 bytes" in outcome.message


def test_a_flood_on_stderr_neither_blocks_nor_fills_memory(bench):
    outcome = bench.run("stage verify", "flood-stderr", "measured", limit_s=20)
    assert isinstance(outcome, Measured)
    assert len(bench.pool._workers[0].spawn().stderr_tail) <= 16 * 1024


def test_closing_stdout_and_staying_is_a_crash(bench):
    outcome = bench.run("stage verify", "close-stdout", limit_s=20)
    assert isinstance(outcome, Crashed)
    assert "SIGKILL" in outcome.message


def test_a_poisoned_context_costs_the_worker_but_keeps_its_report(bench):
    outcome = bench.run("stage verify", "poisoned")
    assert isinstance(outcome, Crashed)
    assert outcome.message == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert bench.restarts == ["a candidate poisoned its CUDA context"]
    assert isinstance(bench.run("measured"), Measured)


def test_a_killed_worker_takes_its_children_along(bench):
    bench.run("stage verify", "grandchild", "hang")
    child = int(bench.state.read_text())
    deadline = time.monotonic() + 5
    while is_running(child):
        assert time.monotonic() < deadline, "the candidate's child outlived its worker"
        time.sleep(0.02)


def test_what_is_not_the_candidates_fault_is_raised(bench):
    with pytest.raises(MachineError, match="out of memory") as caught:
        bench.run("stage time", "failed")
    assert caught.value.log == "a long log"
    assert isinstance(bench.run("measured"), Measured)


def test_an_error_of_ours_on_one_candidate_is_its_own_outcome(bench):
    outcome = bench.run("stage load", "stage verify", "internal odd")
    assert isinstance(outcome, Crashed)
    assert (outcome.stage, outcome.message) == ("verify", "internal error on this candidate: ValueError: odd")
    assert outcome.inspection == INSPECTION
    assert bench.restarts == ["an internal error in verify: ValueError: odd"], "it is seen"
    assert isinstance(bench.run("stage load", "measured"), Measured)


def test_an_error_of_ours_on_every_candidate_ends_the_run_with_its_traceback(bench):
    for name in ("one", "two", "two"):
        assert isinstance(bench.run("stage load", f"internal {name}"), Crashed), "the same candidate counts once"
    with pytest.raises(WorkerError, match="3 candidates in a row met an internal error, the last one in load") as caught:
        bench.run("stage load", "internal three")
    assert caught.value.log == "Traceback of ours"
    assert isinstance(bench.run("stage load", "internal four"), Crashed), "a run that is resumed begins to count anew"


def test_a_candidate_without_an_error_of_ours_ends_the_row(bench):
    for name in ("one", "two", "three", "four"):
        assert isinstance(bench.run("stage load", f"internal {name}"), Crashed)
        assert isinstance(bench.run("stage load", "wrong"), Wrong)


def test_a_request_that_cannot_be_written_is_its_candidates_crash(bench, monkeypatch):
    def encode(_):
        raise ValueError("surrogates not allowed")

    with monkeypatch.context() as patched:
        patched.setattr(pool_module, "encode", encode)
        outcome = bench.run("measured")
    assert isinstance(outcome, Crashed)
    assert "surrogates" in outcome.message
    assert isinstance(bench.run("measured"), Measured)


def test_an_outcome_outlives_a_worker_that_cannot_be_replaced(bench, monkeypatch):
    worker, real = bench.pool._workers[0], bench.pool._workers[0].spawn

    def spawn():
        if worker._channel is None and bench.restarts:
            raise WorkerError("no more processes")
        return real()

    monkeypatch.setattr(worker, "spawn", spawn)
    assert isinstance(bench.run("stage verify", "exit"), Crashed)
    monkeypatch.undo()
    assert isinstance(bench.run("measured"), Measured)


def test_a_worker_lost_before_it_began_is_not_the_candidates_fault(bench):
    outcome = bench.run("exit-once", "stage load", "measured")
    assert isinstance(outcome, Measured)
    assert len(bench.restarts) == 1


def test_two_workers_lost_before_they_began_are_an_error(bench):
    with pytest.raises(WorkerError, match="two workers in a row"):
        bench.run("exit")


def test_a_worker_that_died_between_requests_is_replaced(bench):
    bench.run("measured", "stage load", "exit")
    time.sleep(0.3)
    assert isinstance(bench.run("stage load", "measured"), Measured)


def test_a_callback_that_raises_leaves_no_stale_answer_behind(tmp_path):
    def interrupt(_: Built, __: str) -> None:
        raise KeyboardInterrupt

    bench = Bench(tmp_path)
    bench.pool._on_stage = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.run("stage load", "wrong")
    bench.pool._on_stage = lambda _, __: None
    assert isinstance(bench.run("stage load", "measured"), Measured)
    bench.pool.close()


def test_no_gpu_is_told_without_endless_tries(open_bench):
    with pytest.raises(DeviceUnavailable, match="no GPU in this script"):
        open_bench(start="no-gpu").pool.ready()


@pytest.mark.parametrize(
    ("start", "told"), [("exit", "exit code 1; this worker exits"), ("garbage", "not a reply"), ("wrong-message", "'stage'")]
)
def test_a_worker_that_never_gets_ready_is_an_error_with_its_log(open_bench, start, told):
    with pytest.raises(WorkerError) as caught:
        open_bench(start=start).pool.ready()
    assert told in str(caught.value)
    assert start != "exit" or "this worker exits" in caught.value.log


def test_a_silent_worker_is_given_up(open_bench):
    started = time.monotonic()
    with pytest.raises(WorkerError, match="not ready after"):
        open_bench(start="silent", start_timeout_s=0.3).pool.ready()
    assert time.monotonic() - started < 15


def test_a_worker_that_starts_at_the_second_try_is_fine(open_bench):
    assert open_bench(start="exit-once").pool.ready().chip.sms == 132


def test_a_candidate_s_clock_starts_when_it_can_run(open_bench):
    """Neither a slow start of its worker nor what the worker prepares counts, however short the candidate's own limits are."""
    outcome = open_bench(start="slow").run("stage prepare", "sleep 1", "stage load", "stage verify", "measured")
    assert isinstance(outcome, Measured)


def test_preparing_for_ever_is_not_the_candidate_s_fault(bench, monkeypatch):
    monkeypatch.setattr(messages_module, "PREPARE_TIMEOUT_S", 0.3)
    with pytest.raises(WorkerError, match="two workers in a row were lost before they began: no answer within"):
        bench.run("stage prepare", "hang")


def test_a_python_that_is_not_there_is_a_worker_error(open_bench, tmp_path):
    bench = open_bench()
    bench.pool._workers[0]._command = [str(tmp_path / "no-such-python")]
    with pytest.raises(WorkerError, match="no such program"):
        bench.pool.ready()


def test_two_workers_run_side_by_side(open_bench):
    bench = open_bench(workers=2)
    outcomes: list[object] = []
    threads = [threading.Thread(target=lambda: outcomes.append(bench.run("stage time", "hang", limit_s=1.0))) for _ in range(2)]
    for worker in bench.pool._workers:
        worker.ready()
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(outcome) for outcome in outcomes] == [TimedOut, TimedOut]
    assert time.monotonic() - started < 1.9, "two hangs of a second each, at the same time"


def test_closing_ends_the_processes(tmp_path):
    bench = Bench(tmp_path)
    outcome = bench.run("measured")
    assert isinstance(outcome, Measured)
    process = int(outcome.timing.samples_us[0])
    bench.pool.close()
    assert not is_running(process)


def test_the_worker_inherits_no_secrets(bench, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    outcome = bench.run("measured")
    assert isinstance(outcome, Measured)
    environment = Path(f"/proc/{int(outcome.timing.samples_us[0])}/environ").read_bytes()
    assert b"STATE_FILE" in environment
    assert b"secret" not in environment


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
