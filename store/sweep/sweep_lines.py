"""The lines of a sweep file: JSON, one record per line, in one zstd frame.

The header is the first line. An environment or a list of axes is declared before the first step that uses it, and numbered from
0 in its file. A run opens with its record; the baselines and steps behind it belong to it. Baselines are numbered from 0 in
their run, whose task gives the shape. So a reader keeps one run in memory.

Of a run in which a model was asked, a file also holds what it saw and said: the observation before the first step of a round,
and the exchanges before the step that they led to. A header of version 2 stands before the first such line: older versions,
which do not know them, end there and say why.
"""

from typing import Any, Literal

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.evaluation import Environment
from cudal2_agent.contract.records.trajectory import RunRecord

FORMAT: Literal["cudal2-sweep"] = "cudal2-sweep"
VERSION: Literal[1] = 1
SEEN_VERSION: Literal[2] = 2


class SweepHeader(Record):
    """`product`: the version of cudal2-agent that wrote the file."""

    format: Literal["cudal2-sweep"] = FORMAT
    version: Literal[1, 2] = VERSION
    product: str


class SweepEnvironment(Record):
    environment: Environment


class SweepAxes(Record):
    """The names of a schedule's values, in order. `family` is one of them."""

    axes: tuple[str, ...]


class SweepRun(Record):
    run: RunRecord


class SweepBaseline(Record):
    """A baseline of the run's shape in an environment. `detail`: such as the algorithm that was chosen."""

    baseline: str
    environment: int
    detail: str = ""


class SweepSeen(Record):
    """What the policy of the steps behind it saw: the whole observation, as JSON holds it."""

    seen: dict[str, Any]


class SweepExchange(Record):
    """An exchange with a model that led to the next step, or belongs to its round, as JSON holds it."""

    exchange: dict[str, Any]


class SweepTimes(Record):
    """Samples in nanoseconds. A row of `baselines` is the baseline's number, followed by its samples of the same rounds."""

    environment: int
    samples: tuple[int, ...]
    baselines: tuple[tuple[int, ...], ...] = ()


class SweepStep(Record):
    """One step. The source is whole: it repeats earlier ones, which costs about 70 bytes.

    `created_ms`: milliseconds since the start of the run. `axes`: number of the list that names the values of `schedule`.
    `evaluation`: without what `times` holds. `origin`: without the schedule. `candidate`: without the origin.
    `diagnosis`, `profile`: of runs in which a model was asked.
    """

    index: int
    round: int
    created_ms: int
    seconds_ms: dict[str, int] = {}
    reward: float | None = None
    times: SweepTimes | None = None
    axes: int | None = None
    schedule: tuple[ScheduleValue, ...] = ()
    evaluation: dict[str, Any]
    origin: dict[str, Any]
    candidate: dict[str, Any]
    diagnosis: dict[str, Any] | None = None
    profile: dict[str, Any] | None = None


SweepLine = SweepEnvironment | SweepAxes | SweepRun | SweepBaseline | SweepSeen | SweepExchange | SweepStep


def encoded(line: SweepHeader | SweepLine) -> bytes:
    """One line of JSON in UTF-8, with its line feed."""
    return line.model_dump_json(exclude_defaults=not isinstance(line, SweepHeader)).encode() + b"\n"
