"""A strict reader of cubins (64-bit little-endian ELF), the module variables in them, and the rules over all but their code.

Covered: every offset, count and size is checked against the file before use. Sections that overlap, symbols outside their
section, and names without end are refused. The work is proportional to the size of the file.
Not covered: debug sections, and the copies in `.nv.merc.*` sections of sm_100, are listed and not read.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from cudal2_agent.contract.records.evaluation import Rejected

MAX_SECTIONS = 8192
MAX_SYMBOLS = 2**18
MAX_RELOCATIONS = 2**20
MAX_VARIABLE_BYTES = 2**26  # of all variables together
_MAX_PADDING = 256  # between variables; alignments are smaller

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_REL, _RELA = struct.Struct("<QQ"), struct.Struct("<QQq")
_IDENT = b"\x7fELF\x02\x01\x01"
_MACHINE_CUDA = 190
_EXECUTABLE = 2
_ABI = 7  # where the identification says which form of cubin it is
# By form: ELF's own version, and in the form of CUDA 12 for GPUs before sm_100 the toolkit's, such as 129 for 12.9.
_VERSIONS = {0x41: range(1, 2), 0x33: range(120, 130)}
_STRTAB, _SYMTAB, _TYPE_RELA, _NOBITS, _TYPE_REL = 3, 2, 4, 8, 9
_WRITE, _ALLOC = 1, 2
_OBJECT, _SECTION_SYMBOL = 1, 3
_SPECIAL_INDEX = 0xFF00  # indices from here name no section
_LINKAGE: dict[int, Literal["local", "global", "weak"]] = {0: "local", 1: "global", 2: "weak"}
_COPIES = ".nv.merc."  # describe the sections of the same names again, and share bytes with them
_GLOBAL = frozenset({".nv.global", ".nv.global.init"})
_CONSTANT = re.compile(r"\.nv\.constant(?:3|[5-9]|1\d)")
# Allocated sections that hold no variable: code, parameters, literals, tables of addresses, shared and local memory.
_OTHER = re.compile(r"\.(?:text|nv\.constant[02])\..+|\.nv\.constant4|\.nv\.(?:shared|local|merc)\..+")


class ElfError(Exception):
    """The bytes are not a cubin that this reader understands."""


@dataclass(frozen=True, slots=True)
class Section:
    """`size` bytes at `offset` of the file; none of them are in the file where `empty` (uninitialised memory)."""

    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    entry_bytes: int

    @property
    def empty(self) -> bool:
        return self.type == _NOBITS

    @property
    def allocated(self) -> bool:
        return bool(self.flags & _ALLOC)


@dataclass(frozen=True, slots=True)
class ElfSymbol:
    """`section`: the index of its section; 0 where it is undefined. `start`: from the start of the section."""

    name: str
    kind: int
    linkage: Literal["local", "global", "weak"]
    section: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """The loader puts the address of a symbol into `section` (an index) at `offset`."""

    section: int
    offset: int
    symbol: int


@dataclass(frozen=True, slots=True)
class ModuleVariable:
    """Memory of a module that lasts from launch to launch. `name`: as cuModuleGetGlobal takes it.

    `image`: its bytes when the module is loaded. `initialised`: the bytes are in the file; others start as zeros.
    `linkage`: NVRTC makes all variables local; the driver promises a look-up by name for the others.
    """

    name: str
    size_bytes: int
    image: bytes
    space: Literal["global", "constant"]
    linkage: Literal["local", "global", "weak"]
    initialised: bool


@dataclass(frozen=True)
class Cubin:
    """A cubin's tables. Indices are those of the file: section 0 and symbol 0 are empty."""

    data: bytes
    sections: tuple[Section, ...]
    symbols: tuple[ElfSymbol, ...]
    relocations: tuple[Relocation, ...]

    def content(self, section: Section) -> bytes:
        return b"" if section.empty else self.data[section.offset : section.offset + section.size]

    def unknown_sections(self) -> tuple[str, ...]:
        """Allocated sections with bytes whose purpose is unknown."""
        found = (each for each in self.sections if each.allocated and each.size)
        return tuple(each.name for each in found if space_of(each) is None and not _OTHER.fullmatch(each.name))

    def relocated(self) -> tuple[str, ...]:
        """Sections of variables into which the loader puts addresses; their images differ from what the device holds."""
        found = {self.sections[each.section] for each in self.relocations}
        return tuple(sorted(each.name for each in found if space_of(each)))

    def undefined(self) -> tuple[str, ...]:
        """Names of symbols that the cubin does not define."""
        return tuple(each.name for each in self.symbols if each.name and not each.section)


def module_variables(cubin: bytes) -> tuple[ModuleVariable, ...]:
    """Variables in global memory and in constant banks that code could write or read across launches. Raises: ElfError."""
    return variables_of(read(cubin))


