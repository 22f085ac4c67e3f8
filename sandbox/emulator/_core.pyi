"""The compiled core (core/module.cpp), as `python -m nanobind.stubgen -m sandbox.emulator._core` writes it."""

import enum
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

class Kind(enum.IntEnum):
    """How the interpreter goes on after an operation."""

    PLAIN = 0

    BRANCH = 1

    BRANCH_INDEXED = 2

    EXIT = 3

    WAITING = 4

    POLL = 5

class Flag(enum.IntFlag):
    """
    COLLECTIVE: lanes execute it together. TRACKED: it touches registers that a wgmma uses.
    """

    NEGATED = 1

    COLLECTIVE = 2

    TRACKED = 4

class Interleaving(enum.IntEnum):
    """
    When asynchronous work completes and which warp has its turn: as early as allowed, as late as allowed, or drawn from a seed.
    """

    EAGER = 0

    LATEST = 1

    RANDOM = 2

class Space(enum.IntEnum):
    """State spaces."""

    GENERIC = 0

    GLOBAL = 1

    SHARED = 2

    PARAM = 3

    LOCAL = 4

    CONST = 5

class Semantics(enum.IntEnum):
    """Memory order of an access."""

    WEAK = 0

    RELAXED = 1

    ACQUIRE = 2

    RELEASE = 3

    ACQ_REL = 4

class Scope(enum.IntEnum):
    """The threads among which a memory order holds."""

    CTA = 0

    CLUSTER = 1

    DEVICE = 2

class BarrierReduction(enum.IntEnum):
    """Reductions of bar.red."""

    NONE = 0

    AND = 1

    OR = 2

    POPC = 3

class TensorType(enum.IntEnum):
    """Element types of tensor maps and bulk reductions."""

    U8 = 0

    U16 = 1

    U32 = 2

    S32 = 3

    U64 = 4

    S64 = 5

    F16 = 6

    F32 = 7

    F64 = 8

    BF16 = 9

class Reduction(enum.IntEnum):
    """Reductions of bulk copies. STORE: a plain copy."""

    STORE = 0

    ADD = 1

    MIN = 2

    MAX = 3

    INC = 4

    DEC = 5

    AND = 6

    OR = 7

    XOR = 8

class Fragment(enum.IntEnum):
    """Layouts of the blocks of wmma fragments."""

    A = 0

    B = 1

    SQUARE = 2

    TALL = 3

    FLAT = 4

class WgmmaForm(enum.IntFlag):
    """What a wgmma multiplies."""

    BF16 = 1

    F16_SUMS = 2

    NEGATIVE_A = 4

    NEGATIVE_B = 8

    COLUMNS_OF_A = 16

    ROWS_OF_B = 32

    REGISTERS_OF_A = 64

    TF32 = 128

    BYTES = 256

class ByteForm(enum.IntFlag):
    """How 8-bit integers are multiplied."""

    SIGNED_A = 1

    SIGNED_B = 2

    SATURATED = 4

class Rounding(enum.IntEnum):
    """Rounding modes. AWAY: ties away from zero, only of cvt."""

    NEAREST = 0

    DOWN = 1

    UP = 2

    ZERO = 3

    AWAY = 4

class Modifier(enum.IntFlag):
    """
    What happens to a result besides rounding: .ftz, .sat, .relu, .satfinite.
    """

    FTZ = 1

    SAT = 2

    RELU = 4

    SATFINITE = 8

class Permutation(enum.IntEnum):
    """Modes of prmt."""

    F4E = 0

    B4E = 1

    RC8 = 2

    ECL = 3

    ECR = 4

    RC16 = 5

class Role(enum.Enum):
    """
    What an operand is: a register, a memory operand, a part of the list, a constant.
    """

    SLOT = 0

    ADDRESS = 1

    LIST = 2

    NUMBER = 3

