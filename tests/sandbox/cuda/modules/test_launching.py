"""A module's plan on the launcher: pointers by name, scratch, and library calls between launches."""

from types import SimpleNamespace

import pytest

pytest.importorskip("cupy")

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.plan import plan_from_json
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.cuda import launcher
from cudal2_agent.sandbox.cuda.contender import NamedOperands
from tests.contract.test_module_plans import CALL, SCRATCH, STEP, TASK
from tests.sandbox.cuda.test_launcher import RecordingDriver, device_array

ARRAYS = {"x": 0x1000, "weight": 0x2000, "out": 0x3000}


class Library:
    """Records what is bound and enqueued."""

    def __init__(self, log):
        self.log, self.pointers = log, []

    def bind(self, call, pointers):
        self.pointers.append(pointers)
        return SimpleNamespace(enqueue=lambda stream, **_: self.log.append(("call", call.call.call, stream)))


@pytest.fixture
def made(monkeypatch):
    def make(**fields):
        recorder = RecordingDriver(monkeypatch, parameter_bytes=(8, 8, 8, 4))
        steps = [{"repeat": 2, "launches": [CALL, STEP]}]
        plan = plan_from_json({"arch": "sm_80", "launches": steps, "scratch": SCRATCH} | fields)
        library = Library(recorder.log)
        resolved = resolve(plan, TASK, LIMITS[Arch.SM_80], 108)
        return launcher.Kernel("k", b"cubin", resolved, TASK, library=library), library, recorder

    return make


def operands(workspace=None, **more):
    arrays = {name: device_array(at) for name, at in (ARRAYS | more).items()}
    return NamedOperands(arrays, None if workspace is None else device_array(*workspace))


def test_calls_run_between_launches_in_the_plan_s_order(made):
    kernel, _, recorder = made()
    kernel.bind(operands(h=0x5000)).enqueue(7)
    assert [each[:2] for each in recorder.log] == [("call", "mm"), ("launch", "step"), ("call", "mm"), ("launch", "step")]
    assert {each[2] for each in recorder.log} == {7}


def test_scratch_lies_behind_the_workspace_where_it_is_given_none_of_its_own(made):
    kernel, library, _ = made(workspace={"bytes": 300})
    assert kernel.workspace_bytes == 512 + 256
    kernel.bind(operands(workspace=(0x8000, 768)))
    assert library.pointers[0] == ARRAYS | {"workspace": 0x8000, "h": 0x8000 + 512}
    kernel.bind(operands(workspace=(0x8000, 300), h=0x9000))
    assert library.pointers[-1] == ARRAYS | {"workspace": 0x8000, "h": 0x9000}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (operands(), "no workspace of 256 bytes"),
        (operands(workspace=(0x8000, 128)), "no workspace of 256 bytes"),
        (NamedOperands({"x": device_array(1), "weight": device_array(1)}), "no out of 128 bytes"),
        (NamedOperands({name: device_array(1, 64) for name in ARRAYS}), "no x of 384 bytes"),
    ],
)
def test_a_buffer_that_is_missing_or_too_small_is_told(made, given, words):
    kernel, *_ = made()
    with pytest.raises(ValueError, match=words):
        kernel.bind(given)
