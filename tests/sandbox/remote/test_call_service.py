"""The far side of a sandbox elsewhere, over a scripted sandbox; everything between the sides goes through JSON."""

import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.errors import (
    CompilerMissing,
    Cudal2Error,
    DeviceUnavailable,
    MachineError,
    ProfileFailed,
    ProfilerUnavailable,
    UsageError,
    WorkerError,
)
from cudal2_agent.contract.events import Notice
from cudal2_agent.contract.protocols import MeasuresAhead
from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, Origin
from cudal2_agent.contract.records.evaluation import CompileFailed, Crashed, Evaluation, TestResult, Wrong
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.sandbox.remote.calls import DoctorCall, FarCall
from cudal2_agent.sandbox.remote.command_link import CommandLink
from cudal2_agent.sandbox.remote.far_answers import DoctorAnswer
from cudal2_agent.sandbox.remote.remote_sandbox import RemoteSandbox, open_over
from tests.doubles import TASK, ScriptedSandbox, candidate, measured, profile, unmeasured
from tests.doubles.scripted import ENVIRONMENT, INSPECTION
from tests.sandbox.remote.test_command_link import HELLO, OPENING
from tests.sandbox.remote.through_json import CHECK, ThroughJson, raising, service_over

TUNED = TunedBaseline(
    task=TASK, environment=ENVIRONMENT.key, layout="nn", algorithm="00", detail="scripted", suggestions=1, time_us=1.0
)
TRUSTED, OTHER = candidate(1), candidate(2)
FAILED = TestResult(tier="races", name="full", passed=False, message="a race")


class Book:
    """Baselines of the near side."""

    def __init__(self, *known: TunedBaseline) -> None:
        self.known = {(one.task.id, one.environment): one for one in known}

    def tuned(self, task: GemmTask, environment: str) -> TunedBaseline | None:
        return self.known.get((task.id, environment))

    def keep(self, baseline: TunedBaseline) -> None:
        self.known[baseline.task.id, baseline.environment] = baseline


class Far:
    """Both sides."""

    def __init__(
        self, scripted: ScriptedSandbox, on_open: Any = lambda *_: None, book: Book | None = None, *, is_slow: bool = False
    ) -> None:
        self.scripted, self.events = scripted, list[Any]()
        self.link = ThroughJson(service_over(scripted, on_open))
        self.link.is_slow = is_slow
        self.sandbox: Any = open_over(self.link, OPENING, lambda *_: unmeasured(9.0).prediction, self.events.append, book)

    def built(self, number: int) -> Built:
        [(_, outcome)] = self.sandbox.build([candidate(number)], TASK)
        assert isinstance(outcome, Built)
        return outcome.model_copy(update={"task": TASK})


def test_every_method_says_what_the_far_sandbox_says() -> None:
    times, failures, witness = {1: 4.0, 2: 6.0}, [3], {2: unmeasured(7.0)}
    far = Far(ScriptedSandbox(times, failures=failures, witness=witness))
    near = ScriptedSandbox(times, failures=failures, witness=witness)
    candidates: list[AnyCandidate] = [candidate(number) for number in (1, 2, 3)]
    built = {position: outcome for position, outcome in far.sandbox.build(candidates, TASK) if isinstance(outcome, Built)}
    assert dict(far.sandbox.build(candidates, TASK)) == dict(near.build(candidates, TASK))
    both = [built[0], built[1]]
    assert far.sandbox.evaluate(both[0], TASK, "quick") == near.evaluate(both[0], TASK, "quick")
    assert list(far.sandbox.screen(both, TASK)) == list(near.screen(both, TASK))
    assert far.sandbox.race(both, TASK) == near.race(both, TASK)
    assert far.sandbox.witness(both[1], TASK) == near.witness(both[1], TASK) == unmeasured(7.0)
    assert far.sandbox.profile(both[0], TASK) == profile(4000.0)
    assert far.sandbox.artifact(both[0].model_copy(update={"task": TASK})) == b"cubin of 1"


