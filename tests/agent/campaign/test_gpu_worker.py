"""One worker of a campaign: what ends it, what it does not begin, and its sandbox between two tasks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cudal2_agent.agent.campaign import shape_search, watching
from cudal2_agent.agent.campaign.gpu_worker import work
from cudal2_agent.agent.campaign.shape_search import open_search
from cudal2_agent.agent.campaign.watching import GRACE_S, CampaignWatch
from cudal2_agent.contract.errors import StoreError
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import Store, open_store
from tests.agent.campaign.scripted_campaign import ScriptedSearch, Shown, tasks_of
from tests.doubles import ScriptedSandbox
from tests.store.campaigns.rows import result

TASKS = 5


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[CampaignQueue]:
    with open_store(f"sqlite:///{tmp_path / 'trajectories.sqlite'}") as store:
        made = CampaignQueue(store, "grid")
        made.open(Settings().recorded())
        made.add(tasks_of(TASKS), seed=0)
        yield made


class Clock:
    """In place of the module `time`: it moves when a search or a pause says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class TimedSearch:
    """Each search takes so many seconds of a clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.closed_s: list[float] = []

    def search(self, task: GemmTask) -> ShapeResult:
        self._clock.sleep(self._seconds)
        return result(task, run_id=None)

    def close(self) -> None:
        self.closed_s.append(self._clock.now_s)


@pytest.mark.parametrize(
    ("seconds", "left_s", "done"),
    [
        (GRACE_S, 2.5 * GRACE_S, 3),  # the grace covers the last one
        (2 * GRACE_S, 5 * GRACE_S, 2),  # the third would end one grace too late
        (2 * GRACE_S, 5 * GRACE_S + 1.0, 3),
        (10 * GRACE_S, 1.0, 1),  # nothing is known of the first one
    ],
)
def test_no_task_is_begun_that_would_be_cut_off(
    queue: CampaignQueue, monkeypatch: pytest.MonkeyPatch, seconds: float, left_s: float, done: int
) -> None:
    clock = Clock()
    monkeypatch.setattr("cudal2_agent.agent.campaign.gpu_worker.time", clock)
    monkeypatch.setattr(watching, "time", clock)
    work(queue, TimedSearch(clock, seconds), "a", lambda _task, _row: None, clock.now_s + left_s)
    counts = queue.counts()
    assert (counts.done, counts.pending) == (done, TASKS - done)


def test_a_worker_that_waits_for_others_gives_back_the_memory_of_its_gpu(
    queue: CampaignQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the last attempt of a large task, which runs while no other one is searched, finds the GPU full."""
    clock = Clock()
    monkeypatch.setattr("cudal2_agent.agent.campaign.gpu_worker.time", clock)
    monkeypatch.setattr(watching, "time", clock)
    other = queue.claim("other")
    assert other is not None
    searches = TimedSearch(clock, 1.0)
    work(queue, searches, "a", lambda _task, _row: None, clock.now_s + 10 * GRACE_S)
    assert queue.counts().done == TASKS - 1
    assert searches.closed_s
    assert min(searches.closed_s) == 1000.0 + TASKS - 1, "not before its own tasks are done"


def test_a_watch_goes_by_the_rows_since_its_process_began(queue: CampaignQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a driver on Ray asks before it lets an actor go on."""
    clock, [first, second, *_] = Clock(), list(tasks_of(TASKS))
    monkeypatch.setattr(watching, "time", clock)
    queue.take_over([result(first, seconds=100 * GRACE_S)])  # of an earlier process
    watch = CampaignWatch(queue, Shown(), hours=GRACE_S / 3600)
    assert watch.leaves_time()
    queue.take_over([result(second, seconds=3 * GRACE_S)])
    watch.look([], at_once=True)
    assert not watch.leaves_time()
    assert not watch.is_late()


def test_without_a_deadline_the_queue_is_worked_off(queue: CampaignQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("cudal2_agent.agent.campaign.gpu_worker.time", clock)
    work(queue, TimedSearch(clock, 1e6), "a", lambda _task, _row: None)
    assert queue.counts().done == TASKS


def test_a_full_disk_ends_the_worker_and_blames_no_shape(
    tmp_path: Path, queue: CampaignQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise StoreError("store cannot be used (database or disk is full)")

    monkeypatch.setattr(CampaignQueue, "finish", full)
    with pytest.raises(StoreError, match="disk is full"):
        work(queue, ScriptedSearch(tmp_path), "a", lambda _task, _row: None)
    assert queue.counts().pending == TASKS
    assert queue.results() == []


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("sqlite://") as opened:
        yield opened


def test_a_closed_sandbox_is_opened_again_for_the_next_task(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[ScriptedSandbox]:
        seen.append("open")
        yield ScriptedSandbox()
        seen.append("closed")

    monkeypatch.setattr(shape_search, "open_sandbox_of", opened)
    with open_search(Settings(), store, lambda _: None) as search:
        search.open(Arch.SM_90A)
        search.open(Arch.SM_90A)
        assert seen == ["open"]
        search.close()
        search.close()
        assert seen == ["open", "closed"]
        search.open(Arch.SM_90A)
    assert seen == ["open", "closed", "open", "closed"]
