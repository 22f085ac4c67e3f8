"""What the compiled code says of itself, before it ever runs."""

from contract.base import Record
from contract.task import AccumulatorType


class KernelResources(Record):
    """Resources of one entry. `ctas_per_sm`: resident CTAs, and `occupancy_limiter` names what stops the next one."""

    entry: str
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int
    dynamic_smem_bytes: int
    threads: int
    ctas_per_sm: int
    occupancy: float
    occupancy_limiter: str


class Inspection(Record):
    """`opcodes`: SASS opcode → count where a disassembler is present, else PTX opcode → count (`opcode_source` says which).

    `accumulators`: accumulator types of the tensor-core instructions in the code; empty where there are none.
    """

    cubin_sha256: str
    compile_seconds: float
    kernels: tuple[KernelResources, ...]
    opcodes: dict[str, int]
    opcode_source: str
    mma: tuple[str, ...]
    accumulators: tuple[AccumulatorType, ...]
    warnings: tuple[str, ...] = ()
