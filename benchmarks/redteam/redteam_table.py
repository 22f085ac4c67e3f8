"""The red team's result: rows as records, one line each for the terminal, and the whole as Markdown."""

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.harness import table
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.task import GemmTask

GOOD = frozenset({"passed", "refused", "no gain", "harmless", "not visible here"})


class RedteamRow(Record):
    """The result for one candidate. `layers`: those that may reject it; `layer`: the one that did. Unit: microseconds."""

    name: str
    group: str
    honest: bool
    blind: bool
    digest: str
    why: str
    task: GemmTask
    layers: tuple[str, ...]
    layer: str
    message: str
    verdict: str
    time_us: float | None
    honest_us: float | None
    ratio: float | None
    seconds: float


class RedteamResult(Record):
    """A run over all candidates. `seconds`: its wall-clock time, summed over resumed runs."""

    device: str
    gpu: str = ""
    commit: str
    date: str
    cores: int
    seconds: float = 0.0
    rows: tuple[RedteamRow, ...] = ()


def bad(row: RedteamRow) -> bool:
    """Whether an attack passed or a right kernel did not. Rejection by another layer counts as rejection."""
    return row.verdict not in GOOD and row.verdict != "refused elsewhere"


def short(row: RedteamRow) -> str:
    timed = f"  {row.time_us:.1f} us" if row.time_us is not None else ""
    ratio = f" of {row.honest_us:.1f}, {row.ratio:.2f}" if row.ratio is not None and row.honest_us is not None else ""
    return f"{row.verdict:17s} {row.name:52s} {row.layer}{timed}{ratio}"


def render(result: RedteamResult) -> str:
    """The result as Markdown."""
    attacks = [row for row in result.rows if not row.honest]
    right = [row for row in result.rows if row.honest]
    where = f"{result.device} ({result.gpu})" if result.gpu else result.device
    verdicts = ", ".join(f"{count} {name}" for name, count in Counter(row.verdict for row in attacks).most_common())
    refused = sum(row.verdict != "passed" for row in right)
    return "\n".join(
        (
            "# The red team",
            "",
            f"{result.date}, commit {result.commit}, {where}, {result.cores} cores, {result.seconds:.0f} s.",
            "",
            f"{len(attacks)} attacks: {verdicts}. {refused} of {len(right)} right kernels refused.",
            "",
            "- *refused*: by a layer that is there for it; *refused elsewhere*: by another one.",
            "- *no gain*: measured, and not faster than the honest kernel, where there is one beside it.",
            "- *harmless*: right, whatever it tries to do to the run.",
            "- *not visible here*: this backend has no clock, or nothing to see it with.",
            "- *not executed*: the emulator does not know something, so that no time would become a reward.",
            "- PASSED, LEAKED and ENDED THE RUN are holes.",
            "",
            "Times are in microseconds. The ratio is to the honest kernel of the same tile.",
            "",
            *_tables(result.rows),
        )
    )


def _tables(rows: Sequence[RedteamRow]) -> Iterator[str]:
    for group in dict.fromkeys(row.group for row in sorted(rows, key=lambda row: (row.honest, row.blind))):
        head = ("name", "what it does", "layers that may refuse", "outcome", "time", "ratio", "verdict")
        own = [row for row in sorted(rows, key=lambda row: row.name) if row.group == group]
        yield from (f"## {group}", "", *table(head, map(_cells, own)), "")


def _cells(row: RedteamRow) -> tuple[str, ...]:
    timed = f"{row.time_us:.1f} / {row.honest_us:.1f}" if row.time_us is not None and row.honest_us is not None else ""
    timed = timed or (f"{row.time_us:.1f}" if row.time_us is not None else "")
    ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
    name = row.name.partition("/")[2]
    layers = ", ".join(f"`{layer}`" for layer in row.layers)
    said = f"`{row.layer}`" + (f": {_cell(row.message[:140])}" if row.message else "")
    return name, _cell(row.why), layers, said, timed, ratio, row.verdict


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