def test_one_answer_over_a_slow_link_brings_all_that_a_run_asks() -> None:
    """A screen of what was written from a schedule; of a model's kernel the evaluation, proof, counters and code, once each."""
    far = Far(ScriptedSandbox({1: 4.0, 2: 6.0}, failures=[3]), is_slow=True)
    model = candidate(2).model_copy(update={"origin": Origin(policy="chat")})
    outcomes = dict(far.sandbox.build_to_measure([candidate(1), model, candidate(3)], TASK, counters=True))
    calls = len(far.link.calls)
    built = [outcome for _, outcome in sorted(outcomes.items()) if isinstance(outcome, Built)]
    waited_s = far.sandbox.waited_s
    assert list(far.sandbox.screen(built[:1], TASK)) == [(0, measured(4.0, effort="screen"))]
    assert far.sandbox.profile(built[0], TASK) == profile(4000.0), "of the fastest from a schedule"
    assert far.sandbox.evaluate(built[1], TASK, "quick") == measured(6.0, effort="quick")
    assert far.sandbox.witness(built[1], TASK) == unmeasured(20.0, "emulator")
    assert far.sandbox.profile(built[1], TASK) == profile(6000.0)
    assert far.sandbox.artifact(built[1].model_copy(update={"task": TASK})) == b"cubin of 2"
    assert len(far.link.calls) == calls
    assert far.sandbox.waited_s < waited_s, "the work was done before it was asked for"
    assert (far.scripted.evaluated, far.scripted.witnessed) == ([(1, "screen"), (2, "quick")], [2])
    far.sandbox.evaluate(built[1], TASK, "quick")
    assert far.scripted.evaluated[-1] == (2, "quick")
    assert len(far.scripted.evaluated) == 3


@pytest.mark.parametrize("error", [None, ProfileFailed("not this kernel"), ProfilerUnavailable("not here")])
def test_counters_that_did_not_come_ahead_are_asked_for(error: Cudal2Error | None) -> None:
    far = Far(ScriptedSandbox({2: 6.0}, profile_error=error), is_slow=True)
    model = candidate(2).model_copy(update={"origin": Origin(policy="chat")})
    [(_, built)] = far.sandbox.build_to_measure([model], TASK, counters=error is not None)
    calls = len(far.link.calls)
    with nullcontext() if error is None else pytest.raises(type(error)):
        far.sandbox.profile(built, TASK)
    assert len(far.link.calls) == calls + 1


def test_a_refused_kernel_is_not_profiled_ahead() -> None:
    far = Far(ScriptedSandbox({2: 6.0}, witness={2: Wrong(test=FAILED, tests=(FAILED,), inspection=INSPECTION)}), is_slow=True)
    model = candidate(2).model_copy(update={"origin": Origin(policy="chat")})
    list(far.sandbox.build_to_measure([model], TASK, counters=True))
    assert (far.scripted.witnessed, far.scripted.profiled) == ([2], [])


def test_the_cause_of_a_crash_comes_ahead_and_nothing_else() -> None:
    crash = Crashed(stage="verify", message="CUDA_ERROR_ILLEGAL_INSTRUCTION")
    cause = Wrong(test=FAILED, tests=(FAILED,), inspection=INSPECTION)
    far = Far(ScriptedSandbox(outcomes={2: crash}, witness={2: cause}), is_slow=True)
    model = candidate(2).model_copy(update={"origin": Origin(policy="chat")})
    [(_, built)] = far.sandbox.build_to_measure([model], TASK, counters=True)
    calls = len(far.link.calls)
    assert far.sandbox.evaluate(built, TASK, "quick") == crash
    assert far.sandbox.witness(built, TASK) == cause
    assert len(far.link.calls) == calls
    assert far.scripted.profiled == []


def test_a_build_of_this_process_is_known() -> None:
    far = Far(ScriptedSandbox())
    assert not isinstance(far.sandbox, MeasuresAhead), "a fast link measures nothing that is not asked"
    [(_, built)] = far.sandbox.build([candidate(1)], TASK)
    calls = len(far.link.calls)
    assert list(far.sandbox.build([candidate(1)], TASK)) == [(0, built)]
    assert len(far.link.calls) == calls


