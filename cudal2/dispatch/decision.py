"""What runs a matrix product and why, or why the library does not."""

from enum import StrEnum

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.library import LibraryEntry, MRange, StoredAlgorithm, nvrtc_in
from cudal2_agent.contract.records.task import Arch, GemmTask


class FallbackCause(StrEnum):
    """A cause in a word; `sentence` is the text for a person."""

    NO_GPU = "no-gpu"
    NO_LAUNCHER = "no-launcher"
    NO_LIBRARY = "no-library"
    OTHER_GPU = "other-gpu"
    OTHER_DRIVER = "other-driver"
    OTHER_NVRTC = "other-nvrtc"
    NO_ENTRY = "no-entry"
    NOT_FASTER = "not-faster"
    NO_CUBLASLT = "no-cublaslt"
    OTHER_CUBLAS = "other-cublas"
    NO_ALGORITHM = "no-algorithm"
    TYPE = "type"
    REDUCED_ACCUMULATION = "reduced-accumulation"
    LAYOUT = "layout"
    EMPTY = "empty"
    TOO_LARGE = "too-large"
    RANK = "rank"
    AUTOCAST = "autocast"
    TRANSFORM = "transform"
    BIAS = "bias"
    OUTPUT = "output"
    UNALIGNED = "unaligned"
    DETERMINISTIC = "deterministic"
    BUILDING = "building"
    BUILD_FAILED = "build-failed"
    UNUSABLE = "unusable"
    CAPTURING = "capturing"
    LAUNCH_FAILED = "launch-failed"

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    FallbackCause.NO_GPU: "no GPU is visible to PyTorch",
    FallbackCause.NO_LAUNCHER: "the launcher or the GPU's driver cannot be used here",
    FallbackCause.NO_LIBRARY: "no library was measured on this GPU",
    FallbackCause.OTHER_GPU: "the entry was measured on another GPU",
    FallbackCause.OTHER_DRIVER: "the entry was measured with another driver",
    FallbackCause.OTHER_NVRTC: "the entry was measured with another NVRTC, which compiles another kernel",
    FallbackCause.NO_ENTRY: "the library has no entry for the matrix product",
    FallbackCause.NOT_FASTER: "the interval of the entry's speedup is not wholly above 1",
    FallbackCause.NO_CUBLASLT: "the library holds an algorithm of cuBLASLt, and cuBLASLt or the launcher in C++ is missing",
    FallbackCause.OTHER_CUBLAS: "the stored algorithm belongs to another version of cuBLAS",
    FallbackCause.NO_ALGORITHM: "cuBLASLt does not offer the stored algorithm",
    FallbackCause.TYPE: "the operands are not both f16 or both bf16 on one GPU",
    FallbackCause.REDUCED_ACCUMULATION: "the program allows accumulation in f16, and entries were compared to f32",
    FallbackCause.LAYOUT: "an operand is neither row-major nor column-major without gaps, or both are column-major",
    FallbackCause.EMPTY: "a size is zero",
    FallbackCause.TOO_LARGE: "an operand has 2^31 elements or more",
    FallbackCause.RANK: "the operands do not fold into two matrices without a copy",
    FallbackCause.AUTOCAST: "autocast is on, so torch.matmul casts the operands; enable() serves what it calls",
    FallbackCause.TRANSFORM: "a transform, a mode, a tracer or a subclass is in play, which has rules for torch.matmul alone",
    FallbackCause.BIAS: "what is added is scaled, or is no row of N elements of the operands' type",
    FallbackCause.OUTPUT: "the output is not a packed row-major matrix of its own",
    FallbackCause.UNALIGNED: "an operand does not begin at a multiple of 256 bytes, as kernels were verified",
    FallbackCause.DETERMINISTIC: "the program asks for deterministic algorithms",
    FallbackCause.BUILDING: "the kernel is being built in the background",
    FallbackCause.BUILD_FAILED: "the kernel could not be built",
    FallbackCause.UNUSABLE: "the built kernel is damaged or could not be loaded",
    FallbackCause.CAPTURING: "a CUDA graph was captured before the kernel was ready",
    FallbackCause.LAUNCH_FAILED: "the driver refused a launch of the kernel",
}


