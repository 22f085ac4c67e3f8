"""Entries are verified and timed anew, and a check that is begun again goes on."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.library.entry_sample import family_of, sample_of, time_class
from cudal2_agent.agent.library.library_check import (
    EMULATOR,
    check_entries,
    check_side_by_side,
    read_rows,
    share_slower,
    waiting_entries,
)
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate
from cudal2_agent.contract.records.evaluation import Evaluation, Measured, TestResult, Timing, Wrong
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import GemmTask
from tests.doubles import ENVIRONMENT, INSPECTION, PASSED, measured, unmeasured
from tests.doubles.libraries import library_entry, small_tasks

TASKS = small_tasks()


class ScriptedDevice:
    """A sandbox that builds everything and answers by shape."""

    can_execute = True
    environment = ENVIRONMENT

    def __init__(self, answers: dict[str, Evaluation], *, gpu: bool) -> None:
        self.can_measure, self.answers, self.asked = gpu, answers, list[str]()

    def build(self, candidates: Sequence[AnyCandidate], _: GemmTask) -> Iterator[tuple[int, Built]]:
        for position, candidate in enumerate(candidates):
            yield position, Built(candidate=candidate, inspection=INSPECTION, artifact_path="", cached=True, seconds=0.0)

    def race(self, _: Sequence[Built], task: GemmTask) -> list[Evaluation]:
        assert self.can_measure
        self.asked.append(task.shape)
        return [self.answers[task.shape]]

    def evaluate(self, _: Built, task: GemmTask, __: str) -> Evaluation:
        assert not self.can_measure
        self.asked.append(task.shape)
        return self.answers[task.shape]


def raced(programmatic_us: float, plain_us: float) -> Measured:
    plain = Timing(name="plain", samples_us=(plain_us,) * 5)
    return measured(programmatic_us, 10.0, effort="race").model_copy(update={"plain": plain})


def wrong() -> Wrong:
    test = TestResult(tier="exact", name="zero-one", passed=False, message="D differs")
    return Wrong(test=test, tests=(test,), inspection=INSPECTION)


def check(entries: list[LibraryEntry], device: Any, rows: Path) -> list[Any]:
    return list(check_entries(entries, device, rows))


def test_a_gpu_times_an_entry_as_it_is_launched(tmp_path: Path) -> None:
    plain, programmatic = library_entry(TASKS[0]), library_entry(TASKS[1], programmatic=True)
    answers: dict[str, Evaluation] = {task.shape: raced(5.0, 8.0) for task in TASKS}
    first, second = check([plain, programmatic], ScriptedDevice(answers, gpu=True), tmp_path / "rows.jsonl")
    assert (first.status, first.time_us, first.speedup.ratio) == ("passed", 8.0, 1.25)
    assert (second.time_us, second.speedup.ratio) == (5.0, 2.0)
    assert first.device == ENVIRONMENT.key
    assert first.recorded == plain.evaluation.speedup
    assert share_slower([first, second]) == (0, 2)


def test_a_slower_and_a_wrong_entry_are_told(tmp_path: Path) -> None:
    answers: dict[str, Evaluation] = {TASKS[0].shape: raced(5.0, 12.5), TASKS[1].shape: wrong()}
    entries = [library_entry(task) for task in TASKS[:2]]
    slow, bad = check(entries, ScriptedDevice(answers, gpu=True), tmp_path / "rows.jsonl")
    assert (slow.slower, slow.failed) == (True, False)
    assert (bad.status, bad.speedup) == ("failed", None)
    assert "D differs" in bad.verdict
    assert share_slower([slow, bad]) == (1, 1)


def test_the_emulator_times_nothing(tmp_path: Path) -> None:
    in_part = (PASSED, TestResult(tier="emulator", name="full-size", passed=True, message="4 of 64 clusters run"))
    answers: dict[str, Evaluation] = {
        TASKS[0].shape: unmeasured(1.0, "emulator"),
        TASKS[1].shape: unmeasured(1.0, "emulator").model_copy(update={"tests": in_part}),
        TASKS[2].shape: unmeasured(1.0).model_copy(update={"reason": "opcode vadd is not supported"}),
    }
    found = check([library_entry(task) for task in TASKS], ScriptedDevice(answers, gpu=False), tmp_path / "rows.jsonl")
    assert [row.status for row in found] == ["passed", "in-part", "not-run"]
    assert {row.device for row in found} == {EMULATOR}
    assert all(row.time_us is None and row.speedup is None for row in found)
    assert share_slower(found) == (0, 0)


def test_a_stale_entry_fails_without_the_device(tmp_path: Path) -> None:
    device = ScriptedDevice({}, gpu=True)
    [row] = check([library_entry(TASKS[0], source_sha256="0" * 64)], device, tmp_path / "rows.jsonl")
    assert (row.status, device.asked) == ("failed", [])
    assert "is stale" in row.verdict


def test_a_check_goes_on_where_a_killed_one_ended(tmp_path: Path) -> None:
    answers: dict[str, Evaluation] = {task.shape: raced(5.0, 8.0) for task in TASKS}
    entries, rows = [library_entry(task) for task in TASKS], tmp_path / "rows.jsonl"
    device = ScriptedDevice(answers, gpu=True)
    begun = check_entries(entries, device, rows)  # type: ignore[arg-type]
    next(begun)
    next(begun)
    whole = rows.read_text()
    rows.write_text(whole[:-20])  # the second row was not written whole
    again = ScriptedDevice(answers, gpu=True)
    assert [row.shape for row in check(entries, again, rows)] == [task.shape for task in TASKS]
    assert again.asked == [task.shape for task in TASKS[1:]]
    assert len(read_rows(rows)) == 3
    emulator = ScriptedDevice({task.shape: unmeasured(1.0, "emulator") for task in TASKS}, gpu=False)
    check(entries, emulator, rows)
    assert len(emulator.asked) == 3, "rows of another device do not count"


def test_a_file_of_something_else_is_not_written_to(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"m": 1}\n')
    with pytest.raises(UsageError, match=r"line 1 is not a row of `library check`"):
        check([library_entry(TASKS[0])], ScriptedDevice({}, gpu=True), rows)
    assert rows.read_text() == '{"m": 1}\n'
    (tmp_path / "file").touch()
    answers: dict[str, Evaluation] = {TASKS[0].shape: raced(5.0, 8.0)}
    with pytest.raises(UsageError, match=r"--rows"):
        check([library_entry(TASKS[0])], ScriptedDevice(answers, gpu=True), tmp_path / "file" / "rows.jsonl")


def test_a_sample_is_spread_and_drawn_by_its_seed() -> None:
    quick = [library_entry(task) for task in small_tasks(12)]
    slow = [
        entry.model_copy(update={"evaluation": entry.evaluation.model_copy(update={"baselines_us": {}, "time_us": 100.0})})
        for entry in (library_entry(GemmTask(m=32, n=16 * number, k=64)) for number in range(1, 4))
    ]
    entries = [*quick, *slow]
    chosen = sample_of(entries, 6, seed=0)
    assert [time_class(entry) for entry in chosen].count(3) == 3
    assert {family_of(entry) for entry in chosen} == {"latency"}
    assert sample_of(entries[::-1], 6, seed=0) == chosen
    assert sample_of(entries, 6, seed=1) != chosen
    assert len({entry.id for entry in sample_of(entries, 99, seed=0)}) == len(entries)


# ---- the test of waits alone ------------------------------------------------------------------------------------------------
class WaitsDevice(ScriptedDevice):
    """Verifies without timing, and is opened in a thread."""

    def verify(self, _: Built, task: GemmTask) -> Evaluation:
        self.asked.append(task.shape)
        return self.answers[task.shape]

    def __enter__(self) -> "WaitsDevice":
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


def side_by_side(entries: list[LibraryEntry], devices: dict[str, WaitsDevice], rows: Path) -> list[Any]:
    return list(check_side_by_side(entries, list(devices), devices.__getitem__, rows, "waits"))  # type: ignore[arg-type]


def verified(gpu: bool = False) -> WaitsDevice:
    return WaitsDevice({task.shape: unmeasured(1.0, "gpu" if gpu else "emulator") for task in TASKS}, gpu=gpu)


def test_the_waits_of_entries_are_checked_side_by_side_and_resumed(tmp_path: Path) -> None:
    entries, rows = [library_entry(task, programmatic=True) for task in TASKS], tmp_path / "rows.jsonl"
    check(entries[:1], ScriptedDevice({TASKS[0].shape: unmeasured(1.0, "emulator")}, gpu=False), rows)
    devices = {"emulator/0": verified(), "emulator/1": verified()}
    found = side_by_side(entries, devices, rows)
    assert {row.shape for row in found} == {task.shape for task in TASKS}
    assert {(row.tier, row.status, row.time_us) for row in found} == {("waits", "passed", None)}
    asked = [shape for device in devices.values() for shape in device.asked]
    assert sorted(asked) == sorted(task.shape for task in TASKS), "a row of all tiers does not count"
    assert all(device.closed for device in devices.values())
    again = {"emulator/0": verified()}
    assert len(side_by_side(entries, again, rows)) == len(TASKS)
    assert again["emulator/0"].asked == []
    on_gpu = {"cuda:0": verified(gpu=True)}
    assert {row.device for row in side_by_side(entries, on_gpu, rows)} == {ENVIRONMENT.key}
    assert len(on_gpu["cuda:0"].asked) == len(TASKS)


def test_what_ends_one_device_ends_the_check(tmp_path: Path) -> None:
    entries = [library_entry(task, programmatic=True) for task in TASKS]
    broken = verified()
    broken.verify = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        side_by_side(entries, {"emulator/0": broken}, tmp_path / "rows.jsonl")


def test_entries_without_a_programmatic_launch_wait_for_nothing() -> None:
    programmatic, stale = library_entry(TASKS[0], programmatic=True), library_entry(TASKS[1], source_sha256="0" * 64)
    source = "// cudal2: " + '{"arch": "sm_90a", "launches": [{"entry": "k", "grid": [1, 1, 1], "block": [32, 1, 1]}]}\n'
    plain = library_entry(TASKS[2], schedule=None, source=source, source_sha256=hashlib.sha256(source.encode()).hexdigest())
    assert waiting_entries([programmatic, stale, plain]) == [programmatic, stale]
