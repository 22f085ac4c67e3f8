"""The reader of cubins: variables of real ones, and truncated, inconsistent or overlapping files."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.options import CompileOptions
from cudal2_agent.sandbox.building.compiler import Compiled, Compiler
from cudal2_agent.sandbox.inspect.elf import MAX_SECTIONS, ElfError, ModuleVariable, cubin_rules, module_variables, read
from tests.sandbox.building.build_kernels import body, candidate

BEFORE = """__device__ const int table[3] = {1, 2, 3};
__device__ const int zeros[4] = {};
__constant__ short kept[2] = {7, 8};
__device__ int counter;
"""
SOURCE = body("d[0] = table[n % 3] + zeros[n & 3] + kept[n & 1] + atomicAdd(&counter, 1);", BEFORE)
SECTION_TABLE, SECTION_COUNT, NAMES, SECTION_BYTES = 0x28, 0x3C, 0x3E, 64
NAME, TYPE, OFFSET, SIZE, LINK = 0, 4, 24, 32, 40  # in a row of the table of sections


@pytest.fixture(scope="module", params=[Arch.SM_80, Arch.SM_90A, Arch.SM_100A])
def cubin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    compiler = Compiler(CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache"))))
    compiled = compiler.compile(candidate(SOURCE), request.param)
    assert isinstance(compiled, Compiled), compiled
    return Path(compiled.cubin_path).read_bytes()


def changed(cubin: bytes, at: int, form: str, value: int) -> bytes:
    data = bytearray(cubin)
    struct.pack_into("<" + form, data, at, value)
    return bytes(data)


def row(cubin: bytes, name: str) -> int:
    """The offset of a section's row."""
    index = [each.name for each in read(cubin).sections].index(name)
    return int(struct.unpack_from("<Q", cubin, SECTION_TABLE)[0]) + index * SECTION_BYTES


def test_variables_are_listed_with_their_images(cubin: bytes) -> None:
    found = {each.name: each for each in module_variables(cubin)}
    assert found["table"] == ModuleVariable("table", 12, struct.pack("<3i", 1, 2, 3), "global", "local", True)
    assert found["zeros"] == ModuleVariable("zeros", 16, bytes(16), "global", "local", False)
    assert found["kept"] == ModuleVariable("kept", 4, struct.pack("<2h", 7, 8), "constant", "local", True)
    assert (found["counter"].initialised, found["counter"].image, found["counter"].linkage) == (False, bytes(4), "local")
    assert len(found) == 4


def test_an_ordinary_cubin_breaks_no_rule(cubin: bytes) -> None:
    assert list(cubin_rules(read(cubin))) == []


def as_of_cuda_12(cubin: bytes, toolkit: int) -> bytes:
    """With the header that CUDA 12 gives cubins before sm_100."""
    return changed(changed(cubin, 7, "B", 0x33), 20, "I", toolkit)


@pytest.mark.parametrize("toolkit", [120, 128, 129])
def test_the_form_of_cuda_12_is_read(cubin: bytes, toolkit: int) -> None:
    assert read(as_of_cuda_12(cubin, toolkit)).sections == read(cubin).sections


@pytest.mark.parametrize("toolkit", [1, 119, 130])
def test_a_form_with_the_version_of_another_is_refused(cubin: bytes, toolkit: int) -> None:
    with pytest.raises(ElfError, match="linked"):
        read(as_of_cuda_12(cubin, toolkit))


def test_every_cut_is_noticed_or_harmless(cubin: bytes) -> None:
    """A truncated file lacks its tables, which are at the end."""
    for size in range(0, len(cubin) - 1, 97):
        with pytest.raises(ElfError):
            module_variables(cubin[:size])


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (4, "B", 1),  # 32 bits
        (5, "B", 2),  # big-endian
        (16, "H", 1),  # not linked
        (18, "H", 62),  # of another machine
        (SECTION_TABLE, "Q", 2**63),
        (SECTION_COUNT, "H", 0),
        (SECTION_COUNT, "H", MAX_SECTIONS + 1),
        (SECTION_COUNT, "H", 0xFFFF),
        (0x3A, "H", 1),  # rows of one byte
        (NAMES, "H", 0xFFFE),
        (0x38, "H", 0xFFFF),  # segments
        (0x20, "Q", 2**64 - 1),
    ],
)
def test_a_header_that_lies_is_refused(cubin: bytes, at: int, form: str, value: int) -> None:
    with pytest.raises(ElfError):
        module_variables(changed(cubin, at, form, value))


@pytest.mark.parametrize(
    ("section", "field", "form", "value"),
    [
        (".symtab", SIZE, "Q", 2**62),
        (".symtab", SIZE, "Q", 25),
        (".symtab", LINK, "I", 2**31),
        (".symtab", OFFSET, "Q", 2**64 - 8),
        (".strtab", SIZE, "Q", 1),
        (".strtab", TYPE, "I", 1),
        (".shstrtab", SIZE, "Q", 3),
        (".nv.global.init", SIZE, "Q", 1),
        (".nv.global.init", OFFSET, "Q", 64),  # over another section
        (".nv.global", SIZE, "Q", 2**40),
        (".nv.global", SIZE, "Q", 4096),  # bytes without a name
        (".nv.constant3", SIZE, "Q", 2**33),
        (".nv.global.init", NAME, "I", 2**31),
    ],
)
def test_a_section_that_lies_is_refused(cubin: bytes, section: str, field: int, form: str, value: int) -> None:
    with pytest.raises(ElfError):
        module_variables(changed(cubin, row(cubin, section) + field, form, value))


def test_symbols_that_overlap_are_refused(cubin: bytes) -> None:
    tables = read(cubin)
    start = next(each.offset for each in tables.sections if each.name == ".symtab")
    places = {each.name: start + 24 * index for index, each in enumerate(tables.symbols)}
    with pytest.raises(ElfError, match=r"overlaps|outside"):
        module_variables(changed(cubin, places["counter"] + 16, "Q", 8))
    with pytest.raises(ElfError, match="outside"):
        module_variables(changed(cubin, places["table"] + 8, "Q", 2**63))
    with pytest.raises(ElfError, match="no section"):
        module_variables(changed(cubin, places["table"] + 6, "H", 0xFFF2))


def test_memory_of_an_unknown_kind_is_refused(cubin: bytes) -> None:
    """`.nv.constant3` renamed by one letter of the table of names."""
    renamed = cubin.replace(b"\0.nv.constant3\0", b"\0.nv.constanx3\0")
    found = next(cubin_rules(read(renamed)))
    assert isinstance(found, Rejected)
    assert (found.rule, ".nv.constanx3" in found.message) == ("code-object", True)


def test_calls_of_system_functions_show_in_the_attributes(cubin: bytes) -> None:
    tables = read(cubin)
    section = next(each for each in tables.sections if each.name.startswith(".nv.info."))
    found = next(cubin_rules(read(changed(cubin, section.offset + 1, "B", 0x46))))
    assert found.rule == "device-call"
    with pytest.raises(ElfError, match="attribute"):
        list(cubin_rules(read(changed(cubin, section.offset, "I", 0xFFFF0004))))


@given(st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_changed_bytes_never_raise_anything_else(cubin: bytes, data: st.DataObject) -> None:
    hostile = bytearray(cubin)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(hostile) - 8))
        hostile[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    try:
        found = read(bytes(hostile))
        list(cubin_rules(found))
        module_variables(bytes(hostile))
    except ElfError:
        return
    assert found.sections