class GpuIdentity(Record):
    """The GPU that decisions are made for, named as measurements name it. `gpu`: such as `H200`. `driver`: its version.

    `arch`: None where no kernel can target it. `cublas`: version of the cuBLASLt that this process has loaded; empty
    where it can run no stored algorithm. `nvrtc`: version of the NVRTC that builds kernels here; empty where there is none, and
    kernels that were built before are launched.
    """

    gpu: str
    driver: str
    arch: Arch | None
    sms: int
    cublas: str = ""
    nvrtc: str = ""

    def measured(self, environment: str) -> FallbackCause | None:
        """Whether an `Environment.key` is of this GPU and driver; None if it is, else what differs."""
        gpu, driver = gpu_and_driver(environment)
        if not driver or gpu != self.gpu:
            return FallbackCause.OTHER_GPU
        return None if driver == self.driver else FallbackCause.OTHER_DRIVER

    def compiled(self, environment: str) -> FallbackCause | None:
        """Whether the NVRTC of an `Environment.key` builds kernels here. Where either is not known, it is taken for equal."""
        nvrtc = nvrtc_in(environment)
        return None if nvrtc == self.nvrtc or not nvrtc or not self.nvrtc else FallbackCause.OTHER_NVRTC


def gpu_and_driver(environment: str) -> tuple[str, str]:
    """The GPU and the driver of an `Environment.key`; the driver is empty where it names none."""
    gpu, _, rest = environment.partition(" driver-")
    return gpu, rest.partition(" toolkit-")[0]


class Choice(StrEnum):
    """In the order in which they are tried. The heuristic is cuBLASLt's; under PyTorch its own kernel takes that part."""

    EXACT = "exact"
    PADDED_M = "padded-m"
    AUTOTUNED = "autotuned"
    HEURISTIC = "heuristic"

    @classmethod
    def _missing_(cls, value: object) -> "Choice | None":
        """Records of earlier versions have `compatible` for a padded M."""
        return cls.PADDED_M if value == "compatible" else None


class Decision(Record):
    """`entry`: the library's, as it is there. `task`: what it is launched for, of a smaller M than its own for `PADDED_M`.
    `m_range`: the range of the entry in which that M lies, where one was measured.

    Both are set for `EXACT` and `PADDED_M`. `algorithm`: the stored cuBLASLt algorithm of `AUTOTUNED`. `cause`: why no exact
    entry is chosen; None for `EXACT`.
    """

    choice: Choice
    entry: LibraryEntry | None = None
    task: GemmTask | None = None
    m_range: MRange | None = None
    algorithm: StoredAlgorithm | None = None
    cause: FallbackCause | None = None

    @property
    def reason(self) -> str:
        """The decision in a sentence."""
        if self.choice is Choice.EXACT and self.entry is not None:
            speedup = self.entry.evaluation.speedup
            return f"the entry was measured at {speedup.ratio:.3f} ({speedup.low:.3f} to {speedup.high:.3f}) of AutoTuning"
        why = self.cause.sentence if self.cause is not None else "nothing better is known"
        if self.m_range is not None and self.entry is not None:
            span = f"M from {self.m_range.smallest} to {self.entry.task.m}"
            return f"{why}; the entry of {self.entry.task.shape} serves {span}, as was measured"
        if self.choice is Choice.PADDED_M and self.entry is not None:
            return f"{why}; the entry of {self.entry.task.shape} serves it with a padded M, as the measured rule allows"
        return why if self.algorithm is None else f"{why}; the stored algorithm of cuBLASLt is run: {self.algorithm.words}"
