"""`library ranges` over a scripted GPU: what is asked, what is written, and what a later call repeats."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cudal2.dispatch.decision import GpuIdentity
from cudal2.library.kernel_library import EntryRange, open_library
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.library.preparing import PreparedEntry
from cudal2_agent.agent.model_tuning.tune_records import JudgedRange
from cudal2_agent.contract.errors import DeviceUnavailable
from cudal2_agent.contract.records.library import LibraryEntry, MRange
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.settings import Settings
from tests.doubles.libraries import ENVIRONMENT, library_entry, range_point, stored_algorithm, write_entries

IDENTITY = GpuIdentity(gpu="H200", driver="580.1", arch=Arch.SM_90A, sms=132, nvrtc="13.0")
SMALL, LARGE = (GemmTask(m=m, n=16, k=64) for m in (8, 32))
OTHER, SLOW = GemmTask(m=16, n=32, k=64), GemmTask(m=16, n=48, k=64)


class ScriptedGpu:
    asked: list[str]

    def __enter__(self) -> "ScriptedGpu":
        return self

    def __exit__(self, *_: object) -> None: ...

    def identity(self) -> tuple[GpuIdentity, str]:
        return IDENTITY, ENVIRONMENT

    def ranged(self, asked: Sequence[EntryRange], cache: Path) -> Iterator[JudgedRange]:
        assert cache.name == "library"
        for entry, one in asked:
            self.asked.append(f"{one.smallest}-{entry.task.m - 1}x{entry.task.n}")
            points = tuple(range_point(m, 1.2) for m in (entry.task.m - 1, one.smallest + 1))
            yield JudgedRange(
                entry=entry.id,
                floor=one.smallest,
                chip="H200",
                environment=ENVIRONMENT,
                m_range=one.model_copy(update={"smallest": one.smallest + 1, "points": points}),
                measured_at=datetime.now(UTC),
            )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[ScriptedGpu]:
    def prepare_range(entry: LibraryEntry, one: MRange, settings: Settings, sms: int) -> PreparedEntry:  # noqa: ARG001
        return PreparedEntry(id=entry.id, shape="", layout="nn", status="built")

    ScriptedGpu.asked = []
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cudal2_agent.agent.model_tuning.range_building.prepare_range", prepare_range)
    monkeypatch.setattr("cudal2_agent.agent.model_tuning.gpu_stages.GpuStages", ScriptedGpu)
    return ScriptedGpu


def test_ranges_are_measured_between_the_m_of_a_weight_and_written_beside_the_entries(
    gpu: type[ScriptedGpu], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The algorithm for 12 rows of the weight ends the range of the larger entry; an entry that does not win has none."""
    entries = [library_entry(one) for one in (SMALL, LARGE, OTHER)] + [library_entry(SLOW, 0.9)]
    algorithm = stored_algorithm(LARGE.model_copy(update={"m": 12}))
    write_entries(tmp_path / "held", entries, [algorithm])
    words = ["library", "ranges", "--library", "held", "--out", "ranged.jsonl.gz"]
    assert main(words) == 0
    told = capsys.readouterr().out.splitlines()
    assert sorted(gpu.asked) == ["1-15x32", "1-7x16", "13-31x16"]
    assert told[0] == "3 entries on H200 have smaller M; 3 are measured now, rows in library-ranges.jsonl"
    assert f"{LARGE.shape} nn: M from 14 on, 1.200 to 1.200 of torch.mm" in told
    assert told[-1] == "3 entries serve smaller M, too, in ranged.jsonl.gz"
    held = open_library(tmp_path / "ranged.jsonl.gz")
    assert {one.task for one in held} == {SMALL, LARGE, OTHER, SLOW}
    assert [one.id for one in held.algorithms()] == [algorithm.id]
    assert sorted(one.smallest for one in held.manifest.ranges) == [2, 2, 14]
    gpu.asked.clear()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"library": "ranged.jsonl.gz", "ranges": 3, "left": 0}
    assert gpu.asked == []


def test_what_the_time_did_not_suffice_for_is_left_to_a_later_call(
    gpu: type[ScriptedGpu], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_entries(tmp_path / "held", [library_entry(OTHER)])
    words = ["library", "ranges", "--library", "held", "--out", "ranged", "--json"]
    assert main([*words, "--minutes", "0"]) == 0
    assert json.loads(capsys.readouterr().out) == {"library": "ranged", "ranges": 0, "left": 1}
    assert main(words) == 0
    assert gpu.asked == ["1-15x32"]


def test_entries_of_another_driver_have_no_range(
    gpu: type[ScriptedGpu], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = library_entry(OTHER)
    elsewhere = entry.evaluation.model_copy(update={"environment": ENVIRONMENT.replace("580.1", "580.2")})
    write_entries(tmp_path / "held", [entry.model_copy(update={"evaluation": elsewhere})])
    assert main(["library", "ranges", "--library", "held", "--out", "ranged"]) == 0
    assert capsys.readouterr().out.startswith("0 entries on H200 have smaller M")
    assert gpu.asked == []


def test_without_a_gpu_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_: object) -> None:
        raise DeviceUnavailable("the GPU cannot be used: there is none")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cudal2_agent.agent.model_tuning.gpu_stages.GpuStages.identity", missing)
    write_entries(tmp_path / "held", [library_entry(OTHER)])
    code = main(["library", "ranges", "--library", "held", "--out", "ranged"])
    assert code not in (0, None)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "ranged").exists()
