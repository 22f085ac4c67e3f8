"""The output of ptxas -v on each entry: registers, spills, stack, shared memory; its warnings; CTAs per SM."""

import re
from dataclasses import dataclass, replace

from cudal2_agent.contract.plan.chip import ChipLimits

_MAX_WARNINGS = 16
_MAX_CHARS = 300
_ENTRY = re.compile(r"^ptxas info\s*: Compiling entry function '(?P<name>[^']+)' for '[^']*'")
_FRAME = re.compile(
    r"^(?:ptxas\s+\.)?\s+(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"^ptxas info\s*: Used (?P<registers>\d+) registers(?P<rest>.*)")
_SMEM = re.compile(r"(?P<bytes>\d+) bytes smem")
_STACK = re.compile(r"(?P<bytes>\d+) bytes cumulative stack size")
_LOSS = "Potential Performance Loss"
_WARNING = re.compile(rf"\(C7\d{{3}}\)|{_LOSS}|\bwarning\b", re.IGNORECASE)
_AT_LINE = re.compile(r"\bline \d+")  # as ptxas names one


@dataclass(frozen=True)
class Resources:
    registers: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    static_smem_bytes: int = 0


def parse_resources(log: str) -> dict[str, Resources]:
    """Resources by entry. Spills of functions that are not inlined count for the entry they are compiled with.

    ptxas prints after the front end, so of two reports on one entry the last one is its own.
    """
    found: dict[str, Resources] = {}
    entry: str | None = None
    for line in log.splitlines():
        if match := _ENTRY.match(line):
            entry = match["name"]
            found[entry] = Resources()
        elif entry is None:
            continue
        elif match := _FRAME.match(line):
            have = found[entry]
            found[entry] = replace(
                have,
                spill_store_bytes=have.spill_store_bytes + int(match["stores"]),
                spill_load_bytes=have.spill_load_bytes + int(match["loads"]),
                stack_bytes=max(have.stack_bytes, int(match["stack"])),
            )
        elif match := _USED.match(line):
            smem, stack = _SMEM.search(match["rest"]), _STACK.search(match["rest"])
            found[entry] = replace(
                found[entry],
                registers=int(match["registers"]),
                static_smem_bytes=int(smem["bytes"]) if smem else 0,
                stack_bytes=max(found[entry].stack_bytes, int(stack["bytes"]) if stack else 0),
            )
    return found


def parse_warnings(log: str) -> tuple[str, ...]:
    """Warnings of the compiler, each once, with what ptxas calls a potential performance loss before all others.

    Of messages that differ in their numbers alone, as ptxas has one for each line, the first speaks for all.
    """
    lines = (re.sub(r"^ptxas \w+\s*: ", "", line.strip()) for line in log.splitlines() if _WARNING.search(line))
    alike: dict[str, list[str]] = {}
    for line in dict.fromkeys(line[:_MAX_CHARS] for line in lines if not line.startswith("Remark")):
        alike.setdefault(_AT_LINE.sub("line #", line), []).append(line)
    told = [same[0] + (f" (and at {len(same) - 1} other places)" if len(same) > 1 else "") for same in alike.values()]
    return tuple(sorted(told, key=lambda line: _LOSS not in line)[:_MAX_WARNINGS])


# How many CTAs of a kernel an SM holds, and which resource limits them.
#
# Source: cuda_occupancy.h of the CUDA toolkit, for compute capability 8.0 and up.
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
