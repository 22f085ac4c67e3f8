"""Connecting to a Ray cluster and starting its actors, with a scripted Ray; `test_ray.py` and others have a real one."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from cudal2_agent.agent.wiring.actors import open_cluster, start_actors
from cudal2_agent.contract.errors import MachineError, UsageError
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.processes.ray_actors import ActorPlan

PLAN = ActorPlan(dict, restarts=5, retries=-1)


class ScriptedRay:
    """What the driver asks of Ray. `calls`: what was called, in order."""

    def __init__(self, gpus: int = 0, hosts: tuple[str, ...] = ("a",), *, connected: bool = False, fails: bool = False) -> None:
        self._gpus, self._hosts, self._connected, self._fails = gpus, hosts, connected, fails
        self.calls: list[Any] = []

    def is_initialized(self) -> bool:
        return self._connected

    def init(self, address: str | None, **_: object) -> None:
        self.calls.append(("init", address))
        if self._fails:
            raise ConnectionError("nobody answers")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def nodes(self) -> list[dict[str, object]]:
        alive = [{"Alive": True, "NodeManagerAddress": host} for host in self._hosts]
        return [*alive, {"Alive": False, "NodeManagerAddress": "gone"}]

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": float(self._gpus)} if self._gpus else {}

    def remote(self, **options: object) -> Any:
        def of_class(kind: type) -> Any:
            return SimpleNamespace(remote=lambda *arguments: self.calls.append((kind, options, arguments)))

        return of_class


def scripted(monkeypatch: pytest.MonkeyPatch, **options: Any) -> ScriptedRay:
    made = ScriptedRay(**options)
    monkeypatch.setitem(sys.modules, "ray", made)  # type: ignore[arg-type]
    return made


def test_a_cluster_that_is_started_here_ends_here(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = scripted(monkeypatch)
    with pytest.raises(ConnectionError, match="of the work"), open_cluster("local"):
        raise ConnectionError("of the work")  # an error of what runs on the cluster stays what it is
    assert ray.calls == [("init", None), "shutdown"]


def test_a_cluster_that_the_program_is_connected_to_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = scripted(monkeypatch, connected=True)
    with open_cluster("ray://head"):
        pass
    assert ray.calls == []


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, fails=True)
    with pytest.raises(UsageError, match=r"^no Ray cluster at head:1 \(nobody answers\); name"), open_cluster("head:1"):
        pass
    monkeypatch.setitem(sys.modules, "ray", None)  # type: ignore[arg-type]
    with pytest.raises(MachineError, match=r"^Ray is not installed; pip install"), open_cluster("local"):
        pass


@pytest.mark.parametrize(
    ("gpus", "devices", "count", "device", "jobs"),
    [(4, (), 4, "cuda:0", 4), (0, ("emulator/0",) * 3, 3, "emulator", 4), (4, ("emulator/0",), 1, "emulator", 8)],
)
def test_an_actor_has_its_gpu_and_its_share_of_a_node(
    gpus: int, devices: tuple[str, ...], count: int, device: str, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, settings = scripted(monkeypatch, gpus=gpus, hosts=("a", "b")), Settings(compile_jobs=8)
    with open_cluster("local") as cluster:
        assert (cluster.nodes, cluster.hosts) == (2, 2)
        assert len(start_actors(cluster, PLAN, settings, devices, lambda share: (share.device, share.compile_jobs))) == count
    started = [call for call in ray.calls if call[0] is dict]
    options = {"num_gpus": 0 if devices else 1, "num_cpus": 1, "max_restarts": 5, "max_task_retries": -1}
    assert started == [(dict, options, (device, jobs))] * count


def test_a_cluster_without_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch)
    with open_cluster("local") as cluster, pytest.raises(UsageError, match="has no GPU"):
        start_actors(cluster, PLAN, Settings(), (), lambda share: (share,))
