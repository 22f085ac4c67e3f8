"""Who waits where in a run that did not end: the core's list of warps, grouped by barrier and instruction."""

from collections.abc import Iterable
from typing import Literal

from cudal2_agent.contract.records.symptoms import BarrierWait
from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.kernel import BoundKernel
from cudal2_agent.sandbox.emulator.lowering.program import Program
from cudal2_agent.sandbox.emulator.ptx.module import Instruction

_SHOWN = 6  # groups of warps
_CTAS = 3  # of a group, by their coordinates
_KINDS: dict[int, Literal["mbarrier", "named", "cluster", "none"]] = {
    core.BarrierKind.MBARRIER: "mbarrier",
    core.BarrierKind.NAMED: "named",
    core.BarrierKind.CLUSTER: "cluster",
}
Cta = tuple[int, int, int]


def waits_of(finding: core.Finding, program: Program) -> tuple[BarrierWait, ...]:
    """Warps at one instruction and at equal barriers of their CTAs are reported together; the CTAs in the order of the core."""
    groups: dict[tuple[object, ...], list[core.WaitingWarp]] = {}
    for warp in finding.waiting:
        groups.setdefault(_key(warp), []).append(warp)
    return tuple(_wait(warps, program) for warps in list(groups.values())[:_SHOWN])


def _key(warp: core.WaitingWarp) -> tuple[object, ...]:
    at = warp.barrier
    return warp.instruction, int(at.kind), _offset(at), at.phase, at.missing, at.expected, at.missing_bytes


def _offset(at: core.AwaitedBarrier) -> int:
    """Of an mbarrier in its CTA's shared memory; else the number of a named barrier."""
    return at.address & ((1 << core.rank_shift) - 1) if at.kind == core.BarrierKind.MBARRIER else at.address


def _wait(warps: list[core.WaitingWarp], program: Program) -> BarrierWait:
    at, kind = warps[0].barrier, _KINDS.get(int(warps[0].barrier.kind), "none")
    names = {
        "mbarrier": f"mbarrier at byte {_offset(at) - core.shared_base} of shared memory",
        "named": f"named barrier {at.address}",
        "cluster": "barrier of the cluster",
        "none": "no barrier",
    }
    known = kind != "none"
    return BarrierWait(
        kind=kind,
        barrier=names[kind],
        warps=_who(warps),
        at=located(program, warps[0].instruction),
        phase=at.phase if kind in ("mbarrier", "cluster") else None,
        arrived=at.expected - at.missing if known else None,
        expected=at.expected if known else None,
        missing_bytes=at.missing_bytes,
        announced=at.announced,
        history=tuple(_history(at, program)),
    )


def _history(at: core.AwaitedBarrier, program: Program) -> Iterable[str]:
    if at.kind != core.BarrierKind.MBARRIER:
        return
    listed = (
        ("initialised at", at.initialised),
        ("last arrival at", at.arrived),
        ("nobody ever arrived; at a barrier of the same initialisation the last arrival was at", at.alike),
        ("bytes last announced at", at.announcing),
        ("bytes last delivered by", at.delivering),
    )
    yield from (f"{words} {located(program, index)}" for words, index in listed if index >= 0)
    if at.arrived < 0 and at.alike < 0:
        yield "nobody ever arrived"


def _who(warps: list[core.WaitingWarp]) -> str:
    of: dict[Cta, list[int]] = {}
    for warp in warps:
        of.setdefault(warp.cta, []).append(warp.warp)
    alike: dict[tuple[int, ...], list[Cta]] = {}
    for cta, numbers in of.items():
        alike.setdefault(tuple(numbers), []).append(cta)
    return "; ".join(_group(numbers, ctas) for numbers, ctas in list(alike.items())[:_SHOWN])


def _group(numbers: tuple[int, ...], ctas: list[Cta]) -> str:
    warps = f"warp{'s' * (len(numbers) > 1)} {ranges(numbers)}"
    more = f" and {len(ctas) - _CTAS} more" if len(ctas) > _CTAS else ""
    return f"{warps} of CTA{'s' * (len(ctas) > 1)} {', '.join(map(str, ctas[:_CTAS]))}{more}"


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as ranges: `0-3, 8`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


# Places of a run in words: an instruction with its source lines, an address by buffer and byte.
_TEXT_CHARS = 96


def instruction_at(program: Program, index: int) -> Instruction:
    return program.instructions[max(0, min(index, len(program.instructions) - 1))]


def located(program: Program, index: int) -> str:
    """An instruction's text and where it stands."""
    instruction = instruction_at(program, index)
    text = instruction.text if len(instruction.text) <= _TEXT_CHARS else instruction.text[: _TEXT_CHARS - 1] + "…"
    return f"`{text}` ({instruction.place or f'PTX line {instruction.line}'})"


def address_in_words(address: int, bound: BoundKernel) -> str:
    """An address by buffer and byte; empty for a finding without an address."""
    if not address:
        return ""
    for name, base in bound.machine.addresses.items():
        if base <= address < base + bound.arrays[name].nbytes:
            return f"byte {address - base} of {name}"
    if address < 1 << 32:
        rank, offset = divmod(address, 1 << core.rank_shift)
        of = f" of CTA rank {rank}" if rank else ""
        return f"byte {offset - core.shared_base} of shared memory{of}"
    return f"address {address:#x}"
