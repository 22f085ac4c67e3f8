"""The `resident` family as the schedule policy sees it: which tasks it supports, its schedules, their cost model inputs."""

from collections.abc import Iterator

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.kernel_family import Family, KernelParts, Work, cluster_sms, has_tma_rows
from cudal2_agent.policies.schedule.families.resident.schedule import MAX_K, ResidentSchedule, ceil_div, units, violations
from cudal2_agent.policies.schedule.families.resident.space import enumerate_schedules
from cudal2_agent.policies.schedule.families.resident.writer import constants, plan

SMEM_BYTES_PER_CYCLE = 128


class Resident(Family[ResidentSchedule]):
    """A stays in registers for all of K while B streams past it: large outputs with short K (sm_90a)."""

    name = "resident"
    schedule = ResidentSchedule

    def supports(self, task: GemmTask) -> bool:
        """TMA needs rows of A, B and D, as stored, that are multiples of 16 bytes. A's registers end at K = 512.

        No bias, no gate.
        """
        return task.arch is Arch.SM_90A and has_tma_rows(task) and task.k <= MAX_K and task.third is None

    def space(self, task: GemmTask, chip: Chip) -> Iterator[ResidentSchedule]:
        if self.supports(task):
            yield from enumerate_schedules(task, chip)

    def work(self, schedule: ResidentSchedule, task: GemmTask, chip: Chip) -> Work:
        s = schedule
        tiles = units(s, task)
        clusters = min(tiles, cluster_sms(chip, s.cluster) // s.cluster)
        k_blocks = ceil_div(task.k, 64)
        panels = ceil_div(task.m, s.cluster * s.block_m)
        # A run of tiles that does not end with its panel leaves the rest of it to the next cluster, which loads A again.
        loads_of_a = min(tiles, panels + clusters)
        block_bytes = 64 * 2 * (loads_of_a * s.cluster * s.block_m + tiles * s.block_n)
        groups = s.block_n // s.columns
        return Work(
            tile=(s.block_m, s.block_n, 64),
            stages=s.slots,
            ctas=clusters * s.cluster,
            ctas_per_sm=1,
            cluster=s.cluster,
            k_blocks=k_blocks,
            loaded_bytes=k_blocks * block_bytes,
            reduced_bytes=0,
            launches=1,
            persistent=True,
            programmatic=s.programmatic,
            overlapped_us=1.2,
            mma_efficiency=_mma_efficiency(s, task),
            lines=s.block_n if task.layout.transposes_b else 64 * groups,
            alternating=s.consumers > 1,
        )

    def violations(self, schedule: ResidentSchedule, task: GemmTask) -> Iterator[str]:
        if not self.supports(task):
            yield f"the family needs sm_90a, rows that are multiples of 16 bytes, K of at most {MAX_K}, no bias and no gate"
            return
        yield from violations(schedule, task)

    def parts(self, schedule: ResidentSchedule, task: GemmTask) -> KernelParts:
        ends = "drains" if schedule.cluster > 1 else "meets"
        a = "column-major-a" if task.layout.transposes_a else "row-major-a"
        activation = "activation" if task.activation else "no-activation"
        return KernelParts(plan(schedule, task), constants(schedule, task), {ends, a, activation})


def smem_bytes_per_cycle(s: ResidentSchedule, task: GemmTask) -> float:
    """Bytes of shared memory per cycle at the full tensor rate: fill by TMA, B read by wgmma, epilogue.

    An m64nNk16 takes N/2 cycles and reads 32·N bytes of B. TMA writes that B once for all warpgroups and atoms. A tile's
    outputs are written and read once, 2 bytes each, in its K/16 instructions.
    """
    return 64 + 64 / (s.consumers * s.atoms) + 8192 / task.k


def _mma_efficiency(s: ResidentSchedule, task: GemmTask) -> float:
    """Share of the tensor rate that the throughput of shared memory allows; one warpgroup multiplies or stores."""
    in_turn = 1.0 if s.consumers > 1 else 0.85
    return min(1.0, SMEM_BYTES_PER_CYCLE / smem_bytes_per_cycle(s, task)) * in_turn
