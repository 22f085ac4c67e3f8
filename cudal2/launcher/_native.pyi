"""The compiled launcher (native/module.cpp), as `python -m nanobind.stubgen -m cudal2.launcher._native` writes it."""

import enum
from collections.abc import Sequence

class Operand(enum.IntEnum):
    """A matrix of the product."""

    A = 0

    B = 1

    D = 2

    WORKSPACE = 3

    THIRD = 4

class Zero(enum.Enum):
    """When the workspace is cleared."""

    NEVER = 0

    EVERY_RUN = 1

    RESTORED = 2

class Argument:
    """One kernel parameter."""

class MapView:
    """What a tensor map describes."""

    def __init__(
        self,
        type: int,
        sizes: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int,
        promotion: int,
    ) -> None: ...

def pointer(operand: Operand, offset: int = 0) -> Argument: ...
def scalar(bits: int, bytes: int) -> Argument: ...
def tensor_map(operand: Operand, offset: int, view: MapView) -> Argument: ...

class Launch:
    """One launch in plain numbers."""

    def __init__(
        self,
        entry: str,
        grid: Sequence[int],
        block: Sequence[int],
        cluster: Sequence[int],
        shared_bytes: int,
        programmatic: bool,
        arguments: Sequence[Argument],
    ) -> None: ...

class Plan:
    """Launches and the workspace."""

    def __init__(
        self,
        launches: Sequence[Launch],
        workspace_bytes: int,
        zero: Zero,
        zero_bytes: int,
        sms: int,
    ) -> None: ...

ALIGNMENT: int = 256

class Kernel:
    """A kernel with its plan on one GPU."""

    def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:
        """Enqueue D = A B: device addresses, and a stream's handle. `third`: a bias or a second matrix; 0 for none."""

    @property
    def c_entry(self) -> tuple[int, int]:
        """Addresses of a C function that launches, and of its first argument."""

    @property
    def tensor_maps(self) -> int:
        """Number of descriptors in the cache."""

    @property
    def workspaces(self) -> int:
        """Number of workspaces, one per stream and capture."""

class LtProduct:
    """A row-major product, and the algorithm of cuBLASLt that is to compute it."""

def lt_product(
    sizes: Sequence[int],
    transposes_a: bool,
    transposes_b: bool,
    bfloat16: bool,
    configuration: Sequence[int],
    opaque: bytes,
) -> LtProduct: ...

class LtKernel:
    """An algorithm of cuBLASLt for one product on one GPU."""

    def launch(self, a: int, b: int, d: int, stream: int, third: int = 0) -> None:
        """Enqueue D = A B: device addresses, and a stream's handle. `third`: a bias or a second matrix; 0 for none."""

    @property
    def c_entry(self) -> tuple[int, int]:
        """Addresses of a C function that launches, and of its first argument."""

    @property
    def workspaces(self) -> int:
        """Number of workspaces, one per stream and capture."""

    @property
    def workspace_bytes(self) -> int:
        """Size of each workspace."""

class Lt:
    """cuBLASLt on one GPU."""

    def load(self, product: LtProduct) -> LtKernel: ...

def cublaslt_version(files: Sequence[str]) -> int:
    """The version of the library that is loaded, or of the first file that loads, as cuBLAS packs it."""

class Gpu:
    """One GPU with its primary context."""

    def __init__(self, device: int, driver: str) -> None: ...
    @property
    def sms(self) -> int: ...
    def load(self, cubin: bytes, plan: Plan, shared: bool = False) -> Kernel: ...
    def open_cublaslt(self, files: Sequence[str]) -> Lt:
        """cuBLASLt, of the file that is loaded, or of the first that loads."""
