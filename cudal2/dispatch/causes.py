"""Why a matrix product is not run by the library."""

from enum import StrEnum


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
    FallbackCause.BIAS: "no entry adds a bias",
    FallbackCause.OUTPUT: "the output is not a packed row-major matrix",
    FallbackCause.UNALIGNED: "an operand does not begin at a multiple of 256 bytes, as kernels were verified",
    FallbackCause.DETERMINISTIC: "the program asks for deterministic algorithms",
    FallbackCause.BUILDING: "the kernel is being built in the background",
    FallbackCause.BUILD_FAILED: "the kernel could not be built",
    FallbackCause.UNUSABLE: "the built kernel is damaged or could not be loaded",
    FallbackCause.CAPTURING: "a CUDA graph was captured before the kernel was ready",
    FallbackCause.LAUNCH_FAILED: "the driver refused a launch of the kernel",
}
