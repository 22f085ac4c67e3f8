"""The queue: claims are atomic, leases end, and a finished task is neither lost nor repeated."""

import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.run_settings import RunSettings
from cudal2_agent.store.campaign_queue import LEASE_S, MAX_ATTEMPTS, CampaignQueue, Claim
from cudal2_agent.store.store import Store, open_store
from tests.store.campaigns.rows import result, tasks


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with open_store(database_url) as made:
        yield made


@pytest.fixture
def queue(store: Store) -> CampaignQueue:
    made = CampaignQueue(store, "grid")
    made.open(RunSettings())
    made.add(tasks(4), seed=1)
    return made


def claimed(queue: CampaignQueue, worker: str = "a", now_s: float | None = None) -> Claim:
    found = queue.claim(worker, now_s)
    assert found is not None
    return found


def test_each_task_is_claimed_once_and_finished_with_its_result(queue: CampaignQueue, store: Store) -> None:
    for number in range(4):
        assert queue.finish(claimed(queue, f"worker-{number % 2}"), result(list(tasks(4))[number]))
    assert queue.claim("a") is None
    assert queue.counts().done == 4
    assert sorted(one.task.m for one in store.results()) == [16, 32, 48, 64]


def test_the_order_is_random_but_for_the_seed(store: Store) -> None:
    orders = []
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        queue = CampaignQueue(store, name)
        queue.open(RunSettings())
        queue.add(tasks(12), seed)
        orders.append([claimed(queue).task.m for _ in range(12)])
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_adding_more_shapes_keeps_what_is_done(queue: CampaignQueue) -> None:
    first = claimed(queue)
    queue.finish(first, result(first.task))
    assert queue.add(tasks(6), seed=1) == 2
    assert queue.counts().pending == 5
    assert queue.counts().done == 1


def test_a_lease_that_ran_out_frees_the_task_and_the_late_result_does_not_count(queue: CampaignQueue, store: Store) -> None:
    late = claimed(queue, "late")
    for _ in range(3):
        claimed(queue, "other")
    assert queue.claim("next") is None
    again = claimed(queue, "next", time.time() + LEASE_S + 1)
    assert again.attempt == 2
    assert not queue.renew(late) or again.task != late.task
    held = again if again.task == late.task else late
    assert queue.finish(held, result(held.task))
    assert not queue.finish(late, result(late.task, later_s=1))
    assert len(store.results()) == 1


def test_a_renewed_lease_keeps_the_task(queue: CampaignQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [claimed(queue) for _ in range(4)]
    later_s = time.time() + LEASE_S
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: later_s)
        assert all(queue.renew(one) for one in held)
    assert queue.claim("b", later_s + 1) is None


def test_a_failed_task_is_tried_twice_more_after_the_others(queue: CampaignQueue) -> None:
    first = claimed(queue)
    queue.fail(first, "no kernel")
    attempts = [claimed(queue) for _ in range(4)]
    assert [one.task for one in attempts[:3]].count(first.task) == 0
    assert (attempts[3].task, attempts[3].attempt) == (first.task, 2)
    queue.fail(attempts[3], "no kernel")
    for other in attempts[:3]:
        assert queue.claim("b") is None, "the last attempt waits until no other task is searched"
        queue.finish(other, result(other.task))
    queue.fail(claimed(queue), "still no kernel")
    assert queue.claim("a") is None
    assert queue.counts().failed == 1
    assert queue.failed() == [(first.task, MAX_ATTEMPTS, "still no kernel")]


def test_a_failure_for_good_is_not_repeated(queue: CampaignQueue) -> None:
    queue.fail(claimed(queue), "too large", for_good=True)
    assert len({claimed(queue).task for _ in range(3)}) == 3
    assert queue.claim("a") is None


def test_what_is_handed_back_counts_as_never_tried(queue: CampaignQueue) -> None:
    first = claimed(queue)
    queue.hand_back(first)
    again = claimed(queue)
    assert again[2:] == first[2:]


def test_a_worker_that_was_stopped_leaves_its_task_as_never_tried(queue: CampaignQueue) -> None:
    first = claimed(queue, "stopped")
    assert list(queue.running().items()) == [("stopped", first.task)]
    assert queue.release("stopped", "its actor was stopped", counts=False) == 1
    assert queue.running() == {}
    assert claimed(queue)[2:] == first[2:]


def test_a_task_whose_workers_are_lost_each_time_fails(queue: CampaignQueue) -> None:
    for _ in range(3 * MAX_ATTEMPTS + MAX_ATTEMPTS):
        assert queue.claim("killed") is not None
        assert queue.release("killed", "the worker was killed") == 1
    assert queue.claim("a") is None
    assert queue.counts().failed == 4


def test_resuming_takes_the_new_settings_and_keeps_the_date(queue: CampaignQueue) -> None:
    before = queue.record()
    queue.open(RunSettings(budget=7))
    assert queue.record().settings.budget == 7
    assert queue.record().created_at == before.created_at


def test_results_of_another_store_end_their_items(queue: CampaignQueue, store: Store) -> None:
    known = [result(task) for task in list(tasks(6))[:3]]
    assert queue.take_over(known) == 3
    assert queue.take_over(known) == 0
    assert queue.counts().done == 3
    other = CampaignQueue(store, "later")
    with pytest.raises(UsageError, match="no campaign 'later'"):
        other.claim("a")
    queue.add(dict.fromkeys(list(tasks(6))[4:], 1.0), seed=0)
    assert queue.counts().pending == 3


def _work(url: str, worker: str) -> None:
    with open_store(url) as store:
        queue = CampaignQueue(store, "grid")
        while (claim := queue.claim(worker)) is not None:
            assert queue.renew(claim)
            assert queue.finish(claim, result(claim.task))


def test_several_processes_finish_each_task_once(database_url: str, nursery: ForkServerContext) -> None:
    many: dict[GemmTask, float] = tasks(40)
    with open_store(database_url) as store:
        queue = CampaignQueue(store, "grid")
        queue.open(RunSettings())
        queue.add(many, seed=1)
        workers = [nursery.Process(target=_work, args=(database_url, f"worker-{number}")) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        assert {one.task for one in store.results()} == set(many)
        assert len(store.results()) == 40
