"""A campaign on a real Ray cluster of two nodes without a GPU; actors and a node are killed in the middle."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.campaign.campaign import CampaignPlan
from cudal2_agent.agent.campaign.ray_cluster import run_on_ray
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import Store, open_store
from tests.agent.campaign.scripted_campaign import KILLS_ONCE, Shown, begun, scripted_search, tasks_of

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'cudal2-agent[ray]'")
ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings are of Ray, about its own files


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2)
    ray.init(address=made.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    home.mkdir()
    with open_store(f"sqlite:///{home / 'trajectories.sqlite'}") as made:
        yield made


def plan_of(home: Path, devices: int) -> CampaignPlan:
    names = tuple(f"emulator/{number}" for number in range(devices))
    return CampaignPlan(name="grid", settings=Settings(home=home), arch=Arch.SM_90A, devices=names, provers=0)


def queue_of(store: Store, tasks: dict) -> CampaignQueue:  # type: ignore[type-arg]
    queue = CampaignQueue(store, "grid")
    queue.open(Settings().recorded())
    queue.add(tasks, seed=0)
    return queue


def in_the_middle(home: Path, act: Callable[[], object]) -> threading.Thread:
    """A thread that acts once some searches have begun."""

    def wait() -> None:
        while len(begun(home)) < 6:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.usefixtures("cluster")
def test_actors_that_are_killed_lose_and_repeat_nothing(home: Path, store: Store) -> None:
    deadly = next(iter(tasks_of(1, KILLS_ONCE)))
    queue, shown = queue_of(store, tasks_of(16) | {deadly: 1.0}), Shown()
    killer = in_the_middle(home, lambda: os.kill(int((home / "pid.txt").read_text()), signal.SIGKILL))
    run_on_ray(plan_of(home, 2), queue, "local", shown, scripted_search)
    killer.join(30)
    tried = Counter(begun(home))
    assert queue.counts().done == 17
    assert len(queue.results()) == len(shown.rows) == 17
    assert tried[deadly.shape] >= 2, "its first search ended its process"
    assert sum(times - 1 for times in tried.values()) <= 2, "only what was in progress is searched again"


def test_a_node_that_is_killed_loses_nothing(home: Path, store: Store, cluster: Any) -> None:
    [lost] = cluster.worker_nodes
    queue, shown = queue_of(store, tasks_of(30)), Shown()
    killer = in_the_middle(home, lambda: cluster.remove_node(lost, allow_graceful=False))
    run_on_ray(plan_of(home, 4), queue, "local", shown, scripted_search)
    killer.join(30)
    tried = Counter(begun(home))
    assert len(queue.results()) == queue.counts().done == 30
    assert sum(times - 1 for times in tried.values()) <= 3, "only what was in progress is searched again"


@pytest.mark.usefixtures("cluster")
def test_a_cluster_without_gpus_is_refused_in_one_line(home: Path, store: Store) -> None:
    with pytest.raises(UsageError, match="has no GPU"):
        run_on_ray(plan_of(home, 0), queue_of(store, tasks_of(1)), "local", Shown(), scripted_search)
