"""Races with scripted lanes: pairing, elimination by class, budgets, faults and repeated rounds."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.evaluation import AUTOTUNED, HEURISTIC
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.reward.speedup import paired_speedup
from cudal2_agent.contract.settings.options import RACE_TIME
from cudal2_agent.sandbox.cuda import race_timer
from cudal2_agent.sandbox.cuda.baselines.library_baselines import Baselines, LibraryBaselines
from cudal2_agent.sandbox.cuda.driver import Fault
from cudal2_agent.sandbox.cuda.elimination import MIN_ROUNDS, affordable, staying, stops, wholly_behind
from cudal2_agent.sandbox.cuda.race_timer import RaceTimer
from cudal2_agent.sandbox.cuda.timing import timer as timer_module
from cudal2_agent.sandbox.cuda.timing.sample_plan import TimedLaunch
from cudal2_agent.sandbox.cuda.timing.timer import Timer
from cudal2_agent.sandbox.cuda.timing.watch import WrongWhileTimed
from tests.doubles import ENVIRONMENT
from tests.sandbox.cuda.timing.test_rounds import Library, Sampler, Track, leave_out_the_aftermath

TASK = GemmTask(m=8, n=12, k=16)
OPTIONS = RACE_TIME.model_copy(update={"secret": 5, "budget_s": None})
WOBBLE = (0.0, 0.02, -0.01, 0.03, -0.02, 0.01, 0.0)


class Lane:
    launches = (TimedLaunch(0, 1, 0), TimedLaunch(1, 0, 1))
    order = 7
    workspaces = None
    zero_us = 3.0

    def __init__(self, us, log, name, fails_at=None):
        self.us, self.log, self.name, self.fails_at, self.count = us, log, name, fails_at, itertools.count()

    def sample_us(self):
        index = next(self.count)
        self.log.append(self.name)
        if index == self.fails_at:
            raise Fault(f"{self.name} fell over")
        return self.us * (1 + WOBBLE[index % len(WOBBLE)])


def contender(name, us, plain_us=None, **named):
    return SimpleNamespace(
        name=name, us=us, plain_us=plain_us, programmatic=plain_us is not None, altered=lambda: (), local_bytes=0, **named
    )


@pytest.fixture
def race(monkeypatch):
    def make(*contenders, options=OPTIONS, task=TASK, reasons=(), track=None):
        track = track or Track()
        device = SimpleNamespace(pci_bus_id="0", chip=REFERENCE_CHIPS[task.arch], environment=ENVIRONMENT)
        timer = Timer(task, device)
        timer._opened = track
        libraries = {AUTOTUNED: (Library(AUTOTUNED, "best", 5.0),), HEURISTIC: (Library(HEURISTIC, "first", 5.5),)}
        timer._libraries = SimpleNamespace(
            open=lambda names: Baselines({name: libraries[name] for name in names}, ()), wanted=LibraryBaselines.wanted
        )
        monkeypatch.setattr(timer_module, "open_lane", lambda _t, one, _o, _d: Lane(one.us, track.log, one.name))
        leave_out_the_aftermath(monkeypatch, track)
        sampler = Sampler(reasons)
        sampler.sample = sampler.reasons
        monkeypatch.setattr(race_timer, "open_sampler", lambda _: contextlib.nullcontext(sampler))

        def open_brief(_track, one, launches, _draw, *, interval_us, programmatic, beside):
            assert (beside is None) is (programmatic is None)
            assert launches == (options.server_launches if task.mode is TimingMode.SERVER else 2)
            assert interval_us == options.server_interval_us
            us, name = (one.us, one.name) if programmatic is None else (one.plain_us, f"{one.name} plain")
            return Lane(us, track.log, name, getattr(one, "fails_at", None))

        monkeypatch.setattr(race_timer, "open_brief_lane", open_brief)
        made, out = RaceTimer(timer, task, "0", options), {}

        def attempt(position, work):
            try:
                work()
            except Fault as fault:
                out[position] = fault
                return False
            return True

        for position, one in enumerate(contenders):
            attempt(position, lambda position=position, one=one: made.enter(position, one))
        return made.run(attempt), out, track

    return make


def test_one_finalist_gets_every_round_with_every_baseline(race):
    measured, out, _ = race(contender("a", 2.0))
    assert out == {}
    assert len(measured[0].timing.samples_us) == OPTIONS.rounds
    assert [baseline.name for baseline in measured[0].baselines] == [HEURISTIC, AUTOTUNED]
    assert all(len(baseline.samples_us) == OPTIONS.rounds for baseline in measured[0].baselines)
    assert measured[0].plain is None
    assert measured[0].ruler.projected == 2 * OPTIONS.rounds
    assert len(measured[0].ruler.compared) == 2


def test_a_finalist_that_is_behind_leaves_with_its_own_rounds(race):
    measured, _, _ = race(contender("slow", 4.0), contender("fast", 2.0))
    assert len(measured[0].timing.samples_us) == 5
    assert len(measured[1].timing.samples_us) == OPTIONS.rounds
    for each in measured.values():
        assert all(len(each.timing.samples_us) == len(baseline.samples_us) for baseline in each.baselines)
        assert len(each.ruler.compared) == 2, "its outputs are compared before it leaves"


def test_two_equal_kernels_stay_and_tie(race):
    measured, _, _ = race(contender("a", 2.0), contender("b", 2.0))
    assert [len(each.timing.samples_us) for each in measured.values()] == [OPTIONS.rounds] * 2
    tie = paired_speedup(measured[0].timing, measured[1].timing)
    assert tie.low <= 1 <= tie.high


def test_the_best_of_either_class_stays(race):
    """`a` is faster with programmatic launch, `b` without it, and `c` is behind in both."""
    measured, _, _ = race(contender("a", 2.0, 3.0), contender("b", 2.5, 2.6), contender("c", 3.5, 3.6), contender("d", 2.9))
    assert [len(measured[position].timing.samples_us) for position in range(4)] == [21, 21, 5, 5]
    for position in range(3):
        assert len(measured[position].plain.samples_us) == len(measured[position].timing.samples_us)
    assert measured[0].side.without_programmatic_us == pytest.approx(3.0, rel=0.05)
    assert measured[3].plain is None


def test_a_server_launches_with_and_without_the_attribute_in_the_same_rounds(race):
    """`b` is the best with the attribute, `a` without it: both stay to the end."""
    server = TASK.model_copy(update={"mode": TimingMode.SERVER})
    measured, _, track = race(contender("a", 2.0, 1.9), contender("b", 1.9, 2.1), contender("c", 2.5, 2.5), task=server)
    assert [len(measured[position].plain.samples_us) for position in range(3)] == [OPTIONS.rounds, OPTIONS.rounds, 5]
    assert measured[0].side.without_programmatic_us == pytest.approx(1.9, rel=0.05)
    assert track.log.count("a plain") == track.log.count("a") == 1 + OPTIONS.rounds


@pytest.mark.parametrize("fails_at", [0, 3])
def test_a_finalist_that_fails_is_out_and_the_others_race_on(race, fails_at):
    measured, out, _ = race(contender("a", 2.0), contender("b", 1.0, fails_at=fails_at), contender("c", 2.0))
    assert str(out[1]) == "b fell over"
    assert sorted(measured) == [0, 2]
    assert all(len(each.timing.samples_us) == OPTIONS.rounds for each in measured.values())


def test_wrong_outputs_while_timed_are_a_fault(race):
    measured, out, _ = race(contender("a", 2.0), track=Track(projected="3 rows are wrong"))
    assert measured == {}
    assert isinstance(out[0], WrongWhileTimed)


def test_throttling_of_one_side_repeats_the_race_and_is_told(race):
    hot = itertools.repeat(("hw-thermal",))
    measured, _, _ = race(contender("a", 2.0), contender("b", 2.0), reasons=hot)
    assert measured[0].notes == (), "all sides were hot"
    once = itertools.chain([("hw-thermal",)], itertools.repeat(()))
    brief = OPTIONS.model_copy(update={"rounds": 9})
    measured, _, track = race(contender("a", 2.0), options=brief, reasons=once)
    assert measured[0].notes == ("rounds repeated after throttling",)
    assert len(measured[0].timing.samples_us) == 9
    assert track.log.count("a") == 1 + 2 * 9


def test_throttling_after_a_finalist_left_is_not_its_own(race):
    """Only the baselines, and the finalist that stays, run when the GPU begins to throttle."""
    samples = 5 * 4  # of the rounds of two finalists and two baselines
    late = itertools.chain(itertools.repeat((), samples), itertools.repeat(("hw-thermal",)))
    measured, _, _ = race(contender("slow", 4.0), contender("fast", 2.0), reasons=late)
    assert (len(measured[0].timing.samples_us), measured[0].notes) == (5, ())


def test_a_race_is_settled_at_its_checkpoints():
    assert list(stops(21)) == [5, 9, 15, 21]
    assert list(stops(7)) == [5, 7]
    assert wholly_behind([2.0, 2.1, 2.2], [1.0, 1.1, 1.0])
    assert not wholly_behind([1.0, 1.1, 1.0], [1.0, 1.1, 1.0])
    assert staying([{}, {4: [2.0] * 5, 7: [1.0] * 5}]) == {7}
    assert staying([{4: [2.0] * 5}, {4: [2.0] * 5, 7: [1.0] * 5}]) == {4, 7}


def test_a_budget_leaves_out_rounds_but_never_the_minimum():
    assert affordable(5, 1.0, 50, 5, 21, None) == 21
    assert affordable(5, 1.0, 50, 5, 21, 3.0) == 21
    assert affordable(5, 1.0, 50, 10, 21, 2.0) == 10
    assert affordable(5, 4.0, 50, 10, 21, 3.0) == MIN_ROUNDS
