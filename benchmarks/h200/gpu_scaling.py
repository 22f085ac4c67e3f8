"""Campaigns on different numbers of GPUs beside each other: shapes per hour, candidates per second, how busy the GPUs were.

Run from the repository's root: python -m benchmarks.h200.gpu_scaling 1=ROWS 2=ROWS 4=ROWS
ROWS: the rows of one campaign on so many GPUs, as FILE or FILE@COMMIT (`campaign results --name NAME --out FILE`).

The time of a campaign is that in which a search was in progress, by the end and the duration of each. Pauses do not count, nor
does the start of the workers. Busy is the share of this time in which a GPU verified and timed. Give each campaign
the same shapes, and a home of its own, so that none finds the compile cache of another.
"""

import argparse
from collections.abc import Iterator, Sequence

from benchmarks.h200.stability import read_rows
from cudal2_agent.agent.campaign.overview import cost_of
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.campaign import ShapeResult


class Rates(Record):
    """What one campaign reached. Memory and host time are None in rows that lack them."""

    gpus: int
    shapes: int
    hours: float
    candidates_per_s: float
    busy: float
    gpu_s: float
    host_cpu_s: float | None
    campaign_mib: float | None

    @property
    def shapes_per_hour(self) -> float:
        return self.shapes / self.hours


def rates_of(gpus: int, rows: Sequence[ShapeResult]) -> Rates:
    """Raises: UsageError where no search took time, or where GPUs seem busier than they can be."""
    worked_s = _worked_s(rows)
    if not worked_s:
        raise UsageError("the rows have no durations; name rows that `campaign results` wrote")
    cost = cost_of(rows)
    busy = sum(row.gpu_seconds for row in rows) / (gpus * worked_s)
    if busy > 1:
        raise UsageError(
            f"{gpus} GPUs were not busy for {busy:.0%} of the time; the rows are of more GPUs or of several campaigns"
        )
    return Rates(
        gpus=gpus,
        shapes=len(rows),
        hours=worked_s / 3600,
        candidates_per_s=sum(row.candidates for row in rows) / worked_s,
        busy=busy,
        gpu_s=busy * gpus * worked_s / len(rows),
        host_cpu_s=cost.host_cpu_s,
        campaign_mib=cost.campaign_peak_mib,
    )


def table(campaigns: Sequence[Rates]) -> Iterator[str]:
    """Markdown, a line per campaign. The rate per GPU is compared with that of the smallest number of GPUs."""
    yield "| GPUs | shapes | shapes/h | per GPU, relative | candidates/s | busy | GPU s/shape | host CPU s/shape | memory |"
    yield "|---" * 9 + "|"
    ordered = sorted(campaigns, key=lambda one: one.gpus)
    for one in ordered:
        relative = one.shapes_per_hour / one.gpus / (ordered[0].shapes_per_hour / ordered[0].gpus)
        host = "—" if one.host_cpu_s is None else f"{one.host_cpu_s:.0f}"
        memory = "—" if one.campaign_mib is None else f"{one.campaign_mib / 1024:.1f} GiB"
        rates = f"{one.shapes_per_hour:.0f} | {relative:.2f} | {one.candidates_per_s:.1f} | {one.busy:.0%} | {one.gpu_s:.1f}"
        yield f"| {one.gpus} | {one.shapes} | {rates} | {host} | {memory} |"


def _worked_s(rows: Sequence[ShapeResult]) -> float:
    """Seconds in which at least one search was in progress."""
    worked_s = end_s = 0.0
    for begin_s, finish_s in sorted((row.finished_at.timestamp() - row.seconds, row.finished_at.timestamp()) for row in rows):
        worked_s += max(finish_s - max(begin_s, end_s), 0.0)
        end_s = max(end_s, finish_s)
    return worked_s


def _parsed(word: str) -> Rates:
    """Raises: UsageError."""
    gpus, _, rows = word.partition("=")
    if not gpus.isdigit() or not int(gpus) or not rows:
        raise UsageError(f"{word!r} names no campaign; write the number of its GPUs and its rows, such as 2=rows.jsonl.gz")
    return rates_of(int(gpus), read_rows(rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.h200.gpu_scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaigns", nargs="+", metavar="GPUS=ROWS")
    print("\n".join(table([_parsed(word) for word in parser.parse_args().campaigns])))


if __name__ == "__main__":
    main()
