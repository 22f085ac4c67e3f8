"""Campaigns with processes that are killed: a finished shape is neither lost nor repeated."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cudal2_agent.agent.campaign import process_slots, watching
from cudal2_agent.agent.campaign.campaign import Campaign, CampaignPlan
from cudal2_agent.contract.errors import WorkerError
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.campaign_queue import MAX_ATTEMPTS, CampaignQueue
from cudal2_agent.store.store import Store, open_store
from tests.agent.campaign.scripted_campaign import (
    BREAKS_ONCE,
    HANGS,
    IMPOSSIBLE,
    KILLS,
    KILLS_ONCE,
    UNPROVED,
    Shown,
    begun,
    run_broken,
    run_scripted,
    run_scripted_prover,
    tasks_of,
)

ROOT = Path(__file__).parents[3]
OTHER_S = 200.0  # thirty scripted searches in one process take 10 s, and 100 s on a busy machine


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(process_slots, "BACK_OFF_S", 0.01)
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    home.mkdir()
    with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as made:
        yield made


def queue_of(store: Store, tasks: dict[GemmTask, float]) -> CampaignQueue:
    queue = CampaignQueue(store, "grid")
    queue.open(Settings().recorded())
    queue.add(tasks, seed=0)
    return queue


def campaign(home: Path, queue: CampaignQueue, shown: Shown, workers: int = 2, **changes: object) -> Campaign:
    devices = tuple(f"emulator/{number}" for number in range(workers))
    fields = {
        "name": "grid",
        "settings": Settings(home=home, minutes=0.1),
        "arch": Arch.SM_90A,
        "devices": devices,
        "provers": 0,
    }
    entry = changes.pop("entry", run_scripted)
    return Campaign(CampaignPlan.model_validate({**fields, **changes}), queue, shown, gpu_entry=entry)  # type: ignore[arg-type]


def test_lost_broken_and_impossible_shapes_cost_only_themselves(home: Path, store: Store) -> None:
    bad = {k: next(iter(tasks_of(1, k))) for k in (KILLS_ONCE, KILLS, IMPOSSIBLE, BREAKS_ONCE)}
    queue, shown = queue_of(store, tasks_of(6) | dict.fromkeys(bad.values(), 1.0)), Shown()
    campaign(home, queue, shown).run()
    counts, tried = queue.counts(), Counter(begun(home))
    assert (counts.done, counts.failed, counts.left) == (8, 2, 0)
    assert {one.task for one in queue.failed()} == {bad[KILLS], bad[IMPOSSIBLE]}
    assert tried[bad[KILLS].shape] == MAX_ATTEMPTS
    assert tried[bad[IMPOSSIBLE].shape] == 1
    assert tried[bad[KILLS_ONCE].shape] == tried[bad[BREAKS_ONCE].shape] == 2
    assert all(tried[task.shape] == 1 for task in tasks_of(6))
    assert len(shown.rows) == 8
    assert sum("signal 9" in note for note in shown.notes) == 1 + MAX_ATTEMPTS
    assert any("the driver was lost" in note for note in shown.notes)
    assert shown.last.total == 10


def test_a_campaign_goes_on_where_it_ended_and_takes_more_shapes(home: Path, store: Store) -> None:
    queue = queue_of(store, tasks_of(2))
    campaign(home, queue, Shown(), 1).run()
    queue.add(tasks_of(4), seed=0)
    shown = Shown()
    campaign(home, queue, shown, 1).run()
    assert len(shown.rows) == 2
    assert all(row.host is not None and row.host.campaign_mib > row.host.peak_mib > 0 for row in shown.rows)
    assert max(Counter(begun(home)).values()) == 1


def test_without_time_nothing_is_begun(home: Path, store: Store) -> None:
    queue = queue_of(store, tasks_of(2))
    campaign(home, queue, Shown(), hours=0.0).run()
    assert begun(home) == []
    assert queue.counts().pending == 2


def test_when_time_is_up_what_is_in_progress_is_handed_back(home: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "GRACE_S", 0.0)
    monkeypatch.setattr("cudal2_agent.agent.campaign.campaign.GRACE_S", 0.2)
    queue = queue_of(store, tasks_of(1, HANGS))

    class TimeIsUp(Shown):
        """Ends the time once the task has begun, however long its process took to start."""

        def show(self, overview: object) -> None:
            super().show(overview)
            if begun(home):
                run._watch.deadline_s = time.time()

    run = campaign(home, queue, TimeIsUp(), 1, hours=1.0)
    run.run()
    assert run._watch.deadline_s is not None
    assert time.time() < run._watch.deadline_s + 30, "the task would end by itself after 60 s"
    assert len(begun(home)) == 1
    assert queue.counts().pending == 1
    claim = queue.claim("later")
    assert claim is not None
    assert claim.attempt == 1, "an interrupted attempt does not count"


def test_workers_that_never_start_end_the_campaign_in_one_line(
    home: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_slots, "MAX_RESTARTS", 1)
    queue = queue_of(store, tasks_of(2))
    with pytest.raises(WorkerError, match="no worker of campaign grid could go on: there is no driver") as caught:
        campaign(home, queue, Shown(), 1, entry=run_broken).run()
    assert len(str(caught.value).splitlines()) == 1
    assert queue.counts().pending == 2, "no shape is blamed"


def test_a_prover_that_cannot_start_does_not_hold_up_the_searches(home: Path, store: Store) -> None:
    queue, shown = queue_of(store, tasks_of(2)), Shown()
    plan = campaign(home, queue, shown, 1)._plan.model_copy(update={"provers": 1})
    Campaign(plan, queue, shown, gpu_entry=run_scripted, prover_entry=run_broken).run()
    assert queue.counts().done == 2


@pytest.mark.parametrize(("compile_jobs", "provers"), [(8, 4), (2, 1)])
def test_after_the_last_search_its_processors_prove(home: Path, store: Store, compile_jobs: int, provers: int) -> None:
    queue, shown = queue_of(store, tasks_of(12, UNPROVED)), Shown()
    settings = Settings(home=home, minutes=0.1, compile_jobs=compile_jobs)
    plan = campaign(home, queue, shown)._plan.model_copy(update={"provers": 1, "settings": settings})
    run = Campaign(plan, queue, shown, gpu_entry=run_scripted, prover_entry=run_scripted_prover)
    run.run()
    assert queue.unproved() == 0
    assert len(run._provers.slots) == provers
    assert [one.device for one in shown.last.workers] == [f"prover {number}" for number in range(provers)]
    assert sum("the GPUs are free" in note and "campaign prove --name grid" in note for note in shown.notes) == 1
    assert max(Counter(begun(home)).values()) == 1


def test_without_provers_a_campaign_ends_with_its_last_search(home: Path, store: Store) -> None:
    queue, shown = queue_of(store, tasks_of(2, UNPROVED)), Shown()
    campaign(home, queue, shown).run()
    assert queue.unproved() == 2
    assert not shown.notes


def start(home: Path, name: str, workers: int, count: int) -> subprocess.Popen[bytes]:
    words = [str(home), name, str(workers), str(count)]
    command = [sys.executable, "-m", "tests.agent.campaign.scripted_campaign", *words]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_two_parents_on_one_store_of_which_one_is_killed(home: Path, store: Store) -> None:
    count = 30
    killed, other = start(home, "grid", 1, count), start(home, "grid", 1, count)
    wait_for(lambda: len(begun(home)) > count // 4)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    assert other.wait(OTHER_S) == 0
    queue = CampaignQueue(store, "grid")
    assert queue.counts().done == count
    assert len(queue.results()) == count
    repeated = [shape for shape, times in Counter(begun(home)).items() if times > 1]
    assert len(repeated) <= 1, "only the shape in progress is searched again"


def test_an_interrupt_ends_at_once_with_everything_recorded(home: Path, store: Store) -> None:
    process = start(home, "grid", 2, 200)
    wait_for(lambda: len(begun(home)) > 6)
    process.send_signal(signal.SIGINT)
    process.wait(20)
    queue = CampaignQueue(store, "grid")
    counts = queue.counts()
    assert counts.running == 0
    assert counts.done < 100, "it did not end at once"
    assert counts.done == len(queue.results()) >= len(begun(home)) - 2
