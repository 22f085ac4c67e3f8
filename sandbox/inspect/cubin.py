"""The rules over a cubin's sections, symbols and attributes, before its code is read."""

import re
import struct
from collections.abc import Iterator

from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.sandbox.inspect.elf import Cubin, ElfError, Section

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