def variables_of(cubin: Cubin) -> tuple[ModuleVariable, ...]:
    """As `module_variables`, from tables that were read already. Raises: ElfError."""
    found: list[ModuleVariable] = []
    inside: dict[int, list[ElfSymbol]] = {}
    for symbol in cubin.symbols:
        if symbol.kind != _SECTION_SYMBOL:
            inside.setdefault(symbol.section, []).append(symbol)
    left = MAX_VARIABLE_BYTES
    for index, section in enumerate(cubin.sections):
        space = space_of(section)
        if space is None or not section.size:
            continue
        left -= section.size
        if left < 0:
            raise ElfError(f"more than {MAX_VARIABLE_BYTES} bytes of module variables")
        found += _variables(cubin, section, space, sorted(inside.get(index, []), key=lambda each: each.start))
    if len({each.name for each in found}) != len(found):
        raise ElfError("two module variables of one name")
    return tuple(found)


def space_of(section: Section) -> Literal["global", "constant"] | None:
    """The memory that a section of variables is loaded into; None for other sections."""
    if not section.allocated:
        return None
    if section.name in _GLOBAL:
        return "global"
    return "constant" if _CONSTANT.fullmatch(section.name) else None


def _variables(
    cubin: Cubin, section: Section, space: Literal["global", "constant"], symbols: Sequence[ElfSymbol]
) -> Iterator[ModuleVariable]:
    """The variables of one section. They must fill it, except for padding."""
    content, end = cubin.content(section), 0
    for symbol in symbols:
        if symbol.start < end or symbol.kind != _OBJECT or not symbol.size:
            raise ElfError(f"symbol {symbol.name[:80]!r} of {section.name} overlaps another or is no variable")
        if symbol.start - end > _MAX_PADDING:
            raise ElfError(f"{section.name} has bytes that no symbol names")
        end = symbol.start + symbol.size
        image = bytes(symbol.size) if section.empty else content[symbol.start : end]
        yield ModuleVariable(symbol.name, symbol.size, image, space, symbol.linkage, not section.empty)
    if section.size - end > _MAX_PADDING:
        raise ElfError(f"{section.name} has bytes that no symbol names")


def read(cubin: bytes) -> Cubin:
    """The tables of a cubin. Raises: ElfError."""
    sections = _sections(cubin)
    symbols: tuple[ElfSymbol, ...] = ()
    tables = [each for each in sections if each.type == _SYMTAB]
    if len(tables) > 1:
        raise ElfError("more than one table of symbols")
    for table in tables:
        symbols = tuple(_symbols(cubin, table, sections))
    relocations = [
        one for each in sections if each.type in (_TYPE_REL, _TYPE_RELA) for one in _relocations(cubin, each, sections, symbols)
    ]
    return Cubin(cubin, sections, symbols, tuple(relocations))


def _sections(data: bytes) -> tuple[Section, ...]:
    if len(data) < _HEADER.size or not data.startswith(_IDENT):
        raise ElfError("not a 64-bit little-endian ELF file")
    ident, kind, machine, version, _, programs, start, _, _, program_bytes, program_count, each, count, names = (
        _HEADER.unpack_from(data)
    )
    if (kind, machine) != (_EXECUTABLE, _MACHINE_CUDA) or version not in _VERSIONS.get(ident[_ABI], ()):
        raise ElfError("not a linked CUDA code object")
    if each != _SECTION.size or not 0 < count <= MAX_SECTIONS or names >= count:
        raise ElfError(f"a table of {count} sections of {each} bytes")
    _inside(data, start, count * each, "the table of sections")
    _inside(data, programs, program_count * program_bytes, "the table of segments")
    rows = [_SECTION.unpack_from(data, start + index * each) for index in range(count)]
    heads = [(0, _HEADER.size), (start, count * each), (programs, program_count * program_bytes)]
    return _checked_sections(data, rows, names, heads)


def _checked_sections(
    data: bytes, rows: list[tuple[int, ...]], names: int, taken: list[tuple[int, int]]
) -> tuple[Section, ...]:
    """Sections of these rows. `taken`: (offset, bytes) of the tables around them."""
    texts = _table(data, rows[names], "names of sections")
    found = []
    for name, kind, flags, _address, offset, size, link, info, _alignment, entry_bytes in rows:
        section = Section(_name(texts, name), kind, flags, offset, size, link, info, entry_bytes)
        if kind not in (0, _NOBITS) and not section.name.startswith(_COPIES):
            _inside(data, offset, size, f"section {section.name[:80]!r}")
            taken.append((offset, size))
        found.append(section)
    ranges = sorted((start, start + size) for start, size in taken if size)
    if any(following < end for (_, end), (following, _) in pairwise(ranges)):
        raise ElfError("sections overlap")
    return tuple(found)


