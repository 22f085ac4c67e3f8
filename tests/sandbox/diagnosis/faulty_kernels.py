"""Kernels with one known fault each, so that the expected diagnosis is known by construction.

Some are schedules of the project's families with one bad axis. Others are written by hand (`kernels/*.cu`) with a macro as
the fault; these come with a corrected version, which sets the macro well.
"""

from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.contract.plan.plan import (
    Launch,
    LaunchPlan,
    ScalarArg,
    TensorArg,
    TensorMapArg,
    TensorMapSpec,
    Workspace,
    WorkspaceArg,
    render_plan,
)
from cudal2_agent.contract.records.candidate import Candidate, Origin, ScheduleValue
from cudal2_agent.contract.records.diagnosis import Bottleneck
from cudal2_agent.contract.records.task import Arch, GemmTask, parse_shape
from cudal2_agent.policies.schedule.families.registry import families

KERNELS = Path(__file__).parent / "kernels"
_LEGACY: tuple[Bottleneck, ...] = ("legacy-mma",)  # mma.sync on sm_90a, in addition to the fault


@dataclass(frozen=True)
class FaultyCase:
    """One kernel with a known fault.

    `expected`: bottlenecks that fit the fault, best first. `also`: bottlenecks of the kernel besides the fault, which are not
    counted in the rank of the fault. `fixed`: the kernel with the manual fix.
    """

    name: str
    fault: str
    task: GemmTask
    expected: tuple[Bottleneck, ...]
    candidate: Candidate
    fixed: Candidate | None = None
    also: tuple[Bottleneck, ...] = ()


def all_cases() -> list[FaultyCase]:
    return [*_schedules(), *_hand_written()]


# ---- schedules with one bad axis ----------------------------------------------------------------------------------
_WGMMA: dict[str, ScheduleValue] = {
    "family": "wgmma_tma",
    "consumers": 2,
    "atoms": 1,
    "block_n": 128,
    "block_k": 64,
    "stages": 6,
}
_MMA: dict[str, ScheduleValue] = {
    "family": "mma_sync",
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "warps_m": 2,
    "warps_n": 4,
    "stages": 3,
    "programmatic": True,
}


def _schedules() -> list[FaultyCase]:
    return [
        _schedule(
            "shallow pipeline, wgmma", "2 stages of 64", "2048x2048x2048", ("memory-latency", "few-bytes-in-flight"),
            _WGMMA | {"stages": 2, "tma_store": True},
        ),
        _schedule(
            "shallow pipeline, mma.sync", "2 stages of 32", "2048x2048x4096", ("memory-latency", "barrier-waits"),
            _MMA | {"stages": 2, "block_k": 32},
        ),
        _schedule(
            "tile too large", "8 tiles of 128x256 on 132 SMs", "512x512x4096", ("idle-sms",),
            _WGMMA | {"block_n": 256, "stages": 4},
        ),
        _schedule(
            "tail wave", "136 tiles on 132 SMs", "2176x2048x1024", ("tail-wave", "imbalance"),
            _WGMMA | {"block_n": 256, "stages": 4},
        ),
        _schedule(
            "no programmatic launch", "64x64x64 without it", "64x64x64", ("launch-bound",),
            _WGMMA | {"consumers": 1, "block_n": 32, "stages": 1, "tma_store": False, "programmatic": False},
        ),
        _schedule(
            "too many splits", "K in 32 parts, 67 MB of sums", "512x512x4096", ("reduction-traffic",),
            _WGMMA | {"splits": 32, "stages": 2},
        ),
        _schedule(
            "small tile, large shape", "64x64 tiles", "4096x4096x4096", ("redundant-traffic", "l2-bound", "smem-bound"),
            _WGMMA | {"consumers": 1, "block_n": 64, "stages": 6, "ctas_per_sm": 2},
        ),
        _schedule(
            "one consumer", "one warpgroup with one product in flight an SM", "4096x4096x1024",
            ("wgmma-waits", "occupancy", "dependency-waits"),
            _WGMMA | {"consumers": 1, "block_n": 256, "stages": 4},
        ),
        _schedule(
            "exposed epilogue", "K of 64, nothing hides the stores", "2048x2048x64", ("epilogue-bound", "prologue-bound"),
            _WGMMA | {"block_n": 256, "stages": 1, "tma_store": False},
        ),
        _schedule(
            "small warp tiles", "16x32 a warp", "2048x2048x2048", ("smem-instructions", "smem-bound", "instruction-bound"),
            _MMA | {"block_m": 64, "block_n": 64, "warps_m": 4, "warps_n": 2},
        ),
    ]  # fmt: skip


