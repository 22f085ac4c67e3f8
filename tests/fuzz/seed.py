"""A seed of the fuzzer: real PTX and its launches as plain numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cudal2_agent.sandbox.emulator.lowering.program import Program
from cudal2_agent.sandbox.emulator.machine import Conditions, Grid, Machine, TensorMap, Triple


@dataclass(frozen=True)
class Pointer:
    """The address of a buffer by its number, plus an offset in bytes."""

    buffer: int
    offset: int = 0


@dataclass(frozen=True)
class MapOf:
    """A tensor map over a buffer."""

    place: Pointer
    tensor: TensorMap


Argument = Pointer | MapOf | bytes


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `noise`: (byte, value) written into the packed parameters."""

    entry: str
    grid: Triple
    block: Triple
    cluster: Triple
    dynamic_smem: int
    dependent: bool
    arguments: tuple[Argument, ...]
    noise: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Buffer:
    """Memory before the first launch. `written`: bytes that count as initialised."""

    data: bytes
    writable: bool
    written: int


@dataclass(frozen=True)
class Seed:
    """A module, memory, and launches one after another."""

    name: str
    ptx: str
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]


def launch(launched: Launch, program: Program, machine: Machine, addresses: list[int], conditions: Conditions) -> Any:
    """The core's result. Raises: ValueError if the core refuses the launch."""
    values = [_value(argument, machine, addresses) for argument in launched.arguments]
    parameters = bytearray(program.parameter_bytes)
    for (offset, size), value in zip(program.parameters, values, strict=False):
        parameters[offset : offset + size] = value[:size].ljust(size, b"\0")
    for at, value in launched.noise:
        if parameters:
            parameters[at % len(parameters)] = value
    grid = Grid(
        grid=launched.grid,
        block=launched.block,
        cluster=launched.cluster,
        dynamic_smem=launched.dynamic_smem,
        parameters=bytes(parameters),
        dependent=launched.dependent,
    )
    return machine.run(program, grid, conditions)


def memory_of(seed: Seed) -> tuple[Machine, list[int]]:
    """A machine with fresh copies of the buffers, and their addresses."""
    machine = Machine()
    addresses = [
        machine.add(f"b{i}", np.frombuffer(each.data, np.uint8).copy(), writable=each.writable, written_bytes=each.written)
        for i, each in enumerate(seed.buffers)
    ]
    return machine, addresses


def _value(argument: Argument, machine: Machine, addresses: list[int]) -> bytes:
    match argument:
        case Pointer(buffer=buffer, offset=offset):
            return ((addresses[buffer] + offset) % 2**64).to_bytes(8, "little")
        case MapOf(place=place, tensor=tensor):
            return machine.map(addresses[place.buffer] + place.offset, tensor)
        case bytes():
            return argument
