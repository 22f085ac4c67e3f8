"""An entry is built for fewer rows only where it can be written for them, and only once the emulator finds it right."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.library import padded_m
from cudal2_agent.agent.library.entry_source import candidate_of, source_sha256
from cudal2_agent.agent.library.padded_m import prepare_padded, task_of_shape
from cudal2_agent.agent.library.preparing import PreparedEntry, library_cache, prepare
from cudal2_agent.contract.errors import DeviceUnavailable, UsageError
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import AnyCandidate, ScheduleValue
from cudal2_agent.contract.records.evaluation import Evaluation, TestResult, Unmeasured, Wrong
from cudal2_agent.contract.records.library import LibraryEntry, PaddedKernel
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.contract.settings.settings import Settings, load_settings
from cudal2_agent.policies.schedule.families.registry import written
from tests.doubles import INSPECTION, unmeasured
from tests.doubles.building import compile_in_this_process, leave_machine_code_unread
from tests.doubles.libraries import library_entry

SMS = 132
TASK = GemmTask(m=16, n=32, k=64)
FEWER = TASK.model_copy(update={"m": 13})
SOURCE = """/* cudal2: {"arch": "sm_90a", "launches": [{"entry": "gemm", "grid": [1, 1, 1], "block": [32, 1, 1],
 "args": [{"tensor": "D", "access": "write"}]}]} */