def test_a_candidate_that_another_worker_has_built_is_built_again() -> None:
    far = Far(ScriptedSandbox({1: 4.0}, failures=[3]))
    elsewhere = [
        Built(
            candidate=candidate(number),
            inspection=unmeasured(1.0).inspection,
            artifact_path="/etc/passwd",
            cached=True,
            seconds=0,
        )
        for number in (1, 3)
    ]
    first, second = (outcome for _, outcome in far.sandbox.screen(elsewhere, TASK))
    assert {type(first), type(second)} == {type(measured(4.0)), CompileFailed}


def test_no_path_of_the_near_side_is_read() -> None:
    """A call has the source of a candidate and no file."""
    far = Far(ScriptedSandbox())
    far.sandbox.evaluate(far.built(1).model_copy(update={"artifact_path": "/etc/passwd"}), TASK, "quick")
    assert "/etc/passwd" not in "".join(call.model_dump_json() for call in far.link.calls)


ERRORS: list[type[Cudal2Error]] = [
    *(CompilerMissing, DeviceUnavailable, MachineError, ProfilerUnavailable),
    *(ProfileFailed, UsageError, WorkerError),
]


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_of_the_far_side_is_the_same_error_here(kind: type[Cudal2Error]) -> None:
    far = Far(ScriptedSandbox(profile_error=kind("no counters", log="the log")))
    with pytest.raises(kind) as caught:
        far.sandbox.profile(far.built(1), TASK)
    assert type(caught.value) is kind
    assert str(caught.value).startswith("no counters (on ")
    assert caught.value.log == "the log"


def test_a_sandbox_that_cannot_be_opened_is_the_far_sides_reason() -> None:
    with pytest.raises(DeviceUnavailable, match="no driver"):
        Far(ScriptedSandbox(), raising(DeviceUnavailable("no driver")))


def test_a_bug_of_the_far_side_is_an_error_with_its_traceback() -> None:
    class Broken(ScriptedSandbox):
        def evaluate(self, *_: Any) -> Evaluation:
            raise ZeroDivisionError("a bug of ours")

    far = Far(Broken())
    with pytest.raises(WorkerError, match="internal error: ZeroDivisionError: a bug of ours") as caught:
        far.sandbox.evaluate(far.built(1), TASK, "quick")
    assert "Traceback" in caught.value.log


def test_notices_of_the_opening_are_told_here() -> None:
    far = Far(ScriptedSandbox(), lambda _opening, emit, _tuned: emit(Notice(message="no jail")))
    assert far.events == [Notice(message="no jail")]


def test_a_proof_that_is_late_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.sandbox.remote.remote_sandbox.LATE_S", 0.05)
    far = Far(ScriptedSandbox())
    built = far.built(1)

    def queued(_call: FarCall, cancel: threading.Event | None = None) -> Generator[Any]:
        assert cancel is not None
        assert cancel.wait(5)
        yield from ()

    far.link.call = queued  # type: ignore[method-assign, assignment]
    verdict = far.sandbox.witness(built, TASK, seconds=0.05)
    assert (verdict.verified_by, verdict.reason) == ("nothing", "no worker answered within 0 s")


def test_baselines_are_brought_and_kept_here() -> None:
    other = TUNED.model_copy(update={"environment": "another day"})
    seen: list[Any] = []

    class Tuning(ScriptedSandbox):
        def evaluate(self, *given: Any) -> Evaluation:
            seen[0].keep(other)
            return super().evaluate(*given)

    book = Book(TUNED)
    far = Far(Tuning(), lambda _opening, _emit, tuned: seen.append(tuned), book)
    far.sandbox.evaluate(far.built(1), TASK, "quick")
    assert seen[0].tuned(TASK, ENVIRONMENT.key) == TUNED
    assert book.tuned(TASK, "another day") == other


def test_a_worker_that_came_back_with_another_gpu_is_refused() -> None:
    far = Far(ScriptedSandbox())

    class Other(ScriptedSandbox):
        environment = ENVIRONMENT.model_copy(update={"gpu": "another"})

    built = far.built(1)
    far.link._service = service_over(Other())
    with pytest.raises(MachineError, match=r"times so far are of scripted driver-0 .* this is another .* never mixed"):
        far.sandbox.evaluate(built, TASK, "quick")


