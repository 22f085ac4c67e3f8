"""From a schedule of the `resident` family to the constants of its source, and to its launch plan."""

from typing import Literal

from cudal2_agent.contract.plan.plan import Launch, LaunchPlan, ScalarArg, TensorMapArg, TensorMapSpec
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.resident.schedule import ResidentSchedule, steps
from cudal2_agent.policies.schedule.families.template import KernelConstant

ENTRY = "resident_gemm"
TURNS = {"none": 0, "staging": 1, "pause": 2}


def constants(s: ResidentSchedule, task: GemmTask) -> list[KernelConstant]:
    """The constants at the top of `resident.cu`."""
    return [
        KernelConstant("kConsumers", s.consumers, "warpgroups that multiply"),
        KernelConstant("kAtoms", s.atoms, "times 64 rows of a warpgroup"),
        KernelConstant("BLOCK_N", s.block_n),
        KernelConstant("kSteps", steps(task), "of 16 along K"),
        KernelConstant("kSlots", s.slots, "of the ring"),
        KernelConstant("kCluster", s.cluster, "CTAs that share their columns of B by multicast"),
        KernelConstant("kTurns", TURNS[s.turns], "turns with the epilogue: none, with staging, with the whole pause"),
        KernelConstant("kLateStore", s.late_store, "tiles are sent behind the first products of the next one"),
        KernelConstant("kStagings", s.stagings, "tiles of a warp in staging memory"),
        KernelConstant("kPhases", s.phases, "places where clusters start in their runs of column tiles"),
        KernelConstant("kKeepB", s.keep_b, "L2 evicts B last"),
        KernelConstant("kStreamD", s.stream_d, "L2 evicts D first"),
        KernelConstant("kRowMajorB", not task.layout.transposes_b),
    ]


def plan(s: ResidentSchedule, task: GemmTask) -> LaunchPlan:
    """The launch plan: as many clusters as the chip holds, none without work."""
    work = f"ceil(M/{s.cluster * s.block_m})*ceil(N/{s.block_n})"
    whole = "SMS" if s.cluster == 1 else f"SMS//{s.cluster}*{s.cluster}"
    swizzle: Literal[64, 128] = 128 if s.columns == 64 else 64
    return LaunchPlan(
        arch=Arch.SM_90A,
        launches=(
            Launch(
                entry=ENTRY,
                grid=(f"min({work}*{s.cluster}, {whole})", 1, 1),
                block=(s.threads, 1, 1),
                cluster=(s.cluster, 1, 1),
                dynamic_smem=s.smem_bytes,
                programmatic=s.programmatic,
                args=(
                    TensorMapArg(tensor_map=TensorMapSpec(of="A", box=(64, 64), swizzle=128, l2=s.l2)),
                    TensorMapArg(tensor_map=_map_b(s, task)),
                    TensorMapArg(tensor_map=TensorMapSpec(of="D", box=(s.columns, 16), swizzle=swizzle)),
                    ScalarArg(scalar="M"),
                    ScalarArg(scalar="N"),
                ),
            ),
        ),
        accumulate=task.accumulate,
        requires=("N%8==0", "M%8==0" if task.layout.transposes_a else "K%8==0", f"ceil(K/16)=={steps(task)}"),
    )


def _map_b(s: ResidentSchedule, task: GemmTask) -> TensorMapSpec:
    """The slice of a slot that one CTA of the cluster loads: whole column groups, else a part of K."""
    if task.layout.transposes_b:
        return TensorMapSpec(of="B", box=(64, s.block_n // s.cluster), swizzle=128, l2=s.l2)
    by_columns = s.block_n // s.columns % s.cluster == 0
    rows = 64 if by_columns else 64 // s.cluster
    return TensorMapSpec(of="B", box=(s.columns, rows), swizzle=128 if s.columns == 64 else 64, l2=s.l2)
