"""Every way in which sums leave a kernel: what each asks of a schedule, and a small task for it."""

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from tests.sandbox.emulator.compiled import PtxCompiler

SMS = 4  # so that a small task fills the chip more than once


def gemm(m: int, n: int, k: int, **fields: object) -> GemmTask:
    return GemmTask.model_validate({"m": m, "n": n, "k": k, "arch": Arch.SM_90A, "bias": True, **fields})


# What each asks of a schedule of `wgmma_tma`, the first such one of the space.
WAYS: dict[str, tuple[dict[str, object], GemmTask]] = {
    "whole": ({"splits": 1, "cluster_k": 1, "turned": False, "atoms": 2}, gemm(136, 200, 264)),
    "turned": ({"turned": True, "splits": 1, "cluster_k": 1}, gemm(72, 200, 264, layout="tn")),
    "turned, in parts": ({"turned": True, "splits": 2}, gemm(72, 200, 776, layout="tn", element="bf16")),
    "pulled": ({"cluster_k": 2, "push": False}, gemm(72, 136, 512)),
    "pushed": ({"cluster_k": 2, "push": True}, gemm(72, 136, 512, layout="nt")),
    "splits": ({"splits": 2, "spread_sum": False, "cluster_k": 1}, gemm(72, 136, 1024)),
    "spread": ({"splits": 2, "spread_sum": True, "cluster_k": 1}, gemm(72, 136, 1024, layout="tn")),
    "tail of the tiles in parts": ({"split_tail": True}, gemm(328, 136, 1024)),
    "ping-pong": ({"pingpong": True}, gemm(392, 264, 72)),
    "without TMA": ({"tma_store": False, "splits": 1, "cluster_k": 1}, gemm(136, 200, 264)),
    "pushed and spread": (
        {"push": True, "spread_sum": True, "cluster_m": 1, "cluster_n": 1, "cluster_k": 2},
        gemm(72, 136, 2048),
    ),
    "two consumers in parts": ({"consumers": 2, "splits": 2, "cluster_k": 1, "block_n": 32}, gemm(130, 136, 1024)),
    "pairs of rows": ({"paired_rows": True}, gemm(76, 132, 268, layout="tn")),
    "odd rows": ({"splits": 1, "cluster_k": 1}, gemm(65, 131, 77, layout="tn")),
    "one column": ({"splits": 1, "cluster_k": 1}, gemm(65, 1, 72, layout="tn")),
}
# The same of the other families that add a bias.
OTHER_WAYS: tuple[tuple[str, dict[str, object], GemmTask], ...] = (
    ("latency", {"cluster_k": 1, "warps_k": 1}, gemm(48, 72, 128, arch="sm_80")),
    ("latency", {"cluster_k": 1, "warps_k": 2, "loads": "cp_async"}, gemm(48, 72, 256)),
    ("latency", {"cluster_k": 2, "loads": "tma"}, gemm(48, 72, 512, layout="tn", element="bf16")),
    ("latency", {"block_m": 16, "block_n": 16, "cluster_k": 1, "warps_k": 4}, gemm(48, 72, 256)),
    ("latency", {"block_m": 16, "block_n": 128, "warps_n": 8, "warps_k": 2, "cluster_k": 2}, gemm(48, 72, 512)),
    ("mma_sync", {"split_k": 1, "epilogue": "direct"}, gemm(65, 131, 77, layout="tn")),
    ("mma_sync", {"split_k": 1, "epilogue": "staged"}, gemm(48, 72, 128)),
    ("mma_sync", {"warps_k": 2}, gemm(45, 70, 300, arch="sm_80")),
    ("mma_sync", {"split_k": 2, "reduction": "workspace"}, gemm(45, 70, 600, layout="nt", arch="sm_86")),
    ("mma_sync", {"split_k": 4, "spread_sum": True}, gemm(45, 70, 600, arch="sm_80")),
    ("mma_sync", {"split_k": 2, "reduction": "cluster"}, gemm(45, 71, 600)),
)


def written_first(family: str, asked: dict[str, object], task: GemmTask) -> Candidate:
    """The kernel of the first schedule of a family's space that has these values."""
    made = {each.name: each for each in families(task.arch)}[family]
    space = made.space(task, REFERENCE_CHIPS[task.arch].model_copy(update={"sms": SMS}))
    return made.write(next(one for one in space if asked.items() <= one.values().items()), task)


def faults_of(compiler: PtxCompiler, candidate: Candidate, task: GemmTask) -> list[str]:
    """What is wrong with a kernel on the emulator, in three interleavings."""
    from tests.sandbox.emulator.trial import Trial

    return [str(fault) for fault in Trial(compiler.compile(candidate, task.arch), candidate, task, sms=SMS).faults()]