def test_a_sandbox_that_is_not_used_makes_room_for_another() -> None:
    scripted = ScriptedSandbox()
    far = Far(scripted)
    assert not scripted.closed
    RemoteSandbox(far.link, OPENING.model_copy(update={"arch": Arch.SM_80}), lambda *_: None, far.events.append)  # type: ignore[arg-type, return-value]
    assert scripted.closed


def test_closing_closes_the_far_sandbox_too() -> None:
    scripted = ScriptedSandbox()
    Far(scripted).sandbox.close()
    assert scripted.closed


def test_what_a_machine_can_do_is_asked_without_opening_anything() -> None:
    link = ThroughJson(service_over(ScriptedSandbox(), raising(MachineError("nothing here"))))
    answers = list(link.call(FarCall(id="0" * 32, opening=OPENING, deed=DoctorCall())))
    assert answers[0] == DoctorAnswer(checks=(CHECK,))


STREAM = """
import sys, time
sys.path.insert(0, {root!r})
from cudal2_agent.sandbox.remote import stream_worker
from tests.doubles import ScriptedSandbox
from tests.sandbox.remote.test_command_link import HELLO
from tests.sandbox.remote.through_json import service_over
stream_worker.ORPHAN_GRACE_S = 0.2
class Slow(ScriptedSandbox):
    def evaluate(self, built, *given):
        time.sleep(60 if built.candidate.source.startswith("// candidate 9") else 0.3)
        return super().evaluate(built, *given)
sys.exit(stream_worker.serve_stream(HELLO, service_over(Slow())))
"""


def test_a_worker_on_a_stream_answers_several_calls_at_once_and_ends_with_its_stdin(tmp_path: Path) -> None:
    file = tmp_path / "worker.py"
    file.write_text(STREAM.format(root=str(Path(__file__).parents[3])))
    link = CommandLink(f"{sys.executable} {file}", 60.0)
    sandbox = RemoteSandbox(link, OPENING, lambda *_: unmeasured(9.0).prediction, lambda _: None)
    built = dict(sandbox.build([candidate(1), candidate(9)], TASK))
    assert isinstance(built[0], Built)
    outcomes = sandbox.screen([built[0]] * 3, TASK)
    assert next(outcomes)[0] == 0
    begin_s = time.monotonic()
    assert len(list(sandbox.build([candidate(number) for number in range(2, 5)], TASK))) == 3
    assert time.monotonic() - begin_s < 0.25, "a build waits for nothing that is timed"
    assert [position for position, _ in outcomes] == [1, 2]
    lost = together(lambda: list(sandbox.screen([built[1]], TASK)), link)
    assert isinstance(lost, DeviceUnavailable), "a link that was closed starts no other worker"


def together(call: Any, link: CommandLink) -> Exception | None:
    """Close the link while a call never ends. Returns what the call raised; its worker has ended by itself by then."""
    raised: list[Exception] = []

    def ask() -> None:
        try:
            call()
        except Exception as exc:  # noqa: BLE001 (the caller looks at it)
            raised.append(exc)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)
    assert link._talk is not None
    process, begin_s = link._talk._process, time.monotonic()
    link.close()
    assert process.returncode in (0, 1), "it was killed, and did not end by itself"
    assert time.monotonic() - begin_s < 4.0
    thread.join(10)
    return raised[0] if raised else None


NEAR = """
import sys, threading
sys.path.insert(0, {root!r})
from cudal2_agent.sandbox.remote.command_link import CommandLink
link = CommandLink(sys.argv[1], 60.0)
print(link.arch, flush=True)
threading.Event().wait()
"""


def test_a_near_side_that_is_killed_takes_its_worker_with_it(tmp_path: Path) -> None:
    (tmp_path / "near.py").write_text(NEAR.format(root=str(Path(__file__).parents[3])))
    (tmp_path / "hello.json").write_text(HELLO.model_dump_json())
    command = f"{sys.executable} -I -S {Path(__file__).with_name('far_script.py')} {tmp_path}"
    near = subprocess.Popen([sys.executable, str(tmp_path / "near.py"), command], stdout=subprocess.PIPE, text=True)
    assert near.stdout is not None
    assert near.stdout.readline() == "sm_90a\n"
    near.kill()
    near.wait()
    for _ in range(100):
        if (tmp_path / "ended").exists():
            return
        time.sleep(0.05)
    pytest.fail("the worker is still there")
