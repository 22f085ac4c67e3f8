"""CUTLASS's collective builder: a handful of its configurations, each a shared library that takes sizes as arguments."""

from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "cutlass_gemm.cu"
PINGPONG, COOPERATIVE, ONE = "Pingpong", "Cooperative", ""


@dataclass(frozen=True)
class CutlassConfiguration:
    """A choice of the collective builder's parameters. `stream_k`: whether K is split where the tiles fill no whole wave."""

    block_m: int
    block_n: int
    block_k: int
    cluster_m: int
    cluster_n: int
    schedule: str
    stream_k: bool = False

    @property
    def name(self) -> str:
        tile, cluster = f"{self.block_m}x{self.block_n}x{self.block_k}", f"{self.cluster_m}x{self.cluster_n}"
        return "-".join([tile, cluster, self.schedule.lower() or "one", *(["streamk"] if self.stream_k else [])])

    @property
    def macros(self) -> dict[str, str]:
        epilogue = "Cooperative" if self.schedule == COOPERATIVE else ""
        return {
            "BLOCK_M": str(self.block_m),
            "BLOCK_N": str(self.block_n),
            "BLOCK_K": str(self.block_k),
            "CLUSTER_M": str(self.cluster_m),
            "CLUSTER_N": str(self.cluster_n),
            "MAINLOOP": f"KernelTmaWarpSpecialized{self.schedule}",
            "EPILOGUE": f"TmaWarpSpecialized{epilogue}",
            "SCHEDULER": "StreamKScheduler" if self.stream_k else "PersistentScheduler",
        }


# Both consumers' schedules at the tiles that published profiles favour, small tiles for small outputs, and stream-K.
CONFIGURATIONS = (
    CutlassConfiguration(64, 64, 64, 1, 1, PINGPONG),
    CutlassConfiguration(64, 64, 128, 1, 1, ONE),
    CutlassConfiguration(64, 128, 64, 1, 1, PINGPONG),
    CutlassConfiguration(64, 256, 64, 2, 1, PINGPONG),
    CutlassConfiguration(128, 64, 64, 1, 1, COOPERATIVE, stream_k=True),
    CutlassConfiguration(128, 128, 64, 1, 1, COOPERATIVE, stream_k=True),
    CutlassConfiguration(128, 128, 64, 2, 1, PINGPONG),
    CutlassConfiguration(128, 256, 64, 2, 1, COOPERATIVE),
    CutlassConfiguration(256, 128, 64, 2, 1, COOPERATIVE),
    CutlassConfiguration(128, 256, 64, 2, 1, COOPERATIVE, stream_k=True),
)
