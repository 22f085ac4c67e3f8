"""Slices of the settings that parts take; pydantic only, so that a bare GPU worker can import them."""

from typing import Annotated, Literal

from pydantic import Field

from contract.base import Record


class CompileOptions(Record):
    """Limits of one compilation in a child process."""

    cache_dir: str
    jobs: Annotated[int, Field(ge=1, le=256)] = 2
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    memory_bytes: int = 8 * 1024**3
    max_output_bytes: int = 256 * 1024**2
    nvcc: str | None = None


class VerifyOptions(Record):
    """`rounds`: repeated runs on fresh data (tier 5). `error_ratio`: error allowed against cuBLAS's own (tier 2)."""

    seed: int = 0
    rounds: Annotated[int, Field(ge=1)] = 3
    error_ratio: float = 2.0
    timeout_s: Annotated[float, Field(gt=0)] = 30.0


class TimeOptions(Record):
    """`rounds`: paired rounds in random order. `all_baselines`: all four, else only the autotuned one; `side`: side figures."""

    seed: int = 0
    rounds: Annotated[int, Field(ge=3)] = 11
    round_us: float = 4000.0
    all_baselines: bool = True
    side: bool = True
    server_interval_us: float = 200.0
    server_launches: int = 200
    timeout_s: Annotated[float, Field(gt=0)] = 120.0


class WorkerOptions(Record):
    """A worker process of one GPU. Its address space has no limit: CUDA maps far more than it uses."""

    device: int = 0
    start_timeout_s: float = 120.0
    scratch_dir: str | None = None
    python: str | None = None


Effort = Literal["quick", "full"]
