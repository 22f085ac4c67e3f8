"""Properties of the compiled code that are known before it runs."""

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.task import AccumulatorType


class KernelResources(Record):
    """Resources of one kernel entry. `ctas_per_sm`: resident CTAs; `occupancy_limiter`: the resource that limits them."""

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
    """Instruction mix, resources and accumulator types of one cubin.

    `opcodes`: count per SASS opcode where a disassembler is present, else per PTX opcode; `opcode_source` says which.
    `accumulators`: accumulator types of the tensor-core instructions; empty where there are none.
    """

    cubin_sha256: str
    compile_seconds: float
    kernels: tuple[KernelResources, ...]
    opcodes: dict[str, int]
    opcode_source: str
    mma: tuple[str, ...]
    accumulators: tuple[AccumulatorType, ...]
    warnings: tuple[str, ...] = ()