extern "C" __global__ void gemm(void*) {}
"""
needs_core = pytest.mark.skipif(
    find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core is not built here"
)


class FakeEmulator:
    """A sandbox that builds a few bytes and answers what it is given."""

    def __init__(self, cubin: Path, answer: Evaluation) -> None:
        self.cubin, self.answer, self.asked = cubin, answer, list[str]()

    def build(self, candidates: Sequence[AnyCandidate], _: GemmTask) -> Iterator[tuple[int, Built]]:
        self.cubin.write_bytes(b"a kernel")
        for position, candidate in enumerate(candidates):
            built = Built(candidate=candidate, inspection=INSPECTION, artifact_path=str(self.cubin), cached=True, seconds=0.0)
            yield position, built

    def evaluate(self, _: Built, task: GemmTask, __: str) -> Evaluation:
        self.asked.append(task.shape)
        return self.answer


def wrong() -> Wrong:
    test = TestResult(tier="exact", name="zero-one", passed=False, message="D differs at row 12")
    return Wrong(test=test, tests=(test,), inspection=INSPECTION)


def not_run() -> Unmeasured:
    return unmeasured(9.0).model_copy(update={"verified_by": "nothing", "reason": "it does not know an instruction"})


def by_emulator() -> Unmeasured:
    return unmeasured(9.0).model_copy(update={"verified_by": "emulator"})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home", compile_jobs=1)


def padded(
    entry: LibraryEntry, settings: Settings, answer: Evaluation, task: GemmTask = FEWER, sms: int = SMS
) -> PreparedEntry:
    emulator: Any = FakeEmulator(settings.home / "kernel.cubin", answer)
    settings.home.mkdir(exist_ok=True)
    return prepare_padded(entry, task, settings, sms, lambda *_: nullcontext(emulator))


def files(settings: Settings) -> list[str]:
    return [path.name for path in library_cache(settings).glob("*.*")]


def test_a_kernel_that_was_found_right_is_kept_for_its_m(settings: Settings) -> None:
    entry = library_entry(TASK)
    found = padded(entry, settings, by_emulator())
    assert (found.status, found.shape, found.id) == ("built", FEWER.shape, entry.id)
    assert found.message == "verified by the emulator"
    kernels = PreparedKernels(library_cache(settings))
    kernel = kernels.find(entry, SMS, FEWER)
    assert kernel is not None
    assert kernel.cubin == b"a kernel"
    assert kernels.find(entry, SMS) is None, "the entry's own kernel was not built"
    record = PaddedKernel.model_validate_json(kernels.plan_path(entry, SMS, FEWER).read_bytes())
    assert (record.task, record.entry_task, record.source_sha256) == (FEWER, TASK, entry.source_sha256)
    assert record.text_sha256 == source_sha256(written(entry.schedule or {}, FEWER)) != entry.source_sha256
    assert record.verdict == "verified by the emulator"
    assert padded(entry, settings, wrong()).status == "ready", "it is not built again"


@pytest.mark.parametrize(("answer", "why"), [(wrong(), "D differs at row 12"), (not_run(), "does not know an instruction")])
def test_a_kernel_that_was_not_found_right_is_not_kept(settings: Settings, answer: Evaluation, why: str) -> None:
    found = padded(library_entry(TASK), settings, answer)
    assert found.status == "failed"
    assert found.message.startswith("the emulator did not find it right for 13x32x64: ")
    assert why in found.message
    assert files(settings) == []


def test_a_stale_entry_has_no_padded_m(settings: Settings) -> None:
    found = padded(library_entry(TASK, source_sha256="0" * 64), settings, by_emulator())
    assert (found.status, "is stale" in found.message, files(settings)) == ("failed", True, [])


def test_a_source_has_no_padded_m(settings: Settings) -> None:
    found = padded(library_entry(TASK, source=SOURCE), settings, by_emulator())
    assert (found.status, files(settings)) == ("failed", [])
    assert "cannot be written for 13x32x64: it is a source" in found.message


def test_a_schedule_that_does_not_fit_is_one_line(settings: Settings) -> None:
    """With A transposed, its rows of M elements are loaded 16 bytes at a time."""
    task = TASK.model_copy(update={"layout": Layout.NT})
    found = padded(library_entry(task), settings, by_emulator(), task.model_copy(update={"m": 13}))
    assert (found.status, files(settings)) == ("failed", [])
    assert "cannot be written for 13x32x64: " in found.message
    assert "\n" not in found.message


def wgmma_entry(task: GemmTask, **axes: ScheduleValue) -> LibraryEntry:
    schedule: dict[str, ScheduleValue] = {"family": "wgmma_tma", "atoms": 1, "block_k": 64, **axes}
    hash_ = source_sha256(written(schedule, task))
    return library_entry(TASK).model_copy(update={"task": task, "schedule": schedule, "source_sha256": hash_})


def test_a_launch_that_the_emulator_does_not_run_is_not_proven(settings: Settings) -> None:
    """A persistent kernel has a CTA per SM."""
    large = GemmTask(m=4096, n=4096, k=64)
    entry = wgmma_entry(large, block_n=128, consumers=2, stages=4, persistent=True)
    task = entry.task.model_copy(update={"m": 4000})
    found = padded(entry, settings, by_emulator(), task, sms=100)
    assert (found.status, files(settings)) == ("failed", [])
    assert found.message == "the emulator proves its launch for 132 SMs, and for 100 it is another one"
    assert padded(entry, settings, by_emulator(), task).status == "built"
    assert padded(library_entry(TASK), settings, by_emulator(), sms=100).status == "built", "its launch is the same everywhere"


def test_without_an_emulator_nothing_is_kept(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> AbstractContextManager[Any]:
        raise DeviceUnavailable("the emulator was not built")

    monkeypatch.setattr(padded_m, "open_sandbox_of", missing)
    with pytest.raises(DeviceUnavailable, match="the emulator was not built"):
        prepare_padded(library_entry(TASK), FEWER, settings, SMS)
    assert files(settings) == []


@pytest.mark.parametrize("shape", ["17x32x64", "13x48x64", "13x32x128"])
def test_another_product_is_refused(shape: str) -> None:
    with pytest.raises(UsageError, match=f"is of 16x32x64: --shape {shape} must have its N and K, and no larger M"):
        task_of_shape(library_entry(TASK), shape)


def test_a_smaller_m_and_its_own_are_taken() -> None:
    assert [task_of_shape(library_entry(TASK), shape).m for shape in ("13x32x64", "16x32x64")] == [13, 16]


@needs_core
def test_the_emulator_proves_what_the_compiler_makes(
    settings: Settings, kept_builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_in_this_process(monkeypatch, kept_builds)
    leave_machine_code_unread(monkeypatch)
    entry = library_entry(TASK)
    found = prepare_padded(entry, FEWER, settings, SMS)
    assert (found.status, found.message) == ("built", "verified by the emulator")
    kernels = PreparedKernels(library_cache(settings))
    kernel = kernels.find(entry, SMS, FEWER)
    assert kernel is not None
    assert kernel.cubin.startswith(b"\x7fELF")
    list(prepare([entry], settings, SMS))
    own = kernels.find(entry, SMS)
    assert own is not None
    assert own.cubin != kernel.cubin, "this family compiles M in"
    assert candidate_of(entry).source != written(entry.schedule or {}, FEWER).source


@needs_core
def test_the_emulator_proves_a_tensor_map_of_fewer_rows(
    settings: Settings, kept_builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of this family has no M in it: tensor maps and the grid have."""
    compile_in_this_process(monkeypatch, kept_builds)
    leave_machine_code_unread(monkeypatch)
    task = GemmTask(m=128, n=128, k=128)
    entry = wgmma_entry(task, block_n=64, consumers=1, stages=2)
    assert prepare_padded(entry, task.model_copy(update={"m": 100}), settings, SMS).message == "verified by the emulator"
