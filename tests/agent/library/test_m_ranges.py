"""A kernel for a range of M is written where M is an argument, and kept once the emulator finds it right at both ends."""

from contextlib import nullcontext
from typing import Any

import pytest

from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.library.entry_source import source_sha256
from cudal2_agent.agent.library.m_ranges import prepare_range, range_candidate
from cudal2_agent.agent.library.preparing import PreparedEntry, library_cache
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.evaluation import Evaluation
from cudal2_agent.contract.records.library import LibraryEntry, MRange, RangeKernel
from cudal2_agent.contract.records.task import GemmTask, Layout
from cudal2_agent.contract.settings.settings import Settings
from tests.agent.library.test_padded_m import (
    SMS,
    SOURCE,
    FakeEmulator,
    by_emulator,
    files,
    needs_core,
    not_run,
    settings,
    wgmma_entry,
    wrong,
)
from tests.doubles.building import compile_in_this_process, leave_machine_code_unread
from tests.doubles.libraries import library_entry, m_range

__all__ = ["settings"]  # a fixture
TASK = GemmTask(m=16, n=32, k=64, layout=Layout.TN)


def of(entry: LibraryEntry, smallest: int, **changes: Any) -> MRange:
    """A range of today's text."""
    return m_range(entry, smallest, **{"source_sha256": source_sha256(range_candidate(entry, smallest, SMS)), **changes})


def built(entry: LibraryEntry, one: MRange, settings: Settings, *answers: Evaluation) -> tuple[PreparedEntry, list[str]]:
    emulator: Any = FakeEmulator(settings.home / "kernel.cubin", by_emulator())
    given = iter(answers)
    emulator.evaluate = lambda _, task, __: emulator.asked.append(task.shape) or next(given, by_emulator())
    settings.home.mkdir(exist_ok=True)
    return prepare_range(entry, one, settings, SMS, lambda *_: nullcontext(emulator)), emulator.asked


@pytest.mark.parametrize("smallest", [1, 4, 15])
@pytest.mark.parametrize("entry", [library_entry(TASK), wgmma_entry(TASK, block_n=64, consumers=1, stages=2)])
def test_one_text_is_launched_for_every_m(entry: LibraryEntry, smallest: int) -> None:
    candidate = range_candidate(entry, smallest, SMS)
    for m in range(smallest, TASK.m):
        task = TASK.model_copy(update={"m": m})
        launches = resolve(candidate.plan, task, LIMITS[task.arch], SMS).launches
        assert launches


@pytest.mark.parametrize(
    ("entry", "smallest", "why"),
    [
        (library_entry(TASK.model_copy(update={"layout": Layout.NT})), 8, "the rows of its A are M elements"),
        (library_entry(TASK, source=SOURCE), 8, "it is a source, whose sizes may be constants"),
        (library_entry(TASK), 16, "has no M from 16 on below its own"),
        (library_entry(TASK), 0, "has no M from 0 on below its own"),
        (library_entry(TASK, source_sha256="0" * 64), 8, "is stale"),
    ],
)
def test_what_cannot_take_m_as_it_comes_is_one_line(entry: LibraryEntry, smallest: int, why: str) -> None:
    with pytest.raises(LibraryError, match=why):
        range_candidate(entry, smallest, SMS)


def test_a_kernel_is_kept_once_both_ends_were_found_right(settings: Settings) -> None:
    entry = library_entry(TASK)
    one = of(entry, 5)
    found, asked = built(entry, one, settings)
    assert (found.status, found.shape, asked) == ("built", "5-15x32x64", ["5x32x64", "15x32x64"])
    kernels = PreparedKernels(library_cache(settings))
    ranged = kernels.find_range(entry, one, SMS)
    assert ranged is not None
    at = ranged.at(TASK.model_copy(update={"m": 9}), SMS)
    assert (at.cubin, at.shared, at.plan.launches[0].programmatic) == (b"a kernel", True, entry.programmatic)
    record = RangeKernel.model_validate_json(kernels.range_paths(entry, SMS)[1].read_bytes())
    assert (record.smallest, sorted(record.verdicts), record.text_sha256) == (5, [5, 15], one.source_sha256)
    assert kernels.find(entry, SMS) is None, "the entry's own kernel was not built"
    assert built(entry, one, settings, wrong())[0].status == "ready"
    assert built(entry, of(entry, 7), settings, wrong())[0].status == "ready", "a shorter range is in it"
    assert built(entry, of(entry, 4), settings)[0].status == "built", "a longer one is not"


@pytest.mark.parametrize("answers", [(wrong(),), (by_emulator(), wrong()), (by_emulator(), not_run())])
def test_a_kernel_that_is_wrong_at_an_end_is_not_kept(settings: Settings, answers: tuple[Evaluation, ...]) -> None:
    entry = library_entry(TASK)
    found, _ = built(entry, of(entry, 5), settings, *answers)
    assert (found.status, files(settings)) == ("failed", [])
    assert found.message.startswith(f"the emulator did not find it right for {'5' if len(answers) == 1 else '15'}x32x64: ")


def test_another_text_than_the_measured_one_is_not_built(settings: Settings) -> None:
    entry = library_entry(TASK)
    found, asked = built(entry, of(entry, 5, source_sha256="0" * 64), settings)
    assert (found.status, asked, files(settings)) == ("failed", [], [])
    assert "is stale" in found.message


def test_a_launch_that_the_emulator_does_not_run_is_not_proven(settings: Settings) -> None:
    large = GemmTask(m=4096, n=4096, k=64)
    entry = wgmma_entry(large, block_n=128, consumers=2, stages=4, persistent=True)
    emulator: Any = FakeEmulator(settings.home / "kernel.cubin", by_emulator())
    settings.home.mkdir(exist_ok=True)
    one = m_range(entry, 4000, source_sha256=source_sha256(range_candidate(entry, 4000, 100)))
    found = prepare_range(entry, one, settings, 100, lambda *_: nullcontext(emulator))
    assert (found.status, emulator.asked) == ("failed", [])
    assert found.message == "the emulator proves its launch for 132 SMs, and for 100 it is another one"


@needs_core
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("family", ["latency", "wgmma_tma"])
def test_the_emulator_proves_what_the_compiler_makes(
    settings: Settings, kept_builds: Any, monkeypatch: pytest.MonkeyPatch, family: str, bias: bool
) -> None:
    compile_in_this_process(monkeypatch, kept_builds)
    leave_machine_code_unread(monkeypatch)
    task = TASK.model_copy(update={"bias": bias})
    entry = library_entry(task) if family == "latency" else wgmma_entry(task, block_n=64, consumers=1, stages=2)
    found = prepare_range(entry, of(entry, 3), settings, SMS)
    assert (found.status, found.message) == ("built", "verified by the emulator")