def _schedule(
    name: str, fault: str, shape: str, expected: tuple[Bottleneck, ...], values: dict[str, ScheduleValue]
) -> FaultyCase:
    task = _task(shape)
    family = next(family for family in families(task.arch) if family.name == values["family"])
    also = _LEGACY if family.name == "mma_sync" else ()
    return FaultyCase(name, fault, task, expected, family.write(family.parse(values), task), also=also)


# ---- kernels written by hand ---------------------------------------------------------------------------------------------
def _hand_written() -> list[FaultyCase]:
    split = "512x512x4096"
    return [
        FaultyCase(
            "fused multiply-adds", "one thread an output, no tensor cores", _task("2048x2048x1024"), ("no-tensor-cores",),
            fma(TILED=0), mma(),
        ),
        FaultyCase(
            "one bank for a warp", "32-way bank conflicts", _task("2048x2048x1024"), ("bank-conflicts", "no-tensor-cores"),
            fma(TILED=1, PAD=0), fma(TILED=1, PAD=1),
        ),
        _mma_case(
            "copies and products take turns", "one stage", ("memory-latency", "few-bytes-in-flight"),
            {"STAGES": 1}, {"STAGES": 4},
        ),
        _mma_case("plain rows in shared memory", "no swizzle", ("bank-conflicts",), {"SWIZZLE": 0}, {}),
        _mma_case("registers bounded", "4 CTAs of 256 threads an SM", ("spills",), {"MIN_CTAS": 4}, {}),
        _mma_case(
            "copies through registers", "loads, then stores to shared memory", ("register-staging", "memory-latency"),
            {"STAGES": 1, "BY_REGISTERS": 1}, {},
        ),
        _mma_case(
            "loads down columns", "4 bytes a row and thread", ("uncoalesced",),
            {"STAGES": 1, "BY_REGISTERS": 1, "COALESCED": 0}, {"STAGES": 1, "BY_REGISTERS": 1},
        ),
        _mma_case(
            "fragments word by word", "16-bit loads of B", ("narrow-smem-loads", "smem-instructions", "instruction-bound"),
            {"LDMATRIX": 0}, {},
        ),
        FaultyCase(
            "one warp a CTA", "64x64 tiles of one warp, 4 an SM", _task("4096x4096x1024"), ("occupancy", "dependency-waits"),
            mma(**_SMALL, WARPS_M=1, WARPS_N=1), mma(**_SMALL, WARPS_M=2, WARPS_N=2), _LEGACY,
        ),
        FaultyCase(
            "sums through memory", "K in 32 parts and a second launch", _task(split), ("reduction-traffic",),
            mma(SPLITS=32), mma(SPLITS=8), _LEGACY,
        ),
        FaultyCase(
            "serialised wgmma", "the last wait is missing", _task("2048x2048x2048"), ("wgmma-serialised",),
            wgmma(SERIALISED=1), wgmma(SERIALISED=0),
        ),
    ]  # fmt: skip


def _mma_case(name: str, fault: str, expected: tuple[Bottleneck, ...], bad: dict[str, int], good: dict[str, int]) -> FaultyCase:
    return FaultyCase(name, fault, _task("2048x2048x2048"), expected, mma(**bad), mma(**good), _LEGACY)


