"""What a process may use of its machine, by its affinity and by its control groups."""

import os
from pathlib import Path

import pytest

from cudal2_agent.contract import file_system, host_limits
from cudal2_agent.contract.host_limits import memory_limit, processes_left, usable_processors
from cudal2_agent.contract.settings.settings import load_settings

V2 = "30 23 0:26 / {root} rw,nosuid - cgroup2 cgroup rw,nsdelegate"
V1 = "32 31 0:29 {inside} {root}/cpu rw - cgroup cgroup rw,cpu,cpuacct"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a machine of 16 processors with control groups: what the process is in, the mount, and files with their content."""

    def groups(own: str, mount: str, **files: str) -> None:
        root = tmp_path / "cgroup"
        (tmp_path / "own").write_text(f"{own}\n")
        (tmp_path / "mounts").write_text(mount.format(root=root, inside="/docker/1") + "\n")
        for name, content in files.items():
            place = root / name.replace("__", "/").replace("DOT", ".")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"{content}\n")
        monkeypatch.setattr(host_limits, "GROUPS", tmp_path / "own")
        monkeypatch.setattr(file_system, "MOUNTS", tmp_path / "mounts")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    return groups


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 16), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("x", 16)]
)
def test_a_quota_of_version_2(groups, quota: str, expected: int) -> None:
    groups("0::/", V2, cpuDOTmax=quota)
    assert usable_processors() == expected


def test_the_smallest_quota_of_the_groups_above_holds(groups) -> None:
    groups("0::/slice/pod", V2, slice__pod__cpuDOTmax="800000 100000", slice__cpuDOTmax="400000 100000")
    assert usable_processors() == 4


@pytest.mark.parametrize(("quota", "expected"), [("-1", 16), ("300000", 3)])
@pytest.mark.parametrize("own", ["4:cpu,cpuacct:/docker/1", "4:cpu,cpuacct:/"])
def test_a_quota_of_version_1_seen_from_inside(groups, own: str, quota: str, expected: int) -> None:
    groups(own, V1, cpu__cpuDOTcfs_quota_us=quota, cpu__cpuDOTcfs_period_us="100000")
    assert usable_processors() == expected


def test_processors_that_it_may_not_run_on_do_not_count(groups, monkeypatch: pytest.MonkeyPatch) -> None:
    groups("0::/", V2, cpuDOTmax="800000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert usable_processors() == 2


def test_without_control_groups_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_limits, "GROUPS", Path("/no/such/file"))
    assert usable_processors() == len(os.sched_getaffinity(0))


def test_limits_of_memory_and_processes_of_version_2(groups) -> None:
    files = {"pod__memoryDOTmax": "1073741824", "memoryDOTmax": "max", "pod__pidsDOTmax": "40", "pod__pidsDOTcurrent": "7"}
    groups("0::/pod", V2, **files)
    assert (memory_limit(), processes_left(), usable_processors()) == (1 << 30, 33, 16)


@pytest.mark.parametrize(("limit", "expected"), [("9223372036854771712", None), ("157286400", 150 << 20)])
def test_a_limit_of_memory_of_version_1(groups, limit: str, expected: int | None) -> None:
    groups("4:memory:/docker/1", V1.replace("cpu,cpuacct", "memory"), cpu__memoryDOTlimit_in_bytes=limit)
    assert memory_limit() == expected


@pytest.mark.parametrize(("limit", "jobs"), [("max", 16), (str(64 << 30), 16), (str(2 << 30), 4), (str(150 << 20), 1)])
def test_compilers_have_room_in_the_memory(
    groups, limit: str, jobs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups("0::/", V2, memoryDOTmax=limit)
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path))
    assert load_settings().compile_jobs == load_settings().index_jobs == jobs


def test_no_limits(groups) -> None:
    groups("0::/", V2, memoryDOTmax="max", pidsDOTmax="max", pidsDOTcurrent="3")
    assert memory_limit() is processes_left() is None
