"""Screens and races of the local sandbox: on a scripted GPU, on the emulator, and with nothing; kept baselines."""

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import HostCandidate, Origin
from cudal2_agent.contract.records.evaluation import Crashed, Measured, Rejected, Unmeasured, Wrong
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox import local
from tests.doubles import INSPECTION, TASK
from tests.sandbox.test_local import (
    NAIVE,
    _quick_builds,
    built_from,
    needs_core,
    opened,
    options,
    scripted,
    with_script,
    without_driver,
)
from tests.sandbox.workers.scripted_worker import ENVIRONMENT

__all__ = ["_quick_builds", "options", "with_script", "without_driver"]

GOOD = ("stage load", "stage time", "measured")


class Book:
    def __init__(self):
        self.kept, self.asked = {}, []

    def tuned(self, task, environment):
        self.asked.append((task, environment))
        return self.kept.get((task, environment))

    def keep(self, baseline: TunedBaseline):
        self.kept[baseline.task, baseline.environment] = baseline


def test_a_screen_yields_each_candidate_and_a_crash_costs_itself(options, with_script):
    with_script()
    sandbox, _ = opened(options)
    built = [scripted(sandbox, *acts) for acts in (GOOD, ("stage time", "exit"), GOOD)]
    outcomes = dict(sandbox.screen(built, TASK))
    assert [type(outcomes[position]) for position in range(3)] == [Measured, Crashed, Measured]
    sandbox.close()


def test_a_race_answers_in_order_and_goes_on_without_a_finalist_that_crashes(options, with_script):
    with_script()
    sandbox, _ = opened(options)
    finalists = [scripted(sandbox, *acts) for acts in (("stage time", "exit"), GOOD, ("stage verify", "wrong"))]
    assert [type(outcome) for outcome in sandbox.race(finalists, TASK)] == [Crashed, Measured, Wrong]
    assert sandbox.race([], TASK) == []
    sandbox.close()


def test_the_machine_code_of_a_trusted_writer_is_judged_before_a_race_and_not_before_a_screen(
    options, with_script, monkeypatch
):
    with_script()
    sandbox, _ = opened(options)
    broken = Rejected(rule="device-clock", message="it reads the time")
    unjudged, other = scripted(sandbox, *GOOD).model_copy(update={"judged": False}), scripted(sandbox, *GOOD)
    monkeypatch.setattr(sandbox._builder, "build_one", lambda *_given, **_options: broken)
    assert [type(outcome) for _, outcome in sandbox.screen([unjudged], TASK)] == [Measured]
    assert sandbox.race([unjudged, other], TASK)[0] == broken
    assert sandbox.evaluate(unjudged, TASK, "quick") == broken
    assert sandbox.verify(unjudged, TASK) == broken
    sandbox.close()


def test_a_host_candidate_that_is_not_trusted_is_refused_in_its_place(options, with_script):
    with_script()
    sandbox, _ = opened(options)
    host = HostCandidate(source="x", origin=Origin(policy="chat"))
    refused = Built(candidate=host, inspection=INSPECTION, artifact_path="/nowhere", cached=True, seconds=0.0)
    outcomes = sandbox.race([scripted(sandbox, *GOOD), refused, scripted(sandbox, *GOOD)], TASK)
    assert [type(outcome) for outcome in outcomes] == [Measured, Rejected, Measured]
    sandbox.close()


def test_what_a_worker_tunes_is_kept_and_given_to_the_next_request(options, with_script):
    with_script()
    book = Book()
    sandbox, _ = opened({**options, "baselines": book})
    list(sandbox.screen([scripted(sandbox, "stage prepare", "tuned", *GOOD)], TASK))
    [(task, environment)] = book.kept
    assert (task, environment) == (TASK, ENVIRONMENT.key)
    requests = []
    real = sandbox._pool.batch
    sandbox._pool.batch = lambda request, keep: requests.append(request) or real(request, keep)
    sandbox.race([scripted(sandbox, *GOOD)], TASK)
    assert requests[0].tuned == book.kept[TASK, environment]
    assert (requests[0].effort, requests[0].time.heuristic) == ("race", True)
    sandbox.close()


@needs_core
@pytest.mark.usefixtures("without_driver")
def test_on_the_emulator_both_verify_one_by_one(options):
    task = TASK.model_copy(update={"m": 40, "n": 24, "k": 32})
    sandbox, _ = opened(options, task=task, device="emulator")
    right = built_from(sandbox, NAIVE, task)
    wrong = built_from(sandbox, NAIVE.replace("row >= m ||", ""), task)
    screened = dict(sandbox.screen([right, wrong], task))
    assert [type(screened[position]) for position in (0, 1)] == [Unmeasured, Wrong]
    assert screened[0].verified_by == "emulator"
    assert [type(outcome) for outcome in sandbox.race([wrong, right], task)] == [Wrong, Unmeasured]
    sandbox.close()


def test_without_a_backend_or_for_another_arch_nothing_is_executed(options, with_script):
    sandbox, _ = opened(options, device="none")
    [(_, outcome)] = sandbox.screen([built_from(sandbox, NAIVE)], TASK)
    assert isinstance(outcome, Unmeasured)
    assert outcome.verified_by == "nothing"
    with_script()
    gpu, _ = opened(options)
    [outcome] = gpu.race([built_from(gpu, NAIVE)], TASK.model_copy(update={"arch": Arch.SM_80}))
    assert outcome.verified_by == "nothing"
    gpu.close()


@pytest.mark.usefixtures("without_driver")
def test_operands_beyond_the_memory_are_refused(options, monkeypatch):
    small = REFERENCE_CHIPS[Arch.SM_90A].model_copy(update={"memory_bytes": TASK.operand_bytes})
    monkeypatch.setitem(local.REFERENCE_CHIPS, Arch.SM_90A, small)
    sandbox, _ = opened(options, device="none")
    for work in (lambda: list(sandbox.screen([], TASK)), lambda: sandbox.race([], TASK)):
        with pytest.raises(UsageError, match="choose a smaller shape"):
            work()
