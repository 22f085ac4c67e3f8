"""Figures of many rows: by level, by class of operation, and what failed."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from benchmarks.harness import shown, table
from benchmarks.modules.rows import Row, geometric_mean
from cudal2_agent.contract.records.evaluation import EAGER
from cudal2_agent.contract.reward.speedup import served_ratio


def served(row: Row) -> float | None:
    """Speedup over the fastest baseline of what a user gets: 1.00 where nothing is faster; None without a baseline's time."""
    if row["status"] != "measured":
        return 1.0
    return None if row.get("speedup") is None else served_ratio(row["speedup"][0], row["speedup"][0])


def over_eager(row: Row) -> float | None:
    """Speedup over eager of what a user gets; None where one of the two was not measured."""
    eager = row.get("baselines", {}).get(EAGER)
    if eager is None or row.get("speedup") is None:
        return None
    return served_ratio(eager["speedup"][0], row["speedup"][0])


def _figures(rows: Sequence[Row]) -> list[object]:
    counted = [row for row in rows if row.get("soundness") in (None, "sound")]
    measured = [row for row in counted if row["status"] == "measured" and row.get("speedup")]
    faster = [row for row in measured if row["speedup"][1] > 1]
    slower = [row for row in measured if row["speedup"][2] < 1]
    eager = [each for row in measured if (each := over_eager(row)) is not None]
    ours = [row["baselines"][EAGER]["speedup"][0] for row in measured if EAGER in row["baselines"]]
    return [
        len(rows),
        len(measured),
        len(faster),
        len(slower),
        shown(geometric_mean([each for row in counted if (each := served(row)) is not None])),
        shown(geometric_mean([row["speedup"][0] for row in measured])),
        shown(statistics.median(ours) if ours else None, ".2f"),
        shown(statistics.median(eager) if eager else None, ".2f"),
    ]


def summary(rows: Sequence[Row], asked: int) -> str:
    """Tables in Markdown. `asked`: tasks that were to be measured."""
    lines = [f"{len(rows)} of {asked} tasks have a row.", ""]
    head = (
        "tasks measured wholly-faster wholly-slower geomean-over-fastest(nothing-better=1.00) geomean-of-kernels "
        "median-over-eager(kernel) median-over-eager(served)"
    )
    columns = [each.replace("-", " ") for each in head.split()]
    lines += table(["level", *columns], ([name, *_figures(found)] for name, found in _by(rows, lambda row: row["level"])))
    lines += [
        "",
        *table(["class", *columns], ([name, *_figures(found)] for name, found in _by(rows, lambda row: row["class"]))),
    ]
    statuses = Counter((row["level"], row["status"]) for row in rows)
    lines += ["", *table(["level", "status", "tasks"], ([*key, count] for key, count in sorted(statuses.items())))]
    return "\n".join(lines) + "\n"


def _by(rows: Iterable[Row], key: Callable[[Row], object]) -> list[tuple[object, list[Row]]]:
    found: dict[object, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return [("all", list(rows)), *sorted(found.items(), key=lambda each: str(each[0]))]
