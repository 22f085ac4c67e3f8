"""Screens with scripted lanes: brief rounds beside the standing baseline, and what is left out of them."""

import contextlib
from types import SimpleNamespace

import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.settings.options import SCREEN_TIME
from cudal2_agent.sandbox.cuda import screen_timer
from cudal2_agent.sandbox.cuda.baselines.library_baselines import Baselines, LibraryBaselines
from cudal2_agent.sandbox.cuda.screen_timer import LEFT_OUT, ScreenTimer
from cudal2_agent.sandbox.cuda.timing.timer import Timer
from cudal2_agent.sandbox.cuda.timing.watch import WrongWhileTimed
from tests.doubles import ENVIRONMENT
from tests.sandbox.cuda.timing.test_rounds import Lane, Library, Sampler, Track, leave_out_the_aftermath

TASK = GemmTask(m=8, n=12, k=16)
CANDIDATE = SimpleNamespace(name="abc", us=2.0, detail="candidate", programmatic=False, altered=lambda: ())


@pytest.fixture
def screen(monkeypatch):
    def make(track, task=TASK, libraries=None):
        timer = Timer(task, SimpleNamespace(pci_bus_id="0", chip=REFERENCE_CHIPS[task.arch], environment=ENVIRONMENT))
        timer._opened = track
        found = {AUTOTUNED: (Library(AUTOTUNED, "best", 50.0),)} if libraries is None else libraries
        timer._libraries = SimpleNamespace(open=lambda _names: Baselines(found, ()), wanted=LibraryBaselines.wanted)
        leave_out_the_aftermath(monkeypatch, track)
        monkeypatch.setattr(screen_timer, "open_sampler", lambda _: contextlib.nullcontext(Sampler(())))
        opened = []

        def open_brief(_track, one, launches, _draw, *, interval_us=0.0):
            opened.append((one.detail, launches, interval_us))
            return Lane(one.us, track.log, one.detail)

        monkeypatch.setattr(screen_timer, "open_brief_lane", open_brief)
        return ScreenTimer(timer, task, "0", SCREEN_TIME.model_copy(update={"secret": 3})), opened

    return make


def test_a_candidate_has_few_rounds_with_the_baseline_in_each(screen):
    track = Track()
    rounds, opened = screen(track)
    measured = rounds.measure(CANDIDATE, trusted=True)
    assert len(measured.timing.samples_us) == len(measured.baselines[0].samples_us) == SCREEN_TIME.rounds
    assert opened[-1][:2] == ("candidate", 20), "1 ms of launches as long as the baseline's"
    assert opened[1][:2] == ("best", 20)
    assert measured.ruler.projected == SCREEN_TIME.rounds * len(Lane.launches)
    assert measured.ruler.compared == ()
    assert measured.ruler.weakened == LEFT_OUT
    assert track.log.count("candidate") == SCREEN_TIME.rounds


def test_the_data_are_new_for_a_batch_and_for_every_untrusted_candidate(screen):
    track = Track()
    rounds, _ = screen(track)
    for _ in range(2):
        rounds.measure(CANDIDATE, trusted=True)
    assert len(track.pools.secrets) == 1
    ruler = rounds.measure(CANDIDATE, trusted=False).ruler
    assert len(set(track.pools.secrets)) == 2
    assert len(ruler.compared) == 2
    assert ruler.weakened == LEFT_OUT[:1]


def test_a_server_gets_single_launches_without_gaps(screen):
    rounds, opened = screen(Track(), task=TASK.model_copy(update={"mode": TimingMode.SERVER}))
    rounds.measure(CANDIDATE, trusted=True)
    assert {(launches, gap) for _, launches, gap in opened} == {(SCREEN_TIME.server_launches, 0.0)}


def test_only_a_server_says_what_was_subtracted(screen):
    for mode, subtracted in ((TimingMode.SERVER, Lane.zero_us), (TimingMode.OFFLINE, None)):
        rounds, _ = screen(Track(), task=TASK.model_copy(update={"mode": mode}))
        assert rounds.measure(CANDIDATE, trusted=True).ruler.zero_us == subtracted


def test_without_a_library_the_roofline_chooses_the_launches(screen):
    rounds, opened = screen(Track(), libraries={})
    assert rounds.measure(CANDIDATE, trusted=True).baselines == ()
    assert opened[-1][1] > 100


def test_wrong_outputs_while_screened_are_a_fault(screen):
    rounds, _ = screen(Track(projected="3 rows are wrong"))
    with pytest.raises(WrongWhileTimed, match="3 rows"):
        rounds.measure(CANDIDATE, trusted=True)
