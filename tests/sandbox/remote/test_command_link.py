"""A sandbox behind a command: workers that come late, end, hang, lie and flood; each costs at most one candidate."""

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.errors import DeviceUnavailable, MachineError, UsageError, WorkerError
from cudal2_agent.contract.events import StageStarted, WorkerRestarted
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Crashed, Measured
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import TimeOptions, VerifyOptions
from cudal2_agent.sandbox.remote import command_link
from cudal2_agent.sandbox.remote import link as link_module
from cudal2_agent.sandbox.remote.calls import ExecuteCall, FarCall, Opening
from cudal2_agent.sandbox.remote.command_link import CommandLink
from cudal2_agent.sandbox.remote.far_answers import OpenedAnswer, WorkerHello
from cudal2_agent.sandbox.remote.limits import limit_s
from cudal2_agent.sandbox.remote.remote_sandbox import RemoteSandbox
from cudal2_agent.sandbox.remote.same_version import PROTOCOL, code_hash, own_version, records_hash
from cudal2_agent.sandbox.workers.messages import Evaluate, Stage
from tests.doubles import CHIP, INSPECTION, TASK, candidate, measured, unmeasured
from tests.doubles.scripted import ENVIRONMENT, PLAN

SCRIPT = Path(__file__).with_name("far_script.py")
HELLO = WorkerHello(
    protocol=PROTOCOL,
    version=own_version(),
    records=records_hash(),
    code=code_hash(),
    host="gpu1",
    device="cuda:0",
    arch=Arch.SM_90A,
)
LIMITS: Any = dict.fromkeys(("compile", "verify", "time", "emulate", "profile"), 5.0)
OPENING = Opening(arch=Arch.SM_90A, **{f"{name}_timeout_s": limit for name, limit in LIMITS.items()})


class Far:
    """A command with its script, and what was told of it."""

    def __init__(self, folder: Path, *starts: str, hello: str = "", wait_s: float = 10.0) -> None:
        self.folder, self.events = folder, list[Any]()
        built = Built(
            candidate=candidate(0),
            inspection=INSPECTION,
            artifact_path="/far/kernel.cubin",
            cached=False,
            seconds=0.1,
            task=TASK,
        )
        opened = OpenedAnswer(
            host="gpu1", chip=CHIP, environment=ENVIRONMENT, can_execute=True, can_measure=True, builds_cutlass=True
        )
        texts = {"hello": hello or HELLO.model_dump_json(), "opened": opened.model_dump_json()}
        texts |= {"built": built.model_dump_json(), "evaluation": measured(5.0).model_dump_json()}
        for name, text in texts.items():
            (folder / f"{name}.json").write_text(text)
        self.link = CommandLink(shlex.join([sys.executable, "-I", "-S", str(SCRIPT), str(folder), *starts]), wait_s)

    def sandbox(self) -> RemoteSandbox:
        return RemoteSandbox(self.link, OPENING, lambda *_: unmeasured(9.0).prediction, self.events.append)

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked.txt").read_text().splitlines()

    @property
    def restarts(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, WorkerRestarted)]


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(command_link, "RESTART_PAUSES_S", (0.01, 0.01))
    opened: list[Far] = []

    def make(*starts: str, **how: Any) -> Far:
        opened.append(Far(tmp_path, *starts, **how))
        return opened[-1]

    yield make
    for one in opened:
        one.link.close()


def built_of(*lines: str) -> Built:
    written = Candidate(source="\n".join(lines), plan=PLAN, origin=Origin(policy="test"))
    return Built(candidate=written, inspection=INSPECTION, artifact_path="", cached=False, seconds=0.0, task=TASK)


def test_candidates_are_built_and_timed_elsewhere(far: Any) -> None:
    sandbox = far("banner").sandbox()
    assert (sandbox.chip, sandbox.environment, sandbox.can_measure) == (CHIP, ENVIRONMENT, True)
    assert sandbox.builds_cutlass, "its compiler is there, whatever this machine has"
    [(position, built)] = sandbox.build([candidate(3)], TASK)
    assert (position, built.candidate, built.artifact_path) == (0, candidate(3), "/far/kernel.cubin")
    assert sandbox.evaluate(built, TASK, "quick") == measured(5.0)
    assert [outcome for _, outcome in sandbox.screen([built_of("a"), built_of("b")], TASK)] == [measured(5.0)] * 2
    assert sandbox.race([built_of("a"), built_of("b")], TASK) == [measured(5.0)] * 2


def test_stages_are_told_and_what_was_no_work_is_waiting(far: Any) -> None:
    one = far()
    sandbox = one.sandbox()
    begin_s = time.monotonic()
    sandbox.evaluate(built_of("right"), TASK, "quick")
    assert one.events == [StageStarted(candidate_id="c", stage="verify")]
    assert sandbox.waited_s == pytest.approx(time.monotonic() - begin_s - 0.5, abs=0.05)


def test_times_are_pinned_to_the_first_environment(far: Any) -> None:
    one = far()
    one.sandbox().evaluate(built_of("right"), TASK, "quick")
    assert one.asked == ["open None", f"execute {ENVIRONMENT.key}"]


@pytest.mark.parametrize("act", ["die", "hang", "twice", "elsewhere", "nothing", "garbage", "cut", "flood", "beats", "built"])
def test_a_lost_worker_costs_no_candidate_at_first(act: str, far: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_link, "SILENCE_S", 0.5)
    monkeypatch.setattr(command_link, "FLOOD_BYTES", 1 << 20)
    one = far()
    assert one.sandbox().evaluate(built_of(f"once {act}"), TASK, "quick") == measured(5.0)
    assert len(one.restarts) == 1


