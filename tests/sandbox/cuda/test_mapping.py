"""Mappings over a driver that keeps what it was asked: two ranges for sealed inputs, and a driver without read-only memory."""

import gc
from types import SimpleNamespace

import pytest

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")

from cudal2_agent.sandbox.cuda.driver import DriverFault
from cudal2_agent.sandbox.cuda.guard import mapping
from cudal2_agent.sandbox.cuda.guard.mapping import MARGIN_BYTES, Mapping

PAGE = 2 << 20
READ, WRITE = mapping._ACCESS.CU_MEM_ACCESS_FLAGS_PROT_READ, mapping._ACCESS.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


class Driver:
    """Ranges lie one after another. `refused`: the status that read-only access ends with. `ranges`: how many there are."""

    def __init__(self, refused=None, ranges=2):
        self.access, self.freed, self._refused, self._next, self._ranges = {}, [], refused, 1 << 41, ranges

    def call(self, function, *arguments):
        match function.__name__:
            case "cuMemGetAllocationGranularity":
                return PAGE
            case "cuMemAddressReserve":
                if not self._ranges:
                    raise DriverFault("cuMemAddressReserve", "CUDA_ERROR_OUT_OF_MEMORY", "no room")
                self._ranges -= 1
                self._next += 1 << 40
                return self._next
            case "cuMemSetAccess":
                pointer, _, (access,), _ = arguments
                if access.flags == READ and self._refused:
                    raise DriverFault("cuMemSetAccess", self._refused, "no")
                self.access[pointer] = access.flags
            case "cuMemRelease" | "cuMemAddressFree" | "cuCtxSynchronize":
                self.freed.append(function.__name__)
        return SimpleNamespace()


@pytest.fixture
def made(monkeypatch):
    def make(refused=None, **options):
        driver = Driver(refused)
        monkeypatch.setattr(mapping, "call", driver.call)
        monkeypatch.setattr(mapping, "_location", lambda _: mapping.driver.CUmemLocation())
        return driver, Mapping(1000, 0, "A", **options)

    return make


def test_a_sealed_mapping_has_a_range_to_read_and_one_to_write(made):
    driver, mapping = made(sealed=True)
    assert mapping.read_only
    assert mapping.size_bytes == PAGE
    assert list(driver.access.values()) == [READ, WRITE]
    assert next(iter(driver.access)) == mapping.pointer
    mapping.close()
    mapping.close()
    assert driver.freed == ["cuMemAddressFree", "cuMemAddressFree", "cuMemRelease"]


def test_an_open_mapping_has_one_range(made):
    driver, mapping = made()
    assert not mapping.read_only
    assert driver.access == {mapping.pointer: WRITE}


@pytest.mark.parametrize("status", sorted(mapping.NOT_SUPPORTED))
def test_without_read_only_memory_both_ranges_are_written_and_the_mapping_says_so(made, status):
    driver, mapping = made(status, sealed=True)
    assert not mapping.read_only
    assert list(driver.access.values()) == [WRITE, WRITE]


@pytest.mark.parametrize("ranges", [0, 1])
def test_a_mapping_that_cannot_be_made_leaves_nothing_behind(monkeypatch, ranges):
    driver = Driver(ranges=ranges)
    monkeypatch.setattr(mapping, "call", driver.call)
    monkeypatch.setattr(mapping, "_location", lambda _: mapping.driver.CUmemLocation())
    with pytest.raises(DriverFault, match="no room"):
        Mapping(1000, 0, "A", sealed=True)
    gc.collect()
    assert driver.freed == ["cuMemAddressFree"] * ranges + ["cuMemRelease"]


def test_memory_of_the_pool_is_unmapped_after_all_work_on_it(monkeypatch):
    """Work that was queued before an array was dropped may still use its memory when the pool gives it back."""
    driver = Driver()
    monkeypatch.setattr(mapping, "call", driver.call)
    monkeypatch.setattr(mapping, "_location", lambda _: mapping.driver.CUmemLocation())
    allocator = mapping.Allocator(0)
    allocator._free(allocator._allocate(1000, 0), 0)
    assert driver.freed == ["cuCtxSynchronize", "cuMemAddressFree", "cuMemRelease"]
    allocator._free(12345, 0)
    assert len(driver.freed) == 3, "memory of another allocator is left alone"


def test_statuses_are_names_that_the_driver_has():
    assert {getattr(mapping.driver.CUresult, status).name for status in mapping.NOT_SUPPORTED} == mapping.NOT_SUPPORTED


def test_another_failure_of_the_driver_is_not_hidden(made):
    with pytest.raises(DriverFault, match="CUDA_ERROR_ILLEGAL_STATE"):
        made("CUDA_ERROR_ILLEGAL_STATE", sealed=True)


@pytest.mark.parametrize("window", [0, 1])
@pytest.mark.parametrize(
    ("offset", "told"),
    [
        (-4096, "4096 byte(s) before A"),
        (12, "byte 12 of A"),
        (PAGE + 64, "64 byte(s) past the end of A"),
        (PAGE + MARGIN_BYTES, None),
    ],
)
def test_an_address_is_told_relative_to_either_range(made, window, offset, told):
    driver, mapping = made(sealed=True)
    assert mapping.describe(list(driver.access)[window] + offset) == told