_TENSORS = (TensorArg(tensor="A"), TensorArg(tensor="B"), TensorArg(tensor="D", access="write"))
_SIZES = tuple(ScalarArg(scalar=name) for name in "MNK")
_MMA_MACROS = {
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "BLOCK_K": 32,
    "WARPS_M": 2,
    "WARPS_N": 4,
    "STAGES": 3,
    "SWIZZLE": 1,
    "BY_REGISTERS": 0,
    "COALESCED": 1,
    "LDMATRIX": 1,
    "MIN_CTAS": 1,
    "SPLITS": 1,
}
_SMALL = {"BLOCK_M": 64, "BLOCK_N": 64, "STAGES": 6}


def fma(TILED: int, PAD: int = 0) -> Candidate:
    tile = 32 if TILED else 16
    launch = Launch(entry="hgemm", grid=(f"N/{tile}", f"M/{tile}", 1), block=(tile * tile, 1, 1), args=(*_TENSORS, *_SIZES))
    requires = (f"M%{tile}==0", f"N%{tile}==0", f"K%{tile}==0")
    plan = LaunchPlan(arch=Arch.SM_80, launches=(launch,), requires=requires)
    return _candidate("fma.cu", plan, {"TILED": TILED, "PAD": PAD})


def mma(**changes: int) -> Candidate:
    macros = _MMA_MACROS | changes
    block_m, block_n, block_k, splits = (macros[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLITS"))
    hgemm = Launch(
        entry="hgemm",
        grid=(f"N/{block_n}", f"M/{block_m}", splits),
        block=(32 * macros["WARPS_M"] * macros["WARPS_N"], 1, 1),
        dynamic_smem=macros["STAGES"] * 2 * block_k * (block_m + block_n),
        args=(*_TENSORS, WorkspaceArg(workspace=0), *_SIZES),
    )
    reduce = Launch(
        entry="reduce",
        grid=("M*N/512", 1, 1),
        block=(256, 1, 1),
        args=(WorkspaceArg(workspace=0), _TENSORS[2], *_SIZES[:2]),
    )
    plan = LaunchPlan(
        arch=Arch.SM_80,
        launches=(hgemm, reduce) if splits > 1 else (hgemm,),
        workspace=Workspace(bytes=f"{4 * splits}*M*N") if splits > 1 else None,
        requires=(f"M%{block_m}==0", f"N%{block_n}==0", f"K%{block_k * splits}==0", "M*N%512==0"),
    )
    return _candidate("mma.cu", plan, macros)


def wgmma(SERIALISED: int) -> Candidate:
    maps = (
        TensorMapArg(tensor_map=TensorMapSpec(of="A", box=(64, 128), swizzle=128)),
        TensorMapArg(tensor_map=TensorMapSpec(of="B", box=(64, 64), swizzle=128)),
    )
    launch = Launch(
        entry="hgemm",
        grid=("N/128", "M/128", 1),
        block=(256, 1, 1),
        dynamic_smem=5 * 32768 + 1024,
        args=(*maps, _TENSORS[2], *_SIZES),
    )
    plan = LaunchPlan(arch=Arch.SM_90A, launches=(launch,), requires=("M%128==0", "N%128==0", "K%64==0"))
    return _candidate("wgmma.cu", plan, {"SERIALISED": SERIALISED})


def _candidate(file: str, plan: LaunchPlan, macros: dict[str, int]) -> Candidate:
    """One complete source: plan, macros and kernel."""
    defines = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    source = render_plan(plan) + defines + (KERNELS / file).read_text(encoding="utf-8")
    return Candidate(source=source, plan=plan, origin=Origin(policy="by hand", note=f"{file} {macros}"))


def _task(shape: str) -> GemmTask:
    m, n, k = parse_shape(shape)
    return GemmTask(m=m, n=n, k=k, arch=Arch.SM_90A)
