"""Kernels written for the emulator's tests: the source, its tasks, and the opcodes that its PTX must contain.

A kernel tests those opcodes; without them its result would mean nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudal2_agent.contract.errors import CompilerMissing
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.building.headers import find_headers
from cudal2_agent.sandbox.building.toolchain import find_nvcc

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class WrittenKernel:
    """`opcodes`: beginnings of instructions that its PTX must have.

    `toolkit_header`: one that only nvcc has for certain; NVRTC takes the kernel where it finds the header too.
    """

    name: str
    tasks: tuple[GemmTask, ...]
    opcodes: tuple[str, ...]
    toolkit_header: str | None = None

    def candidate(self) -> Candidate:
        source = (FOLDER / f"{self.name}.cu").read_text()
        candidate = Candidate.from_source(source, Origin(policy="test"))
        return candidate.model_copy(update={"compiler": "nvcc"}) if self._needs_nvcc() else candidate

    def missing(self) -> str | None:
        """What this machine lacks to compile it, or None."""
        if self._needs_nvcc():
            try:
                find_nvcc(None)
            except CompilerMissing as exc:
                return str(exc)
        return None

    def _needs_nvcc(self) -> bool:
        return self.toolkit_header is not None and not _installed(self.toolkit_header)


def _installed(header: str) -> bool:
    return any((root / header).is_file() for root in find_headers().roots)


def _tasks(*shapes: tuple[int, int, int], **fields: Any) -> tuple[GemmTask, ...]:
    return tuple(GemmTask.model_validate({"m": m, "n": n, "k": k, **fields}) for m, n, k in shapes)


WRITTEN = (
    WrittenKernel(
        name="plain_tiled",
        tasks=_tasks((64, 64, 64), (37, 45, 51), (1, 7, 3), arch="sm_80"),
        opcodes=("ld.global.nc.u16", "ld.shared.f32", "st.shared.f32", "bar.sync", "fma.rn.f32"),
    ),
    WrittenKernel(
        name="warp_atomics",
        tasks=_tasks((16, 64, 256), (5, 45, 131), (3, 2, 17), arch="sm_80"),
        opcodes=(
            "vote.sync.ballot",
            "vote.sync.any",
            "shfl.sync.idx",
            "popc.b32",
            "atom.shared.add.u32",
            "atom.global.add.f32",
        ),
    ),
    WrittenKernel(
        name="local_memory",
        tasks=_tasks((16, 32, 64), (19, 13, 47), (1, 1, 1), arch="sm_80", layout="tn"),
        opcodes=("call.uni", "st.param.b64", "ld.param.f32", "st.local.f32", "ld.local.f32", "div.s32", "rem.s32"),
    ),
    WrittenKernel(
        name="transposed_a",
        tasks=_tasks((64, 32, 64), (72, 40, 45), (48, 24, 48), layout="nt"),
        opcodes=(
            "cp.async.bulk.tensor.2d.shared::cluster.global",
            "mbarrier.try_wait.parity",
            "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        ),
    ),
    WrittenKernel(
        name="bulk_push",
        tasks=_tasks((16, 128, 48), (8, 64, 256)),
        opcodes=(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ",
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint",
            "cp.async.bulk.global.shared::cta.bulk_group ",
            "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint",
            "cp.async.bulk.prefetch.L2.global",
            "createpolicy.fractional.L2::evict_first",
            "elect.sync",
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32",
        ),
    ),
    WrittenKernel(
        name="packed_workspace",
        tasks=_tasks((64, 32, 128), (100, 37, 192)),
        opcodes=("cp.async.bulk.tensor.3d.shared::cluster.global", "cp.async.bulk.tensor.3d.global.shared::cta"),
    ),
    WrittenKernel(
        name="wmma_shared",
        tasks=_tasks((64, 32, 64), (37, 45, 51), arch="sm_80"),
        opcodes=(
            "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16",
            "wmma.load.b.sync.aligned.row.m16n16k16.shared.f16",
            "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32",
            "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32",
        ),
        toolkit_header="crt/mma.h",
    ),
    WrittenKernel(
        name="wmma_global",
        tasks=_tasks((64, 48, 80), arch="sm_80", layout="tn", accumulate="f16"),
        opcodes=(
            "wmma.load.a.sync.aligned.row.m16n16k16.global.f16",
            "wmma.load.b.sync.aligned.col.m16n16k16.global.f16",
            "wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16",
            "wmma.store.d.sync.aligned.row.m16n16k16.global.f16",
        ),
        toolkit_header="crt/mma.h",
    ),
)
