"""The emulated machine as Python sees it: memory with operands in it, tensor maps over them, and launches of programs."""

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cudal2_agent.sandbox.emulator import addressing
from cudal2_agent.sandbox.emulator.addressing import ADDRESS_SPAN, GRANULE_BYTES, LOWEST_ADDRESS
from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.lowering.program import Program

MAX_GRANULES_BETWEEN = 64  # of buffers that were added and not placed yet, which lie on 2 MiB
TENSOR_MAP_BYTES = 128

Interleaving = core.Interleaving
Triple = tuple[int, int, int]
SuspectRead = tuple[int, int, int]  # linear CTA, warp, moment


@dataclass(frozen=True)
class Conditions:
    """How a grid is run. `races`: whether accesses are checked for order; `poison`: the byte that unwritten memory holds.

    `taint`: whether old contents are followed to their uses; only with `races`.

    `most_instructions`: of all warps together, 0 for no limit. `deadline_s`: wall-clock, 0 for none.
    """

    interleaving: Interleaving = Interleaving.LATEST
    seed: int = 0
    races: bool = True
    taint: bool = False
    poison: int = 0xFF
    most_instructions: int = 0
    deadline_s: float = 0.0


@dataclass(frozen=True)
class Order:
    """A launch's number in its plan, from 1 on, and the launches that may still run before and after its wait.

    `running`, `running_after`: a bit for each launch by its number; bit 0 stands for the kernels that precede the plan.
    """

    number: int = 1
    running: int = 0
    running_after: int = 0


@dataclass(frozen=True)
class Grid:
    """A launch in plain numbers. `parameters`: the packed kernel parameters. `dependent`: preceding kernels may still run.

    `order`: the same of a plan's launches. `sms`, `warp_slots`: of the chip, and of one of its SMs.
    """

    grid: Triple
    block: Triple
    cluster: Triple = (1, 1, 1)
    dynamic_smem: int = 0
    parameters: bytes = b""
    dependent: bool = False
    order: Order = Order()
    sms: int = 132
    warp_slots: int = 64


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map. `sizes`, `box`: elements, innermost first; `strides`: bytes, from the second dimension on.

    `type`: as PTX names it ("f16", "bf16", "u32"); `swizzle`: 0, 32, 64 or 128 bytes.
    """

    type: str
    sizes: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    swizzle: int = 0
    nan_fill: bool = False


@dataclass
class Machine:
    """Global memory with buffers in it. Arrays are used in place: what a kernel writes is written into them.

    `seed`: of the buffers' addresses; drawn if it is None.
    """

    seed: int | None = None
    memory: core.Memory = field(default_factory=core.Memory)
    addresses: dict[str, int] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _maps: int = 0
    _constants: set[int] = field(default_factory=set)
    _random: random.Random = field(init=False)
    _end: int = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._end = LOWEST_ADDRESS + self._random.randrange(ADDRESS_SPAN // GRANULE_BYTES) * GRANULE_BYTES

    def add(
        self, name: str, array: np.ndarray, *, writable: bool = False, written_bytes: int | None = None, piece_bytes: int = 2
    ) -> int:
        """Put an array into memory and return its address. `written_bytes`: how much of it counts as initialised.

        `piece_bytes`: of the smallest part whose writers are told apart, 1 or 2.
        """
        data = array.reshape(-1).view(np.uint8)
        address = self._end
        known = array.nbytes if written_bytes is None else written_bytes
        self.memory.add_buffer(name, address, data, writable=writable, written_bytes=known, piece_bytes=piece_bytes)
        granules = -(-array.nbytes // GRANULE_BYTES) + self._random.randint(1, MAX_GRANULES_BETWEEN)
        self._end += granules * GRANULE_BYTES
        self.addresses[name], self._sizes[name] = address, array.nbytes
        return address

    def place(self, seed: int) -> None:
        """Give every buffer an address drawn by the seed (`addressing.py`).

        Tensor maps follow their buffers; parameters must be packed anew.
        """
        self.addresses = addressing.addresses(self._sizes, seed)
        self.memory.move(list(self.addresses.items()))

    def map(self, address: int, tensor: TensorMap) -> bytes:
        """The 128 bytes of a tensor map over memory at an address, to be passed as a parameter."""
        element_bytes = ELEMENT_BYTES[tensor.type]
        self.memory.add_map(
            address=address,
            type=core.TensorType[tensor.type.upper()],
            element_bytes=element_bytes,
            swizzle=tensor.swizzle,
            sizes=list(tensor.sizes),
            strides=[element_bytes, *tensor.strides],
            box=list(tensor.box),
            nan_fill=tensor.nan_fill,
        )
        self._maps += 1
        return struct.pack("<QQ", core.tensor_map_magic, self._maps - 1).ljust(TENSOR_MAP_BYTES, b"\0")

    def run(
        self,
        program: Program,
        grid: Grid,
        conditions: Conditions,
        *,
        ctas: Sequence[int] = (),
        poisoned: Sequence[SuspectRead] = (),
        traced: int = 0,
    ) -> core.RunReport:
        """Run one grid, or the clusters of the given CTAs of it. Returns the core's report.

        `traced`: the maximum of rows of a trace, with which the run ends; it then leaves out products. 0: no trace.
        """
        for constant in program.constants:
            if constant.address not in self._constants:
                data = np.frombuffer(constant.data, dtype=np.uint8).copy()
                self.memory.add_buffer(constant.name, constant.address, data, writable=False, constant=True)
                self._constants.add(constant.address)
        self.memory.settle()
        return core.run(
            program.core,
            self.memory,
            grid=grid.grid,
            block=grid.block,
            cluster=grid.cluster,
            dynamic_smem=grid.dynamic_smem,
            parameters=grid.parameters,
            dependent=grid.dependent,
            running=grid.order.running,
            running_after=grid.order.running_after,
            number=grid.order.number,
            sms=grid.sms,
            warp_slots=grid.warp_slots,
            interleaving=conditions.interleaving,
            seed=conditions.seed,
            races=conditions.races,
            poison=conditions.poison,
            most_instructions=conditions.most_instructions,
            deadline_s=conditions.deadline_s,
            ctas=list(ctas),
            poisoned=list(poisoned),
            taint=conditions.taint,
            traced=traced,
        )


ELEMENT_BYTES = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f64": 8, "bf16": 2}


def pack_parameters(program: Program, values: Sequence[bytes]) -> bytes:
    """Kernel parameters at the offsets that the program declares. Raises: ValueError where sizes differ."""
    declared = [size for _, size in program.parameters]
    if declared != [len(value) for value in values]:
        raise ValueError(f"{program.entry} takes parameters of {declared} bytes, not {[len(value) for value in values]}")
    packed = bytearray(program.parameter_bytes)
    for (offset, size), value in zip(program.parameters, values, strict=True):
        packed[offset : offset + size] = value
    return bytes(packed)
