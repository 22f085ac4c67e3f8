"""What the profiler and its child process exchange: a request in one file, one JSON line per stage in another."""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.module_task import Task

Stage = Literal["start", "load", "warm-up", "count", "done"]


class LibraryKernel(Record):
    """An algorithm that cuBLASLt suggests for a task. `detail`: its configuration in words, as a baseline is recorded."""

    detail: str


Subject = Built | LibraryKernel


class ProfileRequest(Record):
    """Run this candidate, or cuBLASLt's kernel, once to warm up and once to be counted. `limit_s`: wall-clock limit, after
    which the process ends itself.
    """

    subject: Subject
    task: Task
    device: int
    seed: int
    limit_s: float


class StageReport(Record):
    """The stage that was reached. `fault`: whose failure ended it there: the candidate's, the device's or the machine's."""

    stage: Stage
    fault: Literal["candidate", "device", "machine"] | None = None
    message: str = ""


def write_report(path: Path, report: StageReport) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(report.model_dump_json() + "\n")


def last_report(text: str) -> StageReport | None:
    """The last whole line; None where the process reported nothing, or nothing valid."""
    for line in reversed(text.split("\n")[:-1]):
        try:
            return StageReport.model_validate_json(line)
        except ValidationError:
            continue
    return None
