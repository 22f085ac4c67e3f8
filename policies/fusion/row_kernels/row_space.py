"""The axes of a kernel that reduces rows, the best expected first by a model of what moves, how many CTAs there are and when.

Covered: bytes from memory and from L2, sectors of loads that are no neighbours, bytes in flight, CTAs that do not fill the
chip, launches, and instructions. Not covered: bank conflicts, the order of CTAs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from cudal2_agent.contract.plan.chip import LIMITS, Chip
from cudal2_agent.policies.fusion.axes import Axes
from cudal2_agent.policies.fusion.index_algebra import Index, Var, number, of
from cudal2_agent.policies.fusion.programs import KernelProgram
from cudal2_agent.policies.fusion.reduction_rules import OPERATIONS
from cudal2_agent.policies.fusion.row_kernels.passes import HELD_TOGETHER

_VECTOR_BYTES = 16
_SECTOR = 32
_LINE = 128
_WARP = 32
_FEW_THREADS = 256
_MOST_HELD = 96  # elements that a thread keeps in registers
_IN_FLIGHT = 24_000  # bytes that an SM must have asked for to be fed at the full rate
_SM_SHARE = 60e3  # bytes per microsecond that one SM can load at most
_LARGEST_CLUSTER = 8
_REACHED = 0.92  # of memory's rate, by kernels that read and write alike
_L2_RATE = 2.0  # as fast as memory
_LEAST_KEPT = 1 / 8  # of a row for which keeping it pays
_ALL_THREADS, _HIDDEN = 2048, 0.6  # of an SM; the share of instructions that so many threads hide behind loads and stores
_EACH, _SET = 3, 14  # instructions for each element in each pass, and for a set of elements that is taken as one
_CTA_US = 1.0  # from the start of a CTA to its first elements
_SYNC_US = 0.5
_LATENCY_US = 0.5  # from the loads of a thread to the next ones
_BUSY_THREADS = 768  # of an SM that hide their instructions' latencies
_LAUNCH_US = 2.5
_LONG_CHAIN = 64  # additions in a row beyond which sums lose accuracy
_WORTH = 1.6  # times the best expected time, within which another form may turn out to be faster


def row_axes(program: KernelProgram, chip: Chip) -> list[Axes]:
    """Every set of axes once, the best expected first: of each form, then of each way to share a row, then the others."""
    model = _RowModel(program, chip)
    timed = sorted(
        ((model.us(axes), at, axes) for at, axes in enumerate(_every(program, model, chip))), key=lambda each: each[:2]
    )
    tiers: dict[Axes, int] = {}
    seen: set[tuple[object, ...]] = set()
    for us, _, axes in timed:
        form = (axes.layout, axes.parts > 1, axes.cluster > 1, axes.held, axes.shared, axes.kept > 0)
        lanes = "CTA" if axes.lanes == axes.threads else "warp" if axes.lanes <= _WARP else "warps"
        keys = [form, (*form, lanes, axes.threads > _FEW_THREADS)]
        fresh = (tier for tier, key in enumerate(keys) if key not in seen)
        tiers[axes] = next(fresh, 2) if us <= _WORTH * timed[0][0] else 3
        seen.update(keys)
    return sorted(tiers, key=lambda axes: tiers[axes])


def fitted(axes: Axes, program: KernelProgram) -> Axes:
    """The same form for a kernel at the smaller sizes of a proof: fewer CTAs and warps share a row, vectors are no wider than
    they can be.
    """
    extent = program.length if axes.layout == "rows" else program.rows
    lanes = min(axes.lanes, 2 * _WARP) if axes.layout == "rows" else min(axes.lanes, 8)
    threads = max(min(axes.threads // axes.lanes * lanes, _FEW_THREADS), lanes, _WARP)
    kept = min(axes.kept, 1)  # of few groups, so that others are not kept
    fewer = {"kept": kept, "parts": min(axes.parts, 3), "cluster": min(axes.cluster, 2), "lanes": lanes, "threads": threads}
    return axes.model_copy(update={"vector": math.gcd(axes.vector, extent), **fewer})


def _every(program: KernelProgram, model: "_RowModel", chip: Chip) -> Iterator[Axes]:
    several = program.passes > 1
    for layout in ("rows", "columns"):
        width = model.width(layout)
        groups = program.length // width if layout == "rows" else program.length
        across = program.rows if layout == "rows" else program.rows // width
        if layout == "columns" and program.rows == 1:
            continue
        for threads in (256, 128, 512, 1024):
            if layout == "columns" and threads == 1024:
                continue
            for lanes in _powers(threads if layout == "rows" else threads // 8):
                if lanes > 1 and lanes >= 2 * groups:
                    continue
                ctas = -(-across // (threads // lanes))
                whole = layout == "columns" or lanes == threads
                for share in _shares(ctas, -(-groups // lanes), chip) if whole else [1]:
                    for items in (1, 2, 4):
                        axes = Axes(layout=layout, vector=width, threads=threads, lanes=lanes, items=items, parts=share)
                        if items * lanes * share <= groups or items == 1:
                            yield axes
                if not several:
                    continue
                for cluster in (1, 2, 4, _LARGEST_CLUSTER):
                    if cluster > 1 and (layout == "columns" or lanes < threads or groups < 4 * lanes * cluster):
                        continue
                    axes = Axes(layout=layout, vector=width, threads=threads, lanes=lanes, cluster=cluster)
                    if model.fits(held := axes.model_copy(update={"held": True})):
                        yield held
                    if model.kept(axes) and cluster < _LARGEST_CLUSTER:
                        continue  # a larger cluster keeps more
                    for items in (1, 2, 4):
                        shared = axes.model_copy(update={"shared": True, "items": items, "kept": model.kept(axes)})
                        if (items == 1 or items * lanes * cluster <= groups) and model.fits(shared):
                            yield shared


def _shares(ctas: int, steps: int, chip: Chip) -> list[int]:
    """How many CTAs may share a row: one, or so many that the chip has work for some waves of them."""
    if ctas >= 16 * chip.sms:
        return [1]
    wanted = [-(-chip.sms * each // ctas) for each in (2, 4, 8, 16, 32, 64)]
    return [1, *dict.fromkeys(each for each in wanted if 1 < each <= steps // 2)]


def _powers(most: int) -> list[int]:
    return [1 << at for at in range(most.bit_length())]


@dataclass
class _RowModel:
    """What a program moves, by layout."""

    program: KernelProgram
    chip: Chip

    @cached_property
    def _variables(self) -> tuple[Var, Var]:
        return Var("o", self.program.rows), Var("r", self.program.length)

    def width(self, layout: str) -> int:
        """Neighbours that a thread reads at a time: as many as most bytes can be loaded and stored at once."""
        program = self.program
        extent = program.length if layout == "rows" else program.rows
        sizes = [access.element_bytes for access in program.accesses if access.each]
        width = _VECTOR_BYTES // min(sizes, default=4)
        while width > 1 and (extent % width or 2 * self._vectors(layout, width) < program.bytes):
            width //= 2
        return max(width, 1)

    def _vectors(self, layout: str, width: int) -> int:
        """Bytes of accesses that are aligned vectors of neighbours, or the same for all of them."""
        variable = self._variables[layout == "rows"]
        group = of(Var("g", variable.extent // width)) * width
        total = 0
        for access in self.program.accesses:
            first, second = (access.index.replace({variable: group + lane}) for lane in (0, width - 1))
            step = second - first
            aligned = first.constant % width == 0 and all(factor % width == 0 for _, factor in first.terms)
            if not step.terms and (step.constant == 0 or (step.constant == width - 1 and aligned)):
                total += access.bytes
        return total

    @cached_property
    def _waste(self) -> dict[str, dict[int, float]]:
        """By layout and access, bytes that are fetched for a byte that is wanted, by what lies beside each other."""
        found: dict[str, dict[int, float]] = {}
        for layout in ("rows", "columns"):
            variable = self._variables[layout == "rows"]
            found[layout] = {
                at: max(
                    1.0,
                    min(step_along(access.index, variable) * access.element_bytes / _SECTOR, _SECTOR / access.element_bytes),
                )
                for at, access in enumerate(self.program.accesses)
            }
        return found

    def fits(self, axes: Axes) -> bool:
        """Whether a thread, or a CTA, can keep what it reads."""
        if axes.held:
            return self._held(axes) <= min(65536 // axes.threads - 32, _MOST_HELD)
        return self._shared(axes) <= self._room and self._kept_share(axes) >= _LEAST_KEPT

    def _kept_share(self, axes: Axes) -> float:
        """Of what later passes read."""
        return 1.0 if axes.held else axes.shared * (axes.kept or self._groups(axes)) / self._groups(axes)

    def kept(self, axes: Axes) -> int:
        """How many groups of a row a thread keeps in shared memory: 0 where that is all of them."""
        room = self._room // (axes.threads * axes.vector * max(self._kept(), 1))
        return 0 if room >= self._groups(axes) else room

    @property
    def _room(self) -> int:
        """Bytes that a CTA may keep."""
        return LIMITS[self.chip.arch].max_smem_per_block_bytes - 4096

    def _held(self, axes: Axes) -> int:
        return self._groups(axes) * axes.vector * max(self._kept() // 4, 1)

    def _shared(self, axes: Axes) -> int:
        return (axes.kept or self._groups(axes)) * axes.threads * axes.vector * self._kept()

    @property
    def _element(self) -> int:
        return max((each.element_bytes for each in self.program.accesses if each.each), default=4)

    def _kept(self) -> int:
        """Bytes of an element that the first pass reads."""
        return sum(access.element_bytes for access in self.program.accesses if access.each and access.first)

    def _groups(self, axes: Axes) -> int:
        """Groups of a thread."""
        groups = self.program.length // (axes.vector if axes.layout == "rows" else 1)
        return -(-groups // (axes.lanes * axes.parts * axes.cluster))

    def us(self, axes: Axes) -> float:
        """Expected microseconds; for comparing axes, not as a measurement."""
        program, chip = self.program, self.chip
        share = axes.parts * axes.cluster
        per_cta = axes.threads // axes.lanes * (axes.vector if axes.layout == "columns" else 1)
        ctas = -(-program.rows // per_cta) * share
        resident = self._resident(axes)
        at_once = max(min(ctas, resident * chip.sms), 1)
        waves = ctas / (resident * chip.sms)
        rate = chip.dram_tbps * 1e6 * _REACHED * self._fed(axes, at_once)
        waste = self._waste[axes.layout]
        first = sum(each.bytes * waste[at] for at, each in enumerate(program.accesses))
        again = sum(each.bytes * waste[at] for at, each in enumerate(program.accesses) if each.each and each.first)
        again *= (program.passes - 1) * (1 - self._kept_share(axes))
        near = at_once * program.rows * program.length * self._kept() / max(ctas, 1) < 0.7 * chip.l2_bytes
        side = axes.lanes if axes.layout == "rows" else axes.threads // axes.lanes
        whole = program.length * self._element if axes.layout == "rows" else 4 * _LINE
        beside = min(side * axes.vector * self._element, whole)
        rate /= 1 + 0.25 * max(0.0, math.log2(_LINE / beside)) + 0.02 * max(0.0, math.log2(4 * _LINE / beside))
        us = first / rate + again / rate / (_L2_RATE if near else 1)
        turns = waves if waves > 1 else ctas / chip.sms
        us *= 1 + 0.3 * (math.ceil(turns) / turns - 1) if turns > 1 else 1
        idle = max(1.0, chip.sms / at_once, _BUSY_THREADS * chip.sms / (at_once * axes.threads))
        work = self._instructions(axes) / (chip.sms * 128 * 1.6e3) * idle
        if waves > 1 and (axes.cluster > 1 or resident < 3):  # what is kept is read, computed and stored one after another
            us += work * self._kept_share(axes) * (1 - _HIDDEN * min(resident * axes.threads / _ALL_THREADS, 1))
        turns_of_loads = -(-self._groups(axes) // (8 if axes.held else max(4, axes.items)))
        waiting = turns_of_loads * _LATENCY_US * math.ceil(waves)
        us = max(us, work, waiting) + (0.2 * waiting if waves <= 1 else 0)  # of one wave, at its start and end
        launches = len(program.stages) if axes.parts > 1 else 0
        us += max(1.0, math.ceil(waves) / min(4 * resident, 16)) * (
            _CTA_US + _SYNC_US * (axes.lanes > 32 or axes.layout == "columns")
        )
        us *= 1.02 if launches or axes.kept else 1.01 if axes.shared else 1
        us += launches * (_LAUNCH_US + axes.parts / max(axes.lanes, 1) * 0.3) + (axes.cluster > 1) * (1 + 0.03 * us)
        us *= 1.3 if self._registers(axes) * axes.threads > 65536 else 1  # some of them would lie in memory
        return us * (1 + 0.01 * max(0.0, math.log2(self._chain(axes) / _LONG_CHAIN)))

    def _instructions(self, axes: Axes) -> float:
        """Of all elements."""
        program, together = self.program, axes.vector * (HELD_TOGETHER if axes.held else axes.items)
        rules = [OPERATIONS[each.operation] for stage in program.stages for each in stage]
        taken = sum(rule.cost + (_SET / together if rule.take_all else 0) for rule in rules)
        again = 0 if axes.held else program.taken_cost * (program.passes - 1)
        return program.rows * program.length * (_EACH * program.passes + taken + program.cost + again)

    def _chain(self, axes: Axes) -> float:
        """Additions one after another into one sum."""
        return max(self._groups(axes) / (1 if axes.held else axes.items), 1)

    def _registers(self, axes: Axes) -> int:
        """Of a thread."""
        if axes.held:
            return 32 + self._held(axes)
        together = axes.vector * axes.items
        rules = [[OPERATIONS[each.operation] for each in stage] for stage in self.program.stages]
        fields = max(sum(len(rule.fields) * (1 if rule.take_all else together) for rule in stage) for stage in rules)
        return 32 + together + fields

    def _resident(self, axes: Axes) -> int:
        """CTAs of an SM."""
        registers = min(self._registers(axes), 65536 // axes.threads)
        limits = LIMITS[self.chip.arch]
        by_shared = limits.smem_per_sm_bytes // (self._shared(axes) + 2048) if axes.shared else 32
        most = min(limits.max_threads_per_sm // axes.threads, 65536 // (registers * axes.threads), by_shared)
        return max(min(most, limits.max_blocks_per_sm), 1)

    def _fed(self, axes: Axes, at_once: int) -> float:
        """The share of the memory's rate that the loads in flight, and the SMs that load, can take."""
        chip = self.chip
        groups = min(self._groups(axes), 8 if axes.held else max(4, axes.items * 2))
        flying = at_once / chip.sms * axes.threads * groups * axes.vector * self._element
        busy = min(at_once, chip.sms) * _SM_SHARE / (chip.dram_tbps * 1e6)
        return min(1.0, flying / _IN_FLIGHT, busy)


def step_along(index: Index, variable: Var) -> float:
    """How many elements further a neighbour lies, 0 where it is the same; the usual one where it differs."""
    if variable.extent < 2:
        return 1
    rest = {each: number(0) for each in index.variables()}
    places = [index.replace(rest | {variable: number(at)}).constant for at in range(min(variable.extent, 8))]
    steps = sorted(abs(after - before) for before, after in pairwise(places))
    return steps[len(steps) // 2]
