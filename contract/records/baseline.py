"""A tuned baseline: the algorithm that a library was found to be fastest with, kept for the next measurement."""

from typing import Protocol

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.task import GemmTask


class TunedBaseline(Record):
    """cuBLASLt's best algorithm for one task in one environment.

    `algorithm`: the library's opaque algorithm record as hexadecimal digits, valid for the cuBLAS of `environment` only.
    `layout`: of the operands that it multiplies. `detail`: its configuration in words. `suggestions`: how many were timed.
    `time_us`: the median when it was tuned, which no speedup is computed from.
    """

    task: GemmTask
    environment: str
    layout: str
    algorithm: str
    detail: str
    suggestions: int
    time_us: float


class BaselineBook(Protocol):
    """Tuned baselines by task and `Environment.key`. Thread-safe; the last one kept wins."""

    def tuned(self, task: GemmTask, environment: str) -> TunedBaseline | None: ...
    def keep(self, baseline: TunedBaseline) -> None: ...
