"""Screens and races of real schedules on a GPU, through worker processes."""

from collections.abc import Iterator

import pytest

from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import AUTOTUNED, HEURISTIC, Measured, TimedOut
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.reward.speedup import paired_ratio, paired_speedup
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.prediction import predict
from cudal2_agent.sandbox.local import LocalSandbox, open_sandbox
from cudal2_agent.sandbox.workers.pool import WorkerPool

pytestmark = pytest.mark.gpu

VERIFY = VerifyOptions(timeout_s=20)
HANG = """// cudal2: {"arch": "sm_80", "launches": [{"entry": "gemm", "grid": [1, 1, 1], "block": [32, 1, 1],
//   "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}]}]}
extern "C" __global__ void gemm(const short* a, const short* b, volatile short* d) {
  while (d[0] != 12345) d[1] = a[0] ^ b[0];
}
"""


class Book:
    def __init__(self):
        self.kept = {}

    def tuned(self, task, environment):
        return self.kept.get((task, environment))

    def keep(self, baseline):
        self.kept[baseline.task, baseline.environment] = baseline


@pytest.fixture(scope="module")
def chip() -> Chip:
    pool = WorkerPool([WorkerOptions()])
    try:
        return pool.ready().chip
    finally:
        pool.close()


@pytest.fixture(scope="module")
def book() -> Book:
    return Book()


@pytest.fixture(scope="module")
def sandbox(chip: Chip, book: Book, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSandbox]:
    opened = open_sandbox(
        arch=chip.arch,
        device="cuda:0",
        compile_options=CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache") / "compile"), jobs=8),
        verify_options=VERIFY,
        quick=TimeOptions(rounds=3, all_baselines=False, side=False),
        full=TimeOptions(rounds=3),
        worker=WorkerOptions(),
        predict=predict,
        emit=ignore,
        baselines=book,
    )
    yield opened
    opened.close()


def ranked(sandbox: LocalSandbox, task: GemmTask, *places: float) -> list[Built]:
    """Schedules at these places of the prior's ranking, 0 the best and 1 the worst, built."""
    pool = SchedulePool(families(task.arch), task, sandbox.chip, 0)
    predicted = zip(pool.predicted_us, pool.entries, strict=True)
    order = sorted(((us, entry) for us, entry in predicted if entry.family.name == "wgmma_tma"), key=lambda each: each[0])
    chosen = [order[int(place * (len(order) - 1))][1] for place in places]
    wanted = [entry.family.write(entry.schedule, task) for entry in chosen]
    built = dict(sandbox.build(wanted, task))
    found = [built[position] for position in range(len(wanted))]
    assert all(isinstance(one, Built) for one in found), found
    return [one for one in found if isinstance(one, Built)]


@pytest.fixture(params=[TimingMode.OFFLINE, TimingMode.SERVER])
def task(chip: Chip, request) -> GemmTask:
    return GemmTask(m=1024, n=1024, k=512, arch=chip.arch, mode=request.param)


def test_a_screen_measures_briefly_and_says_what_it_left_out(sandbox, task, book):
    built = ranked(sandbox, task, 0.0, 0.5)
    outcomes = dict(sandbox.screen(built, task))
    for outcome in outcomes.values():
        assert isinstance(outcome, Measured), outcome
        assert (outcome.effort, [baseline.name for baseline in outcome.baselines]) == ("screen", [AUTOTUNED])
        assert len(outcome.timing.samples_us) == len(outcome.baselines[0].samples_us) == 3
        assert any("screened" in one for one in outcome.ruler.weakened)
    assert (task, sandbox.environment.key) in book.kept
    kept = dict(book.kept)
    list(sandbox.screen(built[:1], task))
    assert book.kept == kept, "a kept baseline is not tuned again"


def test_screen_and_race_agree_on_clearly_different_kernels(sandbox, task):
    built = ranked(sandbox, task, 0.0, 0.97)
    screened = dict(sandbox.screen(built, task))
    raced = sandbox.race(built, task)
    assert all(isinstance(outcome, Measured) for outcome in (*screened.values(), *raced)), raced
    assert screened[0].time_us < screened[1].time_us
    assert raced[0].time_us < raced[1].time_us
    assert len(raced[0].timing.samples_us) > len(raced[1].timing.samples_us), "the slower one left"
    for outcome in raced:
        assert outcome.effort == "race"
        assert [baseline.name for baseline in outcome.baselines] == [HEURISTIC, AUTOTUNED]
        assert all(len(baseline.samples_us) == len(outcome.timing.samples_us) for baseline in outcome.baselines)


def test_a_kernel_ties_with_itself(sandbox, chip):
    task = GemmTask(m=1024, n=1024, k=512, arch=chip.arch)
    (one,) = ranked(sandbox, task, 0.0)
    raced = sandbox.race([one, one], task)
    rounds = min(len(outcome.timing.samples_us) for outcome in raced)
    timings = [outcome.timing.model_copy(update={"samples_us": outcome.timing.samples_us[:rounds]}) for outcome in raced]
    tie = paired_speedup(*timings)
    assert tie.ratio == pytest.approx(1, abs=0.02)
    assert tie.low <= 1.005
    assert tie.high >= 0.995


def test_a_kernel_with_programmatic_launch_is_raced_without_it_too(sandbox, task):
    raced = sandbox.race(ranked(sandbox, task, 0.0, 0.01, 0.02, 0.05), task)
    with_it = [outcome for outcome in raced if outcome.plain is not None]
    assert with_it, "no schedule of these has programmatic launch"
    assert all(len(outcome.plain.samples_us) == len(outcome.timing.samples_us) for outcome in with_it)
    if task.mode is TimingMode.SERVER:
        for outcome in with_it:  # no kernel precedes
            assert paired_ratio(outcome.timing, outcome.plain) == pytest.approx(1, abs=0.05)


def test_a_hanging_kernel_costs_itself_only(sandbox, chip):
    task = GemmTask(m=1024, n=1024, k=512, arch=chip.arch)
    candidate = Candidate.from_source(HANG, Origin(policy="test"))
    [(_, hanging)] = sandbox.build([candidate], task)
    assert isinstance(hanging, Built), hanging
    one, two = ranked(sandbox, task, 0.0, 0.5)
    outcomes = dict(sandbox.screen([one, hanging, two], task))
    assert [type(outcomes[position]) for position in range(3)] == [Measured, TimedOut, Measured]
