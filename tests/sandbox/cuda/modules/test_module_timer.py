"""Rounds of a module beside PyTorch's baselines, on doubles of a GPU: what is measured, and what timed launches may not do."""

import time

import numpy as np
import pytest

pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

from cudal2_agent.contract.records.evaluation import EAGER, MAX_AUTOTUNE, MODULE_BASELINES  # noqa: E402
from cudal2_agent.sandbox.cuda.modules import module_track, torch_baselines  # noqa: E402
from cudal2_agent.sandbox.cuda.timing.watch import WrongWhileTimed  # noqa: E402
from tests.sandbox.cuda.modules.bench import OPTIONS, TASK, right, timed  # noqa: E402


@pytest.fixture
def measure(monkeypatch):
    return timed(monkeypatch)


def test_a_right_kernel_is_measured_beside_every_baseline(measure):
    measurement = measure(right)
    assert [timing.name for timing in measurement.baselines] == list(MODULE_BASELINES)
    assert all(len(timing.samples_us) == OPTIONS.rounds for timing in (measurement.timing, *measurement.baselines))
    assert measurement.notes == ()
    assert measurement.ruler.launches == measurement.ruler.sets, "each set is used once in a sample"
    assert measurement.ruler.projected > 0
    (eager,) = (timing for timing in measurement.baselines if timing.name == EAGER)
    assert eager.samples_us[0] == pytest.approx(20), "between two events"


def test_the_last_set_of_a_large_output_is_what_a_baseline_leaves(measure, monkeypatch):
    monkeypatch.setattr(torch_baselines, "KEPT_BYTES", 0)
    monkeypatch.setattr(torch_baselines, "unowned", lambda result: result.clone)
    assert [timing.name for timing in measure(right).baselines] == list(MODULE_BASELINES)


def dropped(arrays, _workspace):
    """The bias is left out."""
    held = arrays["bias"].view(np.float32).copy()
    arrays = {**arrays, "bias": np.zeros_like(held)}
    right(arrays, None)


def zeros(arrays, _workspace):
    arrays["out"].view(np.float32)[:] = 0


def nothing(_arrays, _workspace):
    pass


class Replay:
    """Gives the first launch's output again."""

    def __init__(self):
        self.first = None

    def __call__(self, arrays, workspace):
        if self.first is None:
            right(arrays, workspace)
            self.first = arrays["out"].copy()
        arrays["out"][:] = self.first


class KeptInWorkspace:
    """Trusts that the workspace of a launch still holds what it wrote there before."""

    def __call__(self, arrays, workspace):
        marked = workspace[:8].view(np.float64)
        if marked[0] != 12345.0:
            right(arrays, None)
            workspace[8 : 8 + arrays["out"].size] = arrays["out"]
            marked[0] = 12345.0
            KeptInWorkspace.worked += 1
            return
        arrays["out"][:] = workspace[8 : 8 + arrays["out"].size]

    worked = 0


class ByState:
    """Does its work while its state has not been counted up."""

    def __call__(self, arrays, workspace):
        right(arrays, workspace)
        arrays["calls"].view(np.float32)[0] -= 1


def neighbour(arrays, workspace):
    right(arrays, workspace)
    out = np.lib.stride_tricks.as_strided(arrays["out"], (arrays["out"].size + 4096,), (1,))
    out[-2048:] = 1


@pytest.mark.parametrize("kernel", [dropped, zeros, nothing, Replay()])
def test_wrong_outputs_of_timed_launches_are_a_fault(measure, kernel):
    with pytest.raises(WrongWhileTimed, match="elements of out are wrong"):
        measure(kernel)


def test_a_wrong_state_is_a_fault(measure):
    with pytest.raises(WrongWhileTimed, match="calls"):
        measure(ByState())


def test_a_changed_parameter_is_a_fault(measure):
    def kernel(arrays, workspace):
        right(arrays, workspace)
        arrays["weight"].view(np.float32)[0] += 1

    with pytest.raises(WrongWhileTimed, match=r"parameter weight was changed|elements of out are wrong"):
        measure(kernel)


def test_what_a_workspace_kept_is_gone_in_the_next_sample(measure):
    measure(KeptInWorkspace(), workspace_bytes=2048)
    assert KeptInWorkspace.worked > OPTIONS.rounds, "it had to work in every launch"


def test_a_launch_that_writes_beside_its_slot_is_a_fault(measure):
    with pytest.raises(WrongWhileTimed, match=r"pieces of 16 bytes of the outputs|elements of out are wrong"):
        measure(neighbour)


