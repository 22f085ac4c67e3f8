"""The compiled core (core/module.cpp)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

operation_bytes: int
shared_base: int
tensor_map_magic: int
param_window: int
local_window: int

def handlers() -> list[str]: ...

class Program:
    @staticmethod
    def make(
        table: NDArray[np.uint8],
        lists: NDArray[np.uint32],
        constants: NDArray[np.uint8],
        register_bytes: int,
        specials: Sequence[tuple[int, int]],
        symbols: Sequence[tuple[int, int, int, bool]],
        static_smem_end: int,
        local_bytes: int,
        tracked_reads: Sequence[Sequence[int]],
        tracked_writes: Sequence[Sequence[int]],
    ) -> Program: ...

class Memory:
    def __init__(self) -> None: ...
    def add_buffer(
        self,
        name: str,
        base: int,
        array: NDArray[np.uint8],
        writable: bool,
        constant: bool = False,
        written_bytes: int = 0,
    ) -> None: ...
    def add_map(
        self,
        address: int,
        type: int,
        element_bytes: int,
        swizzle: int,
        sizes: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        nan_fill: bool = False,
    ) -> None: ...
    def settle(self) -> None: ...
    def ranges(self, name: str, launch: int) -> list[tuple[int, int]]: ...
    def renew(self, name: str, written_bytes: int) -> None: ...
    def tainted(self, name: str) -> list[tuple[int, int, int, int]]: ...

class Finding:
    kind: str
    message: str
    instruction: int
    other: int
    cta: tuple[int, int, int]
    warp: int
    lanes: int
    address: int
    suspect: bool
    count: int

class Outcome:
    findings: list[Finding]
    suspects: list[tuple[int, int, int]]
    instructions: int
    ctas: int
    stopped: bool
    waited: bool
    held: bool

def run(
    program: Program,
    memory: Memory,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    cluster: tuple[int, int, int],
    dynamic_smem: int,
    parameters: bytes,
    dependent: bool,
    schedule: int,
    seed: int,
    races: bool,
    poison: int,
    most_instructions: int,
    deadline_s: float,
    ctas: Sequence[int],
    poisoned: Sequence[tuple[int, int, int]],
    running: int = 0,
    running_after: int = 0,
    number: int = 1,
    sms: int = 132,
    warp_slots: int = 64,
    taint: bool = False,
) -> Outcome: ...