def test_a_candidate_with_which_two_workers_are_lost_crashed_and_the_others_go_on(far: Any) -> None:
    one = far()
    outcomes = dict(one.sandbox().screen([built_of("right"), built_of("die"), built_of("other")], TASK))
    assert [type(outcomes[position]) for position in range(3)] == [Measured, Crashed, Measured]
    assert "the worker was lost twice: it ended; exit code 3; slurmstepd: error: the node failed" in outcomes[1].fault
    assert len(one.restarts) == 2


def test_a_link_that_loses_every_candidate_ends_the_run(far: Any) -> None:
    sandbox = far().sandbox()
    with pytest.raises(WorkerError, match="3 candidates in a row met an internal error"):
        list(sandbox.screen([built_of("die", str(number)) for number in range(4)], TASK))


def test_a_race_is_run_again_once(far: Any) -> None:
    one = far()
    assert one.sandbox().race([built_of("right"), built_of("once die")], TASK) == [measured(5.0)] * 2
    with pytest.raises(WorkerError, match="the race was lost"):
        one.sandbox().race([built_of("die")], TASK)


def test_an_answer_of_an_earlier_call_and_text_of_others_are_skipped(far: Any) -> None:
    one = far()
    assert one.sandbox().evaluate(built_of("stale"), TASK, "quick") == measured(5.0)
    assert one.restarts == []


def test_a_worker_that_does_not_come_back_ends_the_run_in_one_line(far: Any) -> None:
    sandbox = far("second-fails").sandbox()
    with pytest.raises(DeviceUnavailable, match="it ended before a worker answered; exit code 1"):
        sandbox.evaluate(built_of("die"), TASK, "quick")


def test_a_launcher_that_waits_in_a_queue_is_waited_for_and_told(
    far: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "FIRST_TOLD_S", 0.1)
    monkeypatch.setattr(command_link, "_POLL_S", 0.02)
    assert far("late").sandbox().can_measure
    assert "still waiting for a worker of exec:" in caplog.messages[0]


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("never", r"no worker answered within 0 s \(worker_wait_s\)"),
        ("ends", r"it ended before a worker answered; exit code 255; Permission denied \(publickey\)\."),
        ("chatter", "more than 1 MiB that is no answer of a worker"),
    ],
)
def test_a_command_without_a_worker_is_one_line(start: str, said: str, far: Any) -> None:
    with pytest.raises(DeviceUnavailable, match=said) as caught:
        far(start, wait_s=0.3 if start == "never" else 10.0).sandbox()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "hello",
    [
        HELLO.model_copy(update={"version": "9.9.9"}).model_dump_json(),
        HELLO.model_copy(update={"records": "0" * 12}).model_dump_json(),
        '{"message": "hello", "protocol": 2, "version": "9.9.9", "field": "of the future"}',
    ],
)
def test_another_version_is_refused_with_both_names(hello: str, far: Any) -> None:
    with pytest.raises(DeviceUnavailable, match=r"is cudal2-agent .*, this side is cudal2-agent .* install the same") as caught:
        far(hello=hello).sandbox()
    assert own_version() in str(caught.value)


def test_other_sources_of_the_same_version_are_a_warning(far: Any, caplog: pytest.LogCaptureFixture) -> None:
    far(hello=HELLO.model_copy(update={"code": "0" * 12}).model_dump_json()).sandbox()
    assert "runs other sources of the sandbox" in caplog.messages[0]


def test_no_key_crosses(far: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "CUDAL2_API_KEY", "CUDAL2_STORE", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    with pytest.raises(MachineError) as caught:
        far().sandbox().evaluate(built_of("secret"), TASK, "quick")
    names = str(caught.value).split()
    assert "SSH_AUTH_SOCK" in names
    assert not {name for name in names if "KEY" in name or "TOKEN" in name or "CUDAL2" in name or "PASS" in name}


def test_closing_ends_the_worker_by_itself(far: Any) -> None:
    one = far()
    one.sandbox().close()
    one.link.close()
    assert (one.folder / "ended").exists()
    with pytest.raises(DeviceUnavailable, match="was closed"):
        one.sandbox()


@pytest.mark.parametrize("command", ["", "   ", "ssh 'gpu1"])
def test_a_command_that_cannot_be_read_is_the_users(command: str) -> None:
    with pytest.raises(UsageError, match="exec:"):
        CommandLink(command, 1.0)


def test_a_program_that_is_not_there_is_one_line() -> None:
    with pytest.raises(DeviceUnavailable, match="there is no program 'no-such-ssh' here"):
        RemoteSandbox(CommandLink("no-such-ssh gpu1", 1.0), OPENING, lambda *_: unmeasured(9.0).prediction, lambda _: None)


def test_the_limit_of_a_call_is_above_those_that_its_worker_keeps() -> None:
    deed = ExecuteCall(candidates=(candidate(0),), task=TASK, how="quick")
    verify, timed = VerifyOptions(timeout_s=OPENING.verify_timeout_s), TimeOptions(timeout_s=OPENING.time_timeout_s)
    kept = Evaluate(built=built_of("right"), task=TASK, verify=verify, time=timed)
    stages: tuple[Stage, ...] = ("prepare", "load", "verify", "time", "recheck")
    call = FarCall(id="0" * 32, opening=OPENING, deed=deed)
    assert limit_s(call) > 2 * sum(kept.limit_s(stage) for stage in stages)
