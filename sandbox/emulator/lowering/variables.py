"""Where a kernel's variables lie: parameters, shared and local memory, and the constants of its module."""

from collections.abc import Sequence
from dataclasses import dataclass

from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.ptx.module import Function, Module, Unsupported, Variable

MAX_BYTES = {"param": 1 << 15, "shared": 227 << 10, "local": 512 << 10, "const": 1 << 26}  # of a kernel; local: of a thread
CONSTANT_BASE = 0x2000_0000_0000  # where constant variables of a module lie, as addresses


@dataclass(frozen=True)
class Constant:
    """A constant variable of the module, at an address of its own. Shape: data (bytes,)."""

    name: str
    address: int
    data: bytes


def parameters_of(function: Function) -> tuple[tuple[tuple[int, int], ...], int]:
    places, end = [], 0
    for each in function.parameters:
        end = _aligned(end, each.alignment)
        places.append((end, each.size_bytes))
        end += each.size_bytes
        refuse_past(MAX_BYTES["param"], "param", end)
    return tuple(places), end


def shared_of(function: Function, module: Module) -> tuple[dict[str, int], int]:
    """Offsets of variables in shared memory, and where dynamic shared memory begins."""
    variables = [each for each in (*function.variables, *module.variables.values()) if each.space == "shared"]
    fixed = [each for each in variables if each.size_bytes]
    open_ended = [each for each in variables if not each.size_bytes]
    offsets, end = laid_out(fixed, start=core.shared_base)
    end = _aligned(end, max((each.alignment for each in open_ended), default=16))
    return {**offsets, **{each.name: end for each in open_ended}}, end


def constants_of(module: Module) -> tuple[Constant, ...]:
    constants, address = [], CONSTANT_BASE
    for each in module.variables.values():
        if each.space not in ("const", "global"):
            continue
        address = _aligned(address, max(each.alignment, 256))
        refuse_past(MAX_BYTES["const"], each.space, address - CONSTANT_BASE + each.size_bytes)
        data = each.initial if each.initial is not None else bytes(each.size_bytes)
        constants.append(Constant(each.name, address, data))
        address += max(each.size_bytes, 1)
    return tuple(constants)


def laid_out(variables: Sequence[Variable], start: int = 0) -> tuple[dict[str, int], int]:
    offsets, end = {}, start
    for each in variables:
        end = _aligned(end, each.alignment)
        offsets[each.name] = end
        end += each.size_bytes
    return offsets, end


def refuse_past(limit: int, space: str, size: int) -> None:
    """Raises: Unsupported where variables take more memory than a GPU, or the emulator, has for them."""
    if size > limit:
        raise Unsupported(f"{size} bytes of .{space} variables", 0)


def _aligned(value: int, alignment: int) -> int:
    return -(-value // max(alignment, 1)) * max(alignment, 1)
