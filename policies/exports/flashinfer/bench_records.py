"""The records of flashinfer-bench's data sets, as far as this project writes them. Fields are named as that package reads them.

A field that is None is left out of the file.
"""

from typing import Literal

from cudal2_agent.contract.base import Record


class BenchAxis(Record):
    """A size of a tensor: `const` with its value, or `var`."""

    type: Literal["const", "var"]
    value: int | None = None


BenchType = Literal["float16", "bfloat16"]


class BenchTensor(Record):
    """A tensor: the names of its axes, and the type of its elements."""

    shape: tuple[str, ...]
    dtype: BenchType


class BenchDefinition(Record):
    """What is computed. `reference`: Python source of a function `run` over the inputs."""

    name: str
    op_type: Literal["gemm"] = "gemm"
    axes: dict[str, BenchAxis]
    inputs: dict[str, BenchTensor]
    outputs: dict[str, BenchTensor]
    reference: str
    tags: tuple[str, ...]
    description: str


class BenchInput(Record):
    """An input that is drawn at random."""

    type: Literal["random"] = "random"


class BenchWorkload(Record):
    """The values of the variable axes."""

    axes: dict[str, int]
    inputs: dict[str, BenchInput]
    uuid: str


class BenchSource(Record):
    path: str
    content: str


class BenchBuild(Record):
    """How a solution is built and called. `entry_point`: `<file>::<function>`."""

    language: Literal["cuda"] = "cuda"
    target_hardware: tuple[str, ...]
    entry_point: str
    dependencies: tuple[str, ...] = ()
    destination_passing_style: Literal[True] = True
    binding: Literal["tvm-ffi"] = "tvm-ffi"


class BenchSolution(Record):
    """An implementation of a definition."""

    name: str
    definition: str
    author: str
    spec: BenchBuild
    sources: tuple[BenchSource, ...]
    description: str


class BenchCorrectness(Record):
    """Errors of the outputs. `extra`: what this project records instead of the largest errors."""

    max_relative_error: float | None = None
    max_absolute_error: float | None = None
    extra: dict[str, float | str | dict[str, float]]


class BenchPerformance(Record):
    """Times in milliseconds. `reference_latency_ms`, `speedup_factor`: over cuBLASLt-AutoTuning; None where not measured."""

    latency_ms: float
    reference_latency_ms: float | None = None
    speedup_factor: float | None = None


class BenchEnvironment(Record):
    """Where a solution ran. `libs`: versions by name."""

    hardware: str
    libs: dict[str, str]


BenchStatus = Literal["PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT"]


class BenchEvaluation(Record):
    """The outcome of a solution on a workload. `timestamp`: ISO 8601."""

    status: BenchStatus
    environment: BenchEnvironment
    timestamp: str
    log: str
    correctness: BenchCorrectness | None = None
    performance: BenchPerformance | None = None


class BenchTrace(Record):
    """A workload of a definition; with a solution and its evaluation where one ran."""

    definition: str
    workload: BenchWorkload
    solution: str | None = None
    evaluation: BenchEvaluation | None = None
