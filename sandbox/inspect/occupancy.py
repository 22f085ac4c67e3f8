"""How many CTAs of a kernel an SM holds, and which resource limits them.

Source: cuda_occupancy.h of the CUDA toolkit, for compute capability 8.0 and up.
"""

from dataclasses import dataclass

from cudal2_agent.contract.plan.chip import ChipLimits

WARP = 32
_REGISTER_UNIT = 256  # per warp
_PARTITIONS = 4  # of an SM, each with its own registers
_SMEM_UNIT_BYTES = 128
_RESERVED_SMEM_BYTES = 1024  # per CTA, by the driver


@dataclass(frozen=True)
class Occupancy:
    """`limiter`: `threads`, `registers`, `shared-memory` or `ctas`, the resource that limits the number of CTAs."""

    ctas_per_sm: int
    fraction: float
    limiter: str


def occupancy(threads: int, registers: int, smem_bytes: int, limits: ChipLimits) -> Occupancy:
    """Occupancy of CTAs of `threads` threads with `smem_bytes` of static and dynamic shared memory."""
    warps = _divide_up(threads, WARP)
    allowed = {
        "threads": limits.max_threads_per_sm // (warps * WARP),
        "registers": _by_registers(warps, registers, limits),
        "shared-memory": _by_smem(smem_bytes, limits),
        "ctas": limits.max_blocks_per_sm,
    }
    limiter = min(allowed, key=lambda name: allowed[name])
    ctas = allowed[limiter]
    return Occupancy(ctas_per_sm=ctas, fraction=ctas * warps * WARP / limits.max_threads_per_sm, limiter=limiter)


def _by_registers(warps: int, registers: int, limits: ChipLimits) -> int:
    """A warp's registers come from its partition's file; a CTA must fit with its warps distributed evenly."""
    if registers == 0:
        return limits.max_blocks_per_sm
    per_warp = _divide_up(registers * WARP, _REGISTER_UNIT) * _REGISTER_UNIT
    if per_warp * _divide_up(warps, _PARTITIONS) * _PARTITIONS > limits.registers_per_sm:
        return 0
    return limits.registers_per_sm // _PARTITIONS // per_warp * _PARTITIONS // warps


def _by_smem(smem_bytes: int, limits: ChipLimits) -> int:
    if smem_bytes > limits.max_smem_per_block_bytes:
        return 0
    return limits.smem_per_sm_bytes // (_divide_up(smem_bytes + _RESERVED_SMEM_BYTES, _SMEM_UNIT_BYTES) * _SMEM_UNIT_BYTES)


def _divide_up(value: int, unit: int) -> int:
    return -(-value // unit)
