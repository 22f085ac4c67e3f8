"""The cache of built kernels: what is there, what is not, and what is damaged."""

from pathlib import Path

import pytest

from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.records.library import LibraryEntry, PaddedKernel
from tests.doubles.libraries import library_entry, prepared, small_tasks

TASK, OTHER = small_tasks(2)
SMS, CUBIN = 132, b"\x7fELF kernel"


def put(kernels: PreparedKernels, entry: LibraryEntry) -> None:
    kernels.folder.mkdir(parents=True, exist_ok=True)
    kernels.cubin_path(entry).write_bytes(CUBIN)
    kernels.plan_path(entry, SMS).write_text(prepared(entry, CUBIN, SMS).model_dump_json())


@pytest.fixture
def kernels(tmp_path: Path) -> PreparedKernels:
    return PreparedKernels(tmp_path / "cache" / "library")


@pytest.mark.parametrize("programmatic", [False, True])
def test_a_kernel_is_launched_as_its_entry_was_measured(kernels: PreparedKernels, programmatic: bool) -> None:
    entry = library_entry(TASK, programmatic=programmatic)
    assert kernels.find(entry, SMS) is None
    put(kernels, entry)
    found = kernels.find(entry, SMS)
    assert found is not None
    assert found.cubin == CUBIN
    assert [launch.programmatic for launch in found.plan.launches] == [programmatic]
    assert found.plan.sms == SMS


def test_another_task_or_number_of_sms_needs_a_plan_of_its_own(kernels: PreparedKernels) -> None:
    entry = library_entry(TASK)
    put(kernels, entry)
    assert kernels.find(entry, SMS - 1) is None
    assert kernels.find(library_entry(OTHER, source_sha256=entry.source_sha256), SMS) is None


def test_a_lent_kernel_has_files_of_its_own(kernels: PreparedKernels) -> None:
    """The texts of two M may be equal or not; a kernel of the entry's own M is never taken for the padded one."""
    entry, fewer = library_entry(TASK), TASK.model_copy(update={"m": 13})
    put(kernels, entry)
    assert kernels.find(entry, SMS, fewer) is None
    own = prepared(entry, b"\x7fELF padded", SMS).model_dump()
    record = PaddedKernel(**own | {"task": fewer}, entry_task=TASK, text_sha256="1" * 64, verdict="right")
    kernels.cubin_path(entry, fewer).write_bytes(b"\x7fELF padded")
    kernels.plan_path(entry, SMS, fewer).write_text(record.model_dump_json())
    found, its_own = kernels.find(entry, SMS, fewer), kernels.find(entry, SMS, TASK)
    assert found is not None
    assert its_own is not None
    assert (found.cubin, its_own.cubin) == (b"\x7fELF padded", CUBIN)
    for wrong in ({"task": TASK}, {"entry_task": fewer}, {"source_sha256": "0" * 64}):
        kernels.plan_path(entry, SMS, fewer).write_text(record.model_copy(update=wrong).model_dump_json())
        with pytest.raises(LibraryError, match="the plan of another entry"):
            kernels.find(entry, SMS, fewer)


@pytest.mark.parametrize("compiler", ["nvrtc 13.2 (13.2.86)", "nvrtc 13.01", "nvcc 13.0"])
def test_a_kernel_of_another_compiler_than_was_measured_is_refused(kernels: PreparedKernels, compiler: str) -> None:
    entry = library_entry(TASK)
    put(kernels, entry)
    plan = kernels.plan_path(entry, SMS)
    record = prepared(entry, CUBIN, SMS)
    plan.write_text(record.model_copy(update={"compiler": "nvrtc 13.0 (13.0.88)"}).model_dump_json())
    assert kernels.find(entry, SMS) is not None
    plan.write_text(record.model_copy(update={"compiler": compiler}).model_dump_json())
    with pytest.raises(LibraryError, match=r"its entry measured with NVRTC 13\.0"):
        kernels.find(entry, SMS)


def test_damaged_files_are_refused(kernels: PreparedKernels) -> None:
    entry = library_entry(TASK)
    put(kernels, entry)
    kernels.cubin_path(entry).write_bytes(CUBIN[:-1])
    with pytest.raises(LibraryError, match=r"\.cubin is damaged"):
        kernels.find(entry, SMS)
    put(kernels, entry)
    kernels.plan_path(entry, SMS).write_text("{")
    with pytest.raises(LibraryError, match=r"-132\.json is missing or damaged"):
        kernels.find(entry, SMS)
    kernels.cubin_path(entry).unlink()
    kernels.plan_path(entry, SMS).unlink()
    assert kernels.find(entry, SMS) is None
