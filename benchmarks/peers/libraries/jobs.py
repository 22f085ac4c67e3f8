"""What is built for the peers, and how."""

import importlib.util
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cudal2_agent.contract.errors import CompilerMissing
from cudal2_agent.contract.records.task import parse_shape
from cudal2_agent.contract.whole_file import whole_file

CUTLASS_SOURCE = Path(__file__).parent / "cutlass_gemm.cu"
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


FOLDER = Path(__file__).parent
PUBLISHED_SOURCE, STAND_IN = FOLDER / "published_launch.cu", FOLDER / "stand_in"
REDIRECTED_RUNTIME = FOLDER / "redirected_runtime.cpp"
PUBLISHED_KERNELS = "kernels/h100_F32F16F16F32"  # in the paper's repository
CUTLASS, PAPER = "cutlass-", "paper-"
# NDEBUG: with assertions, ptxas serialises wgmma.
FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-w")
TARGET = ("-gencode", "arch=compute_90a,code=sm_90a")
# Libraries in one process share no symbol: launchers use the same names for different things.
LINKED = ("-shared", "-Xcompiler=-fPIC,-fvisibility=hidden,-fno-gnu-unique", "-Xlinker=-s")
_TILE = re.compile(r"\b(BM|BN|BK)\s*=\s*Int<(\d+)>")
LIMIT_S = 900.0  # of one library


@dataclass(frozen=True)
class LibraryJob:
    """One library to build. `name`: of its file, without the suffix."""

    name: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...]


def cutlass_jobs(headers: Path) -> list[LibraryJob]:
    return [
        LibraryJob(
            CUTLASS + one.name, (CUTLASS_SOURCE,), (f"-I{headers / 'include'}", *(f"-D{k}={v}" for k, v in one.macros.items()))
        )
        for one in CONFIGURATIONS
    ]


def paper_jobs(repository: Path, shapes: Sequence[str], headers: Path) -> Iterator[LibraryJob]:
    """Of the shapes that the repository has a kernel for, which needs no padding.

    The linker redirects what they call of the CUDA runtime.
    """
    folders = (FOLDER, STAND_IN, headers / "include", headers / "tools/util/include")
    redirected = "-Xlinker=" + ",".join(f"--wrap={name}" for name in redirected_calls())
    padded = padded_kernels(repository, shapes)
    for shape in shapes:
        file = _published(repository, shape)
        if file.is_file() and shape not in padded:
            include = tuple(f"-I{folder}" for folder in folders)
            flags = (*include, f'-DKERNEL_FILE="{file}"', redirected)
            yield LibraryJob(PAPER + shape, (PUBLISHED_SOURCE, REDIRECTED_RUNTIME), flags)


def padded_kernels(repository: Path, shapes: Sequence[str]) -> list[str]:
    """Shapes whose published kernel has a tile that does not divide them.

    It multiplies operands that were padded with zeros before, which is no product of this shape and no part of its time.
    """
    return [shape for shape in shapes if (file := _published(repository, shape)).is_file() and _needs_padding(file, shape)]


def _published(repository: Path, shape: str) -> Path:
    return (repository / PUBLISHED_KERNELS / f"{shape.replace('x', '_')}.cu").resolve()


def _needs_padding(file: Path, shape: str) -> bool:
    """Its publisher reads the tile from the last such lines of the source; other kernels take any size."""
    tile = {name: int(size) for name, size in _TILE.findall(file.read_text(encoding="utf-8"))}
    return len(tile) == len("MNK") and any(
        size % tile[f"B{name}"] for name, size in zip("MNK", parse_shape(shape), strict=True)
    )


def redirected_calls() -> list[str]:
    """Functions of the CUDA runtime that a published launcher is kept from calling."""
    return sorted(set(re.findall(r"\bcudaError_t __wrap_(\w+)\(", REDIRECTED_RUNTIME.read_text(encoding="utf-8"))))


def cutlass_headers(folder: Path | None = None) -> Path:
    """The folder of CUTLASS's sources: the one that is named, or that of its package. Raises: CompilerMissing."""
    if folder is not None:
        if not (folder / "include/cutlass/cutlass.h").is_file():
            raise CompilerMissing(
                f"{folder} holds no include/cutlass/cutlass.h; name a folder with CUTLASS's include and tools"
            )
        return folder
    found = importlib.util.find_spec("cutlass_library")
    if found is None or found.origin is None:
        raise CompilerMissing("CUTLASS's headers are missing; install them with: pip install 'nvidia-cutlass>=4.2,<4.3'")
    return Path(found.origin).parent / "source"


def build(job: LibraryJob, folder: Path, nvcc: str, limit_s: float = LIMIT_S) -> str:
    """Build one library; what became of it in one line."""
    target = folder / f"{job.name}.so"
    if target.exists():
        return f"{job.name}: is there"
    try:
        with whole_file(target) as temporary:
            command = [nvcc, *FLAGS, *TARGET, *job.flags, *LINKED, *map(str, job.sources), "-o", str(temporary)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit_s)
    except subprocess.CalledProcessError as exc:
        return f"{job.name}: nvcc fails: {' '.join(exc.stderr.split())[:200]}"
    except subprocess.TimeoutExpired:
        return f"{job.name}: nvcc takes longer than {limit_s:g} s"
    return f"{job.name}: built"
