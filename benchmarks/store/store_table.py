"""What was measured of a store, and its table."""

from cudal2_agent.contract.base import Record

MAX_LIST_S = 1.0
MAX_BYTES_PER_STEP = 2048
MAX_APART = 0.15  # invented steps have the sources of today, which are longer than those of the measured runs


class Resemblance(Record):
    """Whether invented steps cost what measured ones cost, in stores of `steps` steps each."""

    steps: int
    real_bytes_per_step: float
    invented_bytes_per_step: float

    @property
    def apart(self) -> float:
        return abs(self.invented_bytes_per_step / self.real_bytes_per_step - 1)


class WritingFigures(Record):
    """Rates of one process. `batched`: a run per transaction. `durable`: each step is durable before the next."""

    batched_steps_per_s: float
    durable_steps_per_s: float
    peak_bytes: int


class ReadingFigures(Record):
    step_counts_s: float
    runs_s: float


class CommandFigures(Record):
    """A command in a process of its own. `error`: its last line on stderr, where it failed."""

    arguments: str
    seconds: float
    peak_bytes: int
    out_bytes: int
    lines: int
    error: str = ""


class StoreResult(Record):
    """`filled_steps` were added in `fill_seconds` by all processes together, their invention included.

    `exported_steps`: those that each of the export commands wrote.
    """

    command: str
    commit: str
    date: str
    machine: str
    python: str
    packages: dict[str, str]
    steps: int
    runs: int
    processes: int
    file_bytes: int
    filled_steps: int
    fill_seconds: float
    fill_peak_bytes: int
    resemblance: Resemblance
    writing: WritingFigures
    reading: ReadingFigures
    commands: tuple[CommandFigures, ...]
    exported_steps: int

    @property
    def bytes_per_step(self) -> float:
        return self.file_bytes / self.steps


def render(result: StoreResult) -> str:
    """The table, in Markdown."""
    rows = [
        ("steps in runs", f"{result.steps:,} in {result.runs:,}"),
        ("size", f"{result.file_bytes / 1e9:.3f} GB, {result.bytes_per_step:.0f} B per step"),
        (
            f"bytes per step in stores of {result.resemblance.steps} steps",
            f"{result.resemblance.real_bytes_per_step:.0f} measured, {result.resemblance.invented_bytes_per_step:.0f} invented",
        ),
        *_filling(result),
        ("one process, a run per transaction", _rate(result.writing.batched_steps_per_s)),
        ("one process, each step durable", _rate(result.writing.durable_steps_per_s)),
        ("`Store.step_counts`", f"{result.reading.step_counts_s:.2f} s"),
        ("`Store.runs`", f"{result.reading.runs_s:.2f} s"),
        *((f"`{one.arguments}`", _command(one, result.exported_steps)) for one in result.commands),
    ]
    head = f"{result.machine}, Python {result.python}, commit {result.commit}, {result.date}.\n\n| | |\n|---|---|\n"
    return head + "".join(f"| {name} | {value} |\n" for name, value in rows)


def _filling(result: StoreResult) -> list[tuple[str, str]]:
    if not result.filled_steps:
        return []
    rate = f"{_rate(result.filled_steps / result.fill_seconds)}; at most {_megabytes(result.fill_peak_bytes)} each"
    return [(f"filled by {result.processes} processes, invention included", rate)]


def misses(result: StoreResult) -> list[str]:
    """The targets that were missed."""
    found = [f"`{one.arguments}` failed: {one.error}" for one in result.commands if one.error]
    if result.bytes_per_step > MAX_BYTES_PER_STEP:
        found.append(f"{result.bytes_per_step:.0f} B per step")
    if result.resemblance.apart > MAX_APART:
        found.append(f"invented steps differ by {result.resemblance.apart:.0%} from measured ones")
    lists = [one for one in result.commands if " export" not in one.arguments]
    return found + [f"`{one.arguments}` takes {one.seconds:.2f} s" for one in lists if one.seconds > MAX_LIST_S]


def _command(one: CommandFigures, steps: int) -> str:
    if one.error:
        return f"failed: {one.error}"
    time = f"{one.seconds:.2f} s, {_megabytes(one.peak_bytes)}"
    if " export" not in one.arguments:
        return time
    return f"{time}; {steps / one.seconds:.0f} steps per second, {one.out_bytes / steps:.0f} B per step"


def _rate(per_second: float) -> str:
    return f"{per_second:.0f} steps per second"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