def _symbols(data: bytes, table: Section, sections: Sequence[Section]) -> Iterator[ElfSymbol]:
    count = _count(table, _SYMBOL.size, MAX_SYMBOLS)
    if table.link >= len(sections):
        raise ElfError("symbols whose names are nowhere")
    names = sections[table.link]
    texts = _table(data, (0, names.type, 0, 0, names.offset, names.size), "names of symbols")
    for index in range(count):
        name, info, _, section, start, size = _SYMBOL.unpack_from(data, table.offset + index * _SYMBOL.size)
        symbol = ElfSymbol(_name(texts, name), info & 15, _linkage(info >> 4), section, start, size)
        if section >= _SPECIAL_INDEX:
            raise ElfError(f"symbol {symbol.name[:80]!r} is in no section")
        if section >= len(sections) or (section and start + size > sections[section].size):
            raise ElfError(f"symbol {symbol.name[:80]!r} is outside its section")
        yield symbol


def _relocations(
    data: bytes, table: Section, sections: Sequence[Section], symbols: Sequence[ElfSymbol]
) -> Iterator[Relocation]:
    row = _RELA if table.type == _TYPE_RELA else _REL
    if not 0 < table.info < len(sections):
        raise ElfError(f"{table.name[:80]!r} relocates no section")
    for index in range(_count(table, row.size, MAX_RELOCATIONS)):
        offset, info = row.unpack_from(data, table.offset + index * row.size)[:2]
        if info >> 32 >= len(symbols) or offset >= sections[table.info].size:
            raise ElfError(f"a relocation of {table.name[:80]!r} outside its table or section")
        yield Relocation(table.info, offset, info >> 32)


def _count(table: Section, row_bytes: int, maximum: int) -> int:
    count, rest = divmod(table.size, row_bytes)
    if rest or table.entry_bytes not in (0, row_bytes) or count > maximum:
        raise ElfError(f"{table.name[:80]!r} has {table.size} bytes, in rows of {table.entry_bytes}")
    return count


def _linkage(value: int) -> Literal["local", "global", "weak"]:
    if value not in _LINKAGE:
        raise ElfError(f"a symbol of linkage {value}")
    return _LINKAGE[value]


def _table(data: bytes, row: Sequence[int], what: str) -> bytes:
    """The bytes of a table of names."""
    kind, offset, size = row[1], row[4], row[5]
    if kind != _STRTAB:
        raise ElfError(f"{what} are in a section of another type")
    _inside(data, offset, size, what)
    return data[offset : offset + size]


def _name(texts: bytes, start: int) -> str:
    end = texts.find(b"\0", start)
    if start >= len(texts) or end < 0:
        raise ElfError("a name outside its table")
    return texts[start:end].decode("utf-8", errors="backslashreplace")


def _inside(data: bytes, offset: int, size: int, what: str) -> None:
    if offset + size > len(data):
        raise ElfError(f"{what} reaches past the end of the file")


# Reserved words of shared memory, which the driver defines.
_OF_THE_DRIVER = re.compile(r"(?:\.nv\.reservedSmem\.|__nv_reservedSMEM_)\w+")
_ATTRIBUTE = struct.Struct("<BBH")
_WITH_DATA = 4  # format of an attribute whose value is the number of bytes that follow
# Attributes of .nv.info for calls of code that the cubin does not contain.
_OUTSIDE = {0x0F: "functions of the driver", 0x46: "system calls"}


def cubin_rules(cubin: Cubin) -> Iterator[Rejected]:
    """Rules on sections, symbols and attributes that no kernel's cubin has. Raises: ElfError."""
    for name in cubin.undefined():
        if not _OF_THE_DRIVER.fullmatch(name):
            yield Rejected(rule="device-call", message=f"{name[:80]}: device code may not print, allocate, assert or launch")
    for section in cubin.sections:
        for attribute in _attributes(cubin, section) if section.name.startswith(".nv.info") else ():
            if attribute in _OUTSIDE:
                yield Rejected(rule="device-call", message=f"the code calls {_OUTSIDE[attribute]}, which it may not")
    for name in cubin.unknown_sections():
        yield Rejected(rule="code-object", message=f"the compiled code has memory of an unknown kind: section {name[:80]!r}")
    for name in cubin.relocated():
        message = f"a variable in {name} holds an address; keep addresses in registers or shared memory"
        yield Rejected(rule="device-state", message=message)


def _attributes(cubin: Cubin, section: Section) -> Iterator[int]:
    """The numbers of the attributes that a section lists."""
    data, at = cubin.content(section), 0
    while at < len(data):
        if at + _ATTRIBUTE.size > len(data):
            raise ElfError(f"{section.name[:80]!r} ends within an attribute")
        kind, attribute, size = _ATTRIBUTE.unpack_from(data, at)
        yield attribute
        at += _ATTRIBUTE.size + (size if kind == _WITH_DATA else 0)
    if at > len(data):
        raise ElfError(f"{section.name[:80]!r} ends within an attribute")