def test_a_wrong_baseline_is_left_out_with_a_note(measure, monkeypatch):
    broken = lambda program, **_: lambda *inputs: [result * 1.01 for result in program(*inputs)]  # noqa: E731
    monkeypatch.setattr(torch, "compile", broken)
    measurement = measure(right)
    assert [timing.name for timing in measurement.baselines] == list(MODULE_BASELINES[:2])
    assert sum("baseline compiled" in note and "are wrong" in note for note in measurement.notes) == 2


def test_a_compiler_that_fails_is_told(measure, monkeypatch):
    def fails(*_args, **_options):
        raise RuntimeError("no gcc")

    monkeypatch.setattr(torch, "compile", fails)
    measurement = measure(right)
    assert any("baseline compiled left out: it does not compile: RuntimeError: no gcc" in note for note in measurement.notes)
    assert torch_baselines.NO_REWARD in measurement.notes


def test_a_compilation_that_does_not_end_is_told(measure, monkeypatch):
    monkeypatch.setattr(torch_baselines, "COMPILE_S", 0.05)
    monkeypatch.setattr(torch, "compile", lambda *_args, **_options: lambda *_inputs: time.sleep(30))
    measurement = measure(right)
    assert [timing.name for timing in measurement.baselines] == list(MODULE_BASELINES[:2])
    assert sum("left out: it does not compile: TookTooLong: more than 0 s" in note for note in measurement.notes) == 2


def test_little_memory_gives_few_sets(monkeypatch):
    each = sum(buffer.bytes for buffer in TASK.buffers)
    ruler = timed(monkeypatch, memory=20 * each)(right).ruler
    assert 1 <= ruler.sets < 8


def test_a_task_that_does_not_fit_says_so(monkeypatch):
    with pytest.raises(MemoryError, match="one set of linear and relu"):
        timed(monkeypatch, memory=1000)(right)


class Late:
    """A predecessor that writes when the consumer is enqueued; a kernel that waits runs then too."""

    def __init__(self):
        self.pending, self.held = [], []

    def compile(self):
        pass

    def produce_values(self, late, watched, early):
        def write():
            early[0] = sum(int((now != before).sum()) for now, before in watched)
            for value, place in late:
                place[...] = value

        self.pending.append(write)

    def consume_values(self, copies, _stream):
        self.pending.pop()()
        while self.held:
            self.held.pop()()
        for now, seen in copies:
            seen[...] = now


@pytest.mark.parametrize(
    ("waits", "fault"), [(True, None), (False, "before its predecessor had finished|elements of out are wrong")]
)
def test_a_launch_that_does_not_wait_for_its_predecessor_is_a_fault(measure, monkeypatch, waits, fault):
    late = Late()
    monkeypatch.setattr(module_track, "Bystanders", lambda: late)

    def kernel(arrays, workspace):
        if waits and late.pending:
            late.held.append(lambda: right(arrays, workspace))
        else:
            right(arrays, workspace)

    if fault is None:
        assert measure(kernel, programmatic=True).timing.name == "k"
        return
    with pytest.raises(WrongWhileTimed, match=fault):
        measure(kernel, programmatic=True)


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({}, set()),
        ({"max_autotune": False}, {MAX_AUTOTUNE}),
        ({"all_baselines": False, "heuristic": True}, {EAGER}),
        ({"all_baselines": False}, {EAGER, MAX_AUTOTUNE}),
    ],
)
def test_the_options_say_which_baselines_run(options, left_out):
    wanted = torch_baselines.ModuleBaselines.wanted(OPTIONS.model_copy(update=options))
    assert set(MODULE_BASELINES) - set(wanted) == left_out


def test_numbers_are_drawn_once_for_a_measurement(measure, monkeypatch):
    """References of large outputs take seconds."""
    from cudal2_agent.sandbox.cuda.modules.value_pools import ValuePools

    renewed, renew = [], ValuePools.renew
    monkeypatch.setattr(ValuePools, "renew", lambda pools, draw: (renewed.append(pools), renew(pools, draw))[1])
    measure(right)
    assert len(renewed) == 1


@pytest.mark.parametrize(("eager_us", "sets"), [(1.0, 6), (8000.0, 4), (6400.0, 5)])
def test_a_module_far_from_the_roofline_has_few_sets_of_values(measure, monkeypatch, eager_us, sets):
    """Each has references of its own, which take longer than all launches."""
    monkeypatch.setattr(module_track.ModuleTrack, "_eager_us", lambda _: eager_us)
    assert measure(right).ruler.sets == sets


def test_eager_is_timed_to_find_how_many_sets_suffice(measure, monkeypatch):
    found, eager_us = [], module_track.ModuleTrack._eager_us
    monkeypatch.setattr(module_track.ModuleTrack, "_eager_us", lambda track: found.append(eager_us(track)) or found[0])
    measure(right)
    assert len(found) == 1
    assert 1.0 < found[0] < 1e6
