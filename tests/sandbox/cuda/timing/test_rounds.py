"""The timer's rounds with scripted lanes: pairing, the better layout, throttling, and compared outputs."""

import contextlib
import itertools
import random
from types import SimpleNamespace

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.evaluation import AUTOTUNED, BASELINES, CUBLAS, SideFigures, Telemetry
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.options import TimeOptions
from cudal2_agent.sandbox.cuda.baselines.library_baselines import Baselines, LibraryBaselines
from cudal2_agent.sandbox.cuda.timing import timer, watch
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudgement
from cudal2_agent.sandbox.cuda.timing.sample_plan import TimedLaunch
from cudal2_agent.sandbox.cuda.timing.timer import Timer
from cudal2_agent.sandbox.cuda.timing.watch import WrongWhileTimed
from tests.doubles import ENVIRONMENT

TASK = GemmTask(m=8, n=12, k=16)
OPTIONS = TimeOptions(rounds=5, side=False, secret=11)


class Library:
    def __init__(self, name, detail, us):
        self.name, self.detail, self.us = name, detail, us


class Lane:
    launches = (TimedLaunch(0, 1, 0), TimedLaunch(1, 0, 1))
    bounds = ()
    order = 7
    workspaces = None
    zero_us = 3.0

    def __init__(self, us, log, name):
        self._us, self._log, self._name, self._count = us, log, name, itertools.count()

    def sample_us(self):
        self._log.append(self._name)
        return self._us + next(self._count) / 1000


class Track:
    """Memory whose checks return a script."""

    task = TASK
    ring = SimpleNamespace(size_bytes=192)
    bystanders = None
    capacity = 10**6

    def __init__(self, *, changed=None, projected=None, mismatches=0, protected=True, after=None):
        self.log, self.forgotten, self.after = [], [], after
        self.pools = Pools(changed, read_only=protected)
        self.rings, self.delivered = (self.ring,), lambda lane: list(lane.launches)
        self.judge = SimpleNamespace(
            project=lambda launches, _draw, **_: OutputJudgement(projected, 0.0, 1.0, TASK.m * len(launches)),
            compare=lambda _launch: SimpleNamespace(mismatches=mismatches, describe=lambda: "1 of 96 outputs are wrong"),
        )


class Pools:
    def __init__(self, changed, *, read_only):
        self._changed, self.secrets, self.read_only, self.looks = changed, [], read_only, 0
        self.spread_bytes = 2**40

    def __len__(self):
        return 2

    def renew(self, draw):
        self.secrets.append(draw.getrandbits(64))

    def changed(self):
        self.looks += 1
        return self._changed


class Sampler:
    """Throttle reasons per sample."""

    def __init__(self, reasons):
        self._reasons = iter(reasons)

    def reasons(self):
        return frozenset(next(self._reasons, ()))

    def sample(self):
        return frozenset()

    def telemetry(self):
        return Telemetry(power_w=(300.0,))


def leave_out_the_aftermath(monkeypatch, track):
    """The launches after the rounds return the script's answer."""
    monkeypatch.setattr(watch, "Aftermath", lambda *_: SimpleNamespace(fault=lambda: track.after))


def make(monkeypatch, track, reasons=()):
    opened = Timer(TASK, SimpleNamespace(pci_bus_id="0", chip=REFERENCE_CHIPS[TASK.arch], environment=ENVIRONMENT))
    opened._opened = track
    monkeypatch.setattr(timer, "open_lane", lambda _track, one, _options, _draw: Lane(one.us, track.log, one.detail))
    libraries = {name: (Library(name, name, 5.0),) for name in BASELINES}
    libraries[CUBLAS] = (Library(CUBLAS, "layout nn", 9.0), Library(CUBLAS, "layout tn", 7.0))
    opened._libraries = SimpleNamespace(
        open=lambda names: Baselines({name: libraries[name] for name in names}, ("baseline x left out: y",)),
        forget=track.forgotten.append,
        wanted=LibraryBaselines.wanted,
    )
    leave_out_the_aftermath(monkeypatch, track)
    monkeypatch.setattr(timer, "open_sampler", lambda _: contextlib.nullcontext(Sampler(reasons)))
    return opened


@pytest.fixture
def candidate():
    return SimpleNamespace(name="abc", us=2.0, detail="candidate", programmatic=False, altered=lambda: ())


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


def _passes():
    """The order of two lanes in two passes of rounds, as it follows from `OPTIONS.secret`."""
    draw = random.Random(OPTIONS.secret)
    draw.getrandbits(64)  # the operands
    for _ in range(2):
        draw.randrange(OPTIONS.rounds), draw.randrange(len(Lane.launches))  # the outputs to compare
    orders = []
    for _ in range(2):
        draw.getrandbits(64)  # for the judgement of the baselines
        orders.append(timer.shuffled_rounds(("candidate", f"{AUTOTUNED}/0"), OPTIONS.rounds, draw))
    return [[name for round_ in order for name in round_] for order in orders]


