"""What a search finds for how much work: GPU seconds until it is near the best known, and speedup over seconds and candidates.

Run from the repository's root:
    python -m benchmarks.speed.curves [--rows FOLDER] [--steps FOLDER] [--environment KEY] [--page docs/results/speed.md]
Prints Markdown tables; `--page` writes them into a page, between its two marks.

The searches are those of the rows that count (`campaign report`), where every candidate is among the steps. How a candidate
counts, raced or only screened, is told in `searches.py`. The best known ratio of a task is the best of all its rows, so that a
task searched once is compared with itself. GPU seconds are those in which the GPU verified and timed; the first candidate's
include operands, and AutoTuning where the baseline was not kept. Before its first working kernel a search counts as 1, because
one would call the library.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

from benchmarks.harness import execute, fill, marks_of, script, shown, table, write_text
from benchmarks.speed.grid import CAMPAIGNS
from benchmarks.speed.searches import Search, read_searches
from benchmarks.speed.summary import ROWS, is_headline
from cudal2_agent.agent.campaign.report.figures import CLASS_NAMES, CLASSES, class_of, has_result, rounded
from cudal2_agent.agent.campaign.result_files import counting, read_results
from cudal2_agent.contract.records.campaign import ShapeResult
from cudal2_agent.contract.records.task import TimingMode

STEPS, CURVES = CAMPAIGNS / "steps", CAMPAIGNS / "curves.json"
MARKS = marks_of(__file__)
NEAR = 0.98  # of the best known ratio
AGAIN = "searched_again"  # shapes with several rows, whose best known need not be that of the search itself
GROUP_NAMES = {**CLASS_NAMES, "all": "all", AGAIN: "of these searched more than once"}
SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
CANDIDATES = (4, 8, 16, 24, 32, 48)


@dataclass(frozen=True)
class Followed:
    """A search whose candidates are all known. `known`: the ratios of all rows of its task, this one included."""

    row: ShapeResult
    search: Search
    known: tuple[float, ...]

    @property
    def best_known(self) -> float:
        return max(self.known)

    @cached_property
    def near_at(self) -> int | None:
        """The number of candidates after which the best was near the best known; None where it never was."""
        limit = NEAR * self.best_known
        found = (place for place, ratio in enumerate(self.search.best, 1) if ratio is not None and ratio >= limit)
        return next(found, None)

    def searched_s(self) -> float | None:
        return None if self.near_at is None else self.search.spent_s[self.near_at - 1]

    def with_race_s(self) -> float | None:
        searched_s = self.searched_s()
        return None if searched_s is None else searched_s + self.search.race_s

    def after_s(self, seconds: float) -> float | None:
        """The best ratio once so many GPU seconds were spent on screening."""
        return self.after(sum(spent <= seconds for spent in self.search.spent_s))

    def after(self, candidates: int) -> float | None:
        return self.search.best[min(candidates, len(self.search.best)) - 1] if candidates else None


def followed(rows: Sequence[ShapeResult], searches: Sequence[Search], environment: str | None = None) -> list[Followed]:
    """The searches behind the rows that count, where they were seen whole. Raises: UsageError, as `counting`."""
    counted = [row for row in counting(rows, environment) if is_headline(row) and has_result(row)]
    own = {row.environment for row in counted}
    known: dict[str, list[float]] = {}
    for row in rows:
        if row.best is not None and row.environment in own:
            known.setdefault(row.task.id, []).append(row.best.speedup.ratio)
    by_run = {search.run_id: search for search in searches}
    pairs = [(row, by_run[row.run_id]) for row in counted if row.run_id in by_run]
    return [Followed(row, search, tuple(known[row.task.id])) for row, search in pairs if search.is_whole(row)]


def curves(rows: Sequence[ShapeResult], searches: Sequence[Search], environment: str | None = None) -> dict[str, Any]:
    found = followed(rows, searches, environment)
    return {mode.value: _mode_curves([one for one in found if one.row.task.mode is mode]) for mode in TimingMode}


def tables(found: dict[str, Any]) -> Iterator[str]:
    """Markdown for each mode that has searches."""
    for mode in TimingMode:
        figures = found[mode.value]
        if figures["shapes"]:
            yield f"Mode `{mode.value}`, {figures['shapes']} searches; a final takes {figures['race_s']:.1f} GPU s:\n"
            yield from _near_table(figures)
            yield ""
            yield from _curve_table(figures["over_gpu_seconds"], "GPU s of screening")
            yield ""
            yield from _curve_table(figures["over_candidates"], "candidates")
            yield ""


def written(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1) + "\n"


def inputs_of(*folders: Path) -> dict[str, str]:
    """Hashes of the files that the figures are made from."""
    files = sorted(file for folder in folders for file in folder.iterdir() if file.suffix in (".gz", ".zst"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _mode_curves(found: Sequence[Followed]) -> dict[str, Any]:
    groups = {name: [one for one in found if class_of(one.row) == name] for name in CLASSES}
    groups |= {"all": list(found), AGAIN: [one for one in found if len(one.known) > 1]}
    return {
        "shapes": len(found),
        "race_s": rounded(mean(one.search.race_s for one in found)) if found else None,
        "near_best_known": {name: _near(members) for name, members in groups.items()},
        "over_gpu_seconds": _curve(found, SECONDS, Followed.after_s),
        "over_candidates": _curve(found, CANDIDATES, Followed.after),
    }


def _near(found: Sequence[Followed]) -> dict[str, Any]:
    """When searches came near the best known. A median is over all of them: one that never did counts as the longest."""
    near = [one for one in found if one.near_at is not None]
    searched_s, with_race_s = [one.searched_s() for one in found], [one.with_race_s() for one in found]
    return {
        "shapes": len(found),
        "near_share": rounded(len(near) / len(found)) if found else None,
        "median_gpu_s": _median(searched_s),
        "mean_gpu_s": _mean(searched_s),
        "median_gpu_s_with_race": _median(with_race_s),
        "mean_gpu_s_with_race": _mean(with_race_s),
        "median_candidates": _median([one.near_at for one in found]),
    }


def _median(values: Sequence[float | None]) -> float | None:
    """None counts as longer than all others, and is the median where it is in the middle."""
    if not values:
        return None
    middle = median(float("inf") if value is None else value for value in values)
    return None if middle == float("inf") else rounded(middle)


def _mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return rounded(mean(known)) if known else None


def _curve(
    found: Sequence[Followed], points: Sequence[float], best_at: Callable[[Followed, Any], float | None]
) -> list[dict[str, Any]]:
    """For each point the geometric mean over all searches. `with_kernel`: searches that had a working kernel then."""
    curve = []
    for point in points if found else ():
        ratios = [(best_at(one, point), one.best_known) for one in found]
        had = [(ratio, best) for ratio, best in ratios if ratio is not None]
        curve.append(
            {
                "at": point,
                "geomean": rounded(geometric_mean([1.0 if ratio is None else ratio for ratio, _ in ratios])),
                "near_share": rounded(sum(ratio >= NEAR * best for ratio, best in had) / len(found)),
                "with_kernel": len(had),
            }
        )
    return curve


def _near_table(figures: dict[str, Any]) -> Iterator[str]:
    head = ("shapes", "came within 2 %", "GPU s, median", "mean", "with the final, median", "mean", "candidates, median")
    near = {name: figures["near_best_known"][name] for name in (*CLASSES, "all", AGAIN)}
    return table(("AutoTuning takes", *head), (_near_row(name, own) for name, own in near.items() if own["shapes"]))


def _near_row(name: str, own: dict[str, Any]) -> Iterator[str]:
    yield from (GROUP_NAMES[name], str(own["shapes"]), shown(own["near_share"], ".0%"))
    for key in ("median_gpu_s", "mean_gpu_s", "median_gpu_s_with_race", "mean_gpu_s_with_race"):
        yield shown(own[key], ".2f")
    yield shown(own["median_candidates"], ".0f")


def _curve_table(curve: Sequence[dict[str, Any]], what: str) -> Iterator[str]:
    forms = {
        "geometric mean": "{geomean:.3f}",
        "within 2 % of the best known": "{near_share:.0%}",
        "with a working kernel": "{with_kernel}",
    }
    rows = ([name, *(form.format(**point) for point in curve)] for name, form in forms.items())
    return table((what, *(f"{point['at']:g}" for point in curve)), rows)


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--steps", type=Path, default=STEPS)
    parser.add_argument("--environment", help="whose rows count; needed where they come from several")
    parser.add_argument("--out", type=Path, default=CURVES)
    parser.add_argument("--page", type=Path, help="a page whose tables are replaced")
    options = parser.parse_args()
    found = curves(read_results([options.rows]), list(read_searches([options.steps])), options.environment)
    text = "".join(f"{line}\n" for line in tables(found))
    write_text(options.out, written({**found, "inputs": inputs_of(options.rows, options.steps)}))
    if options.page:
        fill(options.page, MARKS, text)
    print(text, end="")


if __name__ == "__main__":
    execute(main)
