"""The timer's rounds with lanes that only pretend to run: pairing, the better layout, throttling, and outputs looked at."""

import contextlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from contract.evaluation import AUTOTUNED, BASELINES, CUBLAS, SideFigures, Telemetry
from contract.options import TimeOptions
from contract.task import GemmTask
from sandbox.cuda import operand_sets, timer
from sandbox.cuda.baselines import Baselines
from sandbox.cuda.timer import Timer, WrongWhileTimed
from sandbox.verification.elements import POISON, encode

TASK = GemmTask(m=8, n=12, k=16)
OPTIONS = TimeOptions(rounds=5, side=False)


class Library:
    def __init__(self, name, detail, us):
        self.name, self.detail, self.us = name, detail, us


class Lane:
    sets = 4

    def __init__(self, us, log, name):
        self._us, self._log, self._name, self._count = us, log, name, itertools.count()

    def sample_us(self):
        self._log.append(self._name)
        return self._us + next(self._count) / 1000


class Track:
    """Operand sets that hold `unwritten` outputs and of which those in `wrong` were computed wrong."""

    cold = True

    def __init__(self, unwritten=0, wrong=()):
        self.log = []
        self.sets = SimpleNamespace(
            unwritten=lambda _count: unwritten,
            compare=lambda index: SimpleNamespace(mismatches=index in wrong, describe=lambda: "1 of 96 outputs are wrong"),
        )

    def lane(self, contender, _options, **_):
        return Lane(contender.us, self.log, contender.detail)


class Sampler:
    """Throttle reasons for one sample after the other."""

    def __init__(self, reasons):
        self._reasons = iter(reasons)

    def reasons(self):
        return frozenset(next(self._reasons, ()))

    def sample(self):
        return frozenset()

    def telemetry(self):
        return Telemetry(power_w=(300.0,))


def make(monkeypatch, track, reasons=()):
    opened = Timer(TASK, SimpleNamespace(pci_bus_id="0"))
    opened.__dict__["_track"] = track
    libraries = {name: (Library(name, name, 5.0),) for name in BASELINES}
    libraries[CUBLAS] = (Library(CUBLAS, "layout nn", 9.0), Library(CUBLAS, "layout tn", 7.0))
    opened._libraries = SimpleNamespace(
        open=lambda names: Baselines({name: libraries[name] for name in names}, ("baseline x left out: y",))
    )
    monkeypatch.setattr(timer, "open_sampler", lambda _: contextlib.nullcontext(Sampler(reasons)))
    return opened


@pytest.fixture
def candidate():
    return SimpleNamespace(name="abc", us=2.0, detail="candidate", programmatic=False)


def test_all_lanes_are_sampled_in_every_round(monkeypatch, candidate):
    track = Track()
    measurement = make(monkeypatch, track).measure(candidate, OPTIONS)
    assert measurement.timing.name == "abc"
    assert [timing.name for timing in measurement.baselines] == list(BASELINES)
    assert all(len(timing.samples_us) == 5 for timing in (measurement.timing, *measurement.baselines))
    lanes = len(set(track.log))
    rounds = [track.log[start : start + lanes] for start in range(lanes, 6 * lanes, lanes)]  # after the warm-up
    assert all(sorted(order) == sorted(set(track.log)) for order in rounds)
    assert len({tuple(order) for order in rounds}) > 1
    assert measurement.side == SideFigures()
    assert measurement.telemetry.power_w == (300.0,)
    assert measurement.notes == ("baseline x left out: y",)


def test_better_layout_counts_and_the_other_is_told(monkeypatch, candidate):
    measurement = make(monkeypatch, Track()).measure(candidate, OPTIONS)
    cublas = next(timing for timing in measurement.baselines if timing.name == CUBLAS)
    assert 7 < cublas.samples_us[0] < 7.1
    assert cublas.detail.startswith("layout tn; layout nn: 9.0")


def test_quick_measurement_opens_the_autotuned_baseline_only(monkeypatch, candidate):
    options = OPTIONS.model_copy(update={"all_baselines": False})
    measurement = make(monkeypatch, Track()).measure(candidate, options)
    assert [timing.name for timing in measurement.baselines] == [AUTOTUNED]


def _throttled(track_rounds, candidate_only_rounds):
    """Reasons for samples in the order that rounds of two lanes take them, thermal whenever the candidate ran."""
    order = timer.shuffled_rounds(("candidate", f"{AUTOTUNED}/0"), OPTIONS.rounds, OPTIONS.seed)
    names = [name for round_ in order for name in round_]
    once = [("hw-thermal",) if name == "candidate" else () for name in names]
    return once * candidate_only_rounds + [()] * len(names) * track_rounds


@pytest.mark.parametrize(
    ("reasons", "notes"),
    [
        (_throttled(0, 2), "throttling (hw-thermal) met one side only, twice"),
        (_throttled(1, 1), "rounds repeated after throttling"),
    ],
)
def test_throttling_of_one_side_repeats_the_rounds(monkeypatch, candidate, reasons, notes):
    track = Track()
    options = OPTIONS.model_copy(update={"all_baselines": False})
    measurement = make(monkeypatch, track, reasons).measure(candidate, options)
    assert measurement.notes[-1] == notes
    assert len(measurement.timing.samples_us) == OPTIONS.rounds
    assert len(track.log) == 2 + 2 * 2 * OPTIONS.rounds + 1


def test_outputs_left_alone_while_timed_are_a_fault(monkeypatch, candidate):
    with pytest.raises(WrongWhileTimed, match="7 outputs were left unwritten"):
        make(monkeypatch, Track(unwritten=7)).measure(candidate, OPTIONS)


def test_wrong_outputs_while_timed_are_a_fault(monkeypatch, candidate):
    with pytest.raises(WrongWhileTimed, match="something else"):
        make(monkeypatch, Track(wrong=range(4))).measure(candidate, OPTIONS)


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("shape", [(5, 7, 3), (64, 40, 32), (1, 1, 1)])
def test_operand_sets_are_aligned_random_and_alike_in_both_layouts(monkeypatch, element, shape):
    monkeypatch.setattr(operand_sets, "cupy", np)
    m, n, k = shape
    task = GemmTask(m=m, n=n, k=k, element=element)
    sets = operand_sets.OperandSets(task, 5, seed=1)
    for index in range(5):
        operands = sets.operands(index)
        a, b_nn, b_tn, d = (x.view(np.uint16) for x in (operands.a, operands.b_nn, operands.b_tn, operands.d))
        assert (a.shape, b_nn.shape, b_tn.shape, d.shape) == ((m, k), (k, n), (n, k), (m, n))
        assert np.array_equal(b_nn, b_tn.T)
        assert a.any()
        assert (d == POISON).all()
        first = sets.operands(0)
        assert (operands.a.ctypes.data - first.a.ctypes.data) % 256 == 0
        assert index == 0 or a.size < 4 or not np.array_equal(a, first.a.view(np.uint16))
    assert sets.unwritten(5) == 5 * m * n
    assert sets.compare(2).unwritten == m * n


def test_outputs_of_a_set_are_compared_with_its_own_product(monkeypatch):
    monkeypatch.setattr(operand_sets, "cupy", np)
    sets = operand_sets.OperandSets(TASK, 3, seed=1)
    operands = sets.operands(1)
    operands.d[...] = encode(np, operands.a.astype(np.float64) @ operands.b_nn.astype(np.float64), TASK.element).view(
        np.float16
    )
    assert sets.compare(1).mismatches == 0
    assert sets.unwritten(3) == 2 * TASK.m * TASK.n
    operands.d[3, 3] += 1
    assert sets.compare(1).mismatches == 1