def _throttled(passes):
    """Reasons in the order of the samples: thermal for the candidate's samples in the first passes."""
    hot = [[("hw-thermal",) if name == "candidate" else () for name in names] for names in _passes()]
    return [reasons for each in hot[:passes] for reasons in each] + [()] * 2 * 2 * OPTIONS.rounds


@pytest.mark.parametrize(
    ("reasons", "notes"),
    [
        (_throttled(2), "throttling (hw-thermal) met one side only, twice"),
        (_throttled(1), "rounds repeated after throttling"),
    ],
)
def test_throttling_of_one_side_repeats_the_rounds(monkeypatch, candidate, reasons, notes):
    track = Track()
    options = OPTIONS.model_copy(update={"all_baselines": False})
    measurement = make(monkeypatch, track, reasons).measure(candidate, options)
    assert measurement.notes[-1] == notes
    assert len(measurement.timing.samples_us) == OPTIONS.rounds
    assert len(track.log) == 2 + 2 * 2 * OPTIONS.rounds


@pytest.mark.parametrize(
    ("track", "check", "message"),
    [
        (Track(changed="input A was changed"), "input", "timed launches: input A was changed"),
        (Track(projected="3 of 16 rows are wrong"), "outputs", "timed launches: 3 of 16 rows are wrong"),
        (Track(mismatches=1), "outputs", "1 of 96 outputs are wrong"),
        (Track(after=("strays", "a launch changed 16 bytes")), "strays", "after the rounds: a launch changed 16 bytes"),
    ],
)
def test_what_timed_launches_do_wrong_is_a_fault(monkeypatch, candidate, track, check, message):
    with pytest.raises(WrongWhileTimed, match=message) as caught:
        make(monkeypatch, track).measure(candidate, OPTIONS)
    assert caught.value.check == check


@pytest.mark.parametrize(("protected", "looks"), [(True, 1), (False, OPTIONS.rounds)])
def test_inputs_are_compared_as_often_as_their_memory_asks_for(monkeypatch, candidate, protected, looks):
    track = Track(protected=protected)
    make(monkeypatch, track).measure(candidate, OPTIONS)
    assert track.pools.looks == looks


def test_a_changed_module_variable_is_a_fault(monkeypatch, candidate):
    candidate.altered = lambda: ("counter",)
    with pytest.raises(WrongWhileTimed, match="module variables counter were changed"):
        make(monkeypatch, Track()).measure(candidate, OPTIONS)


def test_the_record_holds_what_was_drawn_and_looked_at(monkeypatch, candidate):
    ruler = make(monkeypatch, Track()).measure(candidate, OPTIONS).ruler
    assert (ruler.secret, ruler.order, ruler.sets, ruler.launches, ruler.ring_bytes) == (11, 7, 2, 2, 512)
    assert ruler.projected == OPTIONS.rounds * 2
    assert len(ruler.compared) == 2
    assert all(0 <= place.sample < OPTIONS.rounds and 0 <= place.launch < 2 for place in ruler.compared)
    assert ruler.weakened == ()


def test_a_secret_is_drawn_for_every_measurement(monkeypatch, candidate):
    track = Track()
    opened, options = make(monkeypatch, track), OPTIONS.model_copy(update={"secret": None})
    rulers = [opened.measure(candidate, options).ruler for _ in range(2)]
    assert rulers[0].secret != rulers[1].secret
    assert len(set(track.pools.secrets)) == 2


def test_a_driver_without_read_only_memory_is_told(monkeypatch, candidate):
    measurement = make(monkeypatch, Track(protected=False)).measure(candidate, OPTIONS)
    assert "maps no memory read-only" in measurement.ruler.weakened[0]
    assert measurement.notes[-1] == measurement.ruler.weakened[0]


def judge_by_lane(track, faults, errors):
    """Judges the sample of the lane that was taken last. `faults`, `errors`: by lane."""

    def project(launches, _draw, **_):
        name = track.log[-1]
        return OutputJudgement(faults.get(name), errors.get(name, 0.0), 1.0, TASK.m * len(launches))

    track.judge.project = project


def test_a_baseline_that_computes_something_else_is_none(monkeypatch, candidate):
    track = Track()
    judge_by_lane(track, {"layout tn": "3 of 16 rows are wrong"}, {})
    measurement = make(monkeypatch, track).measure(candidate, OPTIONS)
    cublas = next(timing for timing in measurement.baselines if timing.name == CUBLAS)
    assert cublas.detail == "layout nn", "the faster one is wrong"
    assert "baseline cublas left out in the rounds: 3 of 16 rows are wrong" in measurement.notes
    assert track.forgotten == [CUBLAS], "it is opened anew the next time"


def test_a_candidate_may_err_twice_as_much_as_the_baselines_of_its_round(monkeypatch, candidate):
    for factor, passes in ((1.0, True), (8.0, False)):
        track = Track()
        judge_by_lane(track, {}, {"candidate": factor * 0.5} | dict.fromkeys(BASELINES, 0.5))
        opened = make(monkeypatch, track)
        if passes:
            opened.measure(candidate, OPTIONS)
            continue
        with pytest.raises(WrongWhileTimed, match="RMS error 4 exceeds"):
            opened.measure(candidate, OPTIONS)