class Operand:
    @property
    def name(self) -> str: ...
    @property
    def role(self) -> Role: ...
    @property
    def field(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def optional(self) -> bool: ...
    @property
    def width(self) -> str: ...
    @property
    def offset(self) -> str: ...
    @property
    def minimum(self) -> int: ...
    @property
    def maximum(self) -> int: ...
    @property
    def shift(self) -> int: ...
    @property
    def type(self) -> str: ...

class Handler:
    @property
    def name(self) -> str: ...
    @property
    def operands(self) -> list[Operand]: ...

def handlers() -> list[Handler]: ...

operation_fields: list[tuple[str, str, int]]

operation_bytes: int

predicate_bytes: int

special_registers: list[str]

detectors: list[str]

unsupported: str

deadline: str

lanes: int

shared_base: int

rank_shift: int

tensor_map_magic: int

param_window: int

local_window: int

running_others: int

max_suspects: int

class Program:
    @staticmethod
    def make(
        table: NDArray[numpy.uint8],
        lists: NDArray[numpy.uint32],
        constants: NDArray[numpy.uint8],
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
        array: NDArray[numpy.uint8],
        writable: bool,
        constant: bool = False,
        written_bytes: int = 0,
        piece_bytes: int = 2,
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
    def move(self, bases: Sequence[tuple[str, int]]) -> None: ...
    def settle(self) -> None: ...
    def ranges(self, name: str, launch: int) -> list[tuple[int, int]]: ...
    def tainted(self, name: str) -> list[tuple[int, int, int, int]]: ...
    def renew(self, name: str, written_bytes: int) -> None: ...

class BarrierKind(enum.IntEnum):
    """What a warp waits at."""

    NONE = 0

    MBARRIER = 1

    NAMED = 2

    CLUSTER = 3

class AwaitedBarrier:
    @property
    def kind(self) -> BarrierKind: ...
    @property
    def address(self) -> int: ...
    @property
    def phase(self) -> int: ...
    @property
    def expected(self) -> int: ...
    @property
    def missing(self) -> int: ...
    @property
    def missing_bytes(self) -> int: ...
    @property
    def announced(self) -> int: ...
    @property
    def initialised(self) -> int: ...
    @property
    def arrived(self) -> int: ...
    @property
    def announcing(self) -> int: ...
    @property
    def alike(self) -> int: ...
    @property
    def delivering(self) -> int: ...

class WaitingWarp:
    @property
    def barrier(self) -> AwaitedBarrier: ...
    @property
    def cta(self) -> tuple[int, int, int]: ...
    @property
    def warp(self) -> int: ...
    @property
    def instruction(self) -> int: ...

class Finding:
    @property
    def kind(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def instruction(self) -> int: ...
    @property
    def other(self) -> int: ...
    @property
    def cta(self) -> tuple[int, int, int]: ...
    @property
    def warp(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def suspect(self) -> bool: ...
    @property
    def count(self) -> int: ...
    @property
    def waiting(self) -> list[WaitingWarp]: ...
    @property
    def more_waiting(self) -> int: ...

class RunReport:
    @property
    def findings(self) -> list[Finding]: ...
    @property
    def suspects(self) -> list[tuple[int, int, int]]: ...
    @property
    def instructions(self) -> int: ...
    @property
    def ctas(self) -> int: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def waited(self) -> bool: ...
    @property
    def held(self) -> bool: ...
    @property
    def traced_ctas(self) -> list[int]: ...
    @property
    def tokens(self) -> int: ...
    def trace(self) -> bytes: ...

def run(
    program: Program,
    memory: Memory,
    grid: Sequence[int],
    block: Sequence[int],
    cluster: Sequence[int],
    dynamic_smem: int,
    parameters: bytes,
    dependent: bool,
    interleaving: int,
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
    traced: int = 0,
) -> RunReport: ...

class TraceKind(enum.IntEnum):
    """What a row of a trace records."""

    END = 0

    WAIT = 1

    ARRIVE = 2

    BULK_LOAD = 3

    BULK_TARGET = 4

    BULK_SHARED = 5

    BULK_STORE = 6

    PRODUCT = 7

    FRAGMENTS = 8

    LOAD = 9

    STORE = 10

    ATOMIC = 11

    SHARED_LOAD = 12

    SHARED_STORE = 13

    REMOTE_LOAD = 14

    REMOTE_STORE = 15

    COPY = 16

    COMMIT = 17

    FENCE = 18

    DEPENDENCY = 19

    TRIGGER = 20

class StepFlag(enum.IntFlag):
    """How a step takes effect."""

    HOLD = 1

    BLOCK = 2

    DRAIN = 4

    OF_TRACK = 8

    TOGETHER = 16

    MARK = 32

class Replayed:
    @property
    def end(self) -> float: ...
    @property
    def ends(self) -> list[float]: ...
    @property
    def busy(self) -> list[float]: ...
    @property
    def marks(self) -> list[float]: ...
    @property
    def complete(self) -> list[float]: ...
    @property
    def phase_begins(self) -> list[float]: ...
    @property
    def phase_ends(self) -> list[float]: ...

step_numbers: tuple[str, ...]

step_times: tuple[str, ...]

def replay_turns(
    numbers: NDArray[numpy.uint32],
    times: NDArray[numpy.float32],
    count: int,
    resident: int,
    tokens: int,
    pause: float,
    issues: Sequence[int],
    resources: int,
) -> Replayed:
    """Replays clusters one after the other, by the steps of one: a row for each of `step_numbers`, and of `step_times`."""
