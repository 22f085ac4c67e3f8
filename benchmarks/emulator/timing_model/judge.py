"""Compares predictions with the times that `measure` wrote. Needs no GPU.

Run from the repository's root:
    python -m benchmarks.emulator.timing_model.judge ROWS.jsonl [--drawn DRAWN.json] [--out FILE.json]
for free sources:
    python -m benchmarks.emulator.timing_model.judge ROWS.jsonl --free [--extra FOLDER] [--out FILE.json]
or, for steps of a sweep:
    python -m benchmarks.emulator.timing_model.judge --store trajectories.sqlite [--out FILE.json]
"""

import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.emulator.timing_model.draw import DRAWN
from benchmarks.emulator.timing_model.predicting import prepared, spearman
from benchmarks.emulator.timing_model.sources import TimedKernel, free, rows_by_name, scheduled, stored
from benchmarks.harness import cache_argument, execute, script, table
from cudal2_agent.store.store import open_store

Row = dict[str, Any]


def judged_rows(judged: Sequence[TimedKernel], measured: dict[str, Row], cache: Path, jobs: int, repeats: int) -> Iterator[Row]:
    """A row for each kernel that was timed, with its prediction and the CPU seconds that it took."""
    timed = [each for each in judged if measured.get(each.name, {}).get("time_us")]
    for position, kernel in prepared([(each.candidate, each.task) for each in timed], cache, jobs, repeats):
        begin = time.thread_time()
        predicted = kernel.predicted()
        seconds = sum(kernel.seconds) + time.thread_time() - begin
        row = measured[timed[position].name]
        yield {
            **row,
            "predicted_us": round(predicted.predicted_us, 3),
            "predicted_plain_us": round(predicted.plain_us, 3),
            "terms": {name: round(value, 3) for name, value in predicted.terms.items()},
            "whole": all(each.whole for each in kernel.traced),
            "cpu_seconds": round(seconds, 4),
        }


def error(row: Row) -> float:
    return abs(float(row["predicted_us"]) / float(row["time_us"]) - 1)


def by_shape(rows: Sequence[Row]) -> str:
    """Markdown: correlation and error of each shape, then of all."""
    groups = {shape: [row for row in rows if row["shape"] == shape] for shape in dict.fromkeys(row["shape"] for row in rows)}
    ordered = sorted(groups.items(), key=lambda item: min(row["time_us"] for row in item[1]))
    cells = [(shape, *_figures(group)) for shape, group in (*ordered, ("all", rows))]
    lines = list(table(("shape", "kernels", "measured, us", "Spearman", "median error"), cells))
    means = [_spearman(group) for group in groups.values() if len(group) > 2]
    if means:
        least = sum(each >= 0.85 for each in means)
        lines.append(f"\nSpearman of a shape: mean {statistics.mean(means):.3f}, at least 0.85 on {least} of {len(means)}.")
    seconds = [row["cpu_seconds"] for row in rows]
    lines.append(f"CPU seconds per kernel: median {statistics.median(seconds):.3f}, maximum {max(seconds):.3f}.")
    return "\n".join(lines)


def _spearman(rows: Sequence[Row]) -> float:
    return spearman([row["predicted_us"] for row in rows], [row["time_us"] for row in rows])


def _figures(rows: Sequence[Row]) -> tuple[object, ...]:
    times = [row["time_us"] for row in rows]
    span = f"{min(times):.2f} to {max(times):.2f}"
    return len(rows), span, f"{_spearman(rows):.2f}", f"{statistics.median(map(error, rows)):.1%}"


def kernels(rows: Sequence[Row]) -> str:
    """Markdown: every kernel, by its measured time."""
    lines = []
    for row in sorted(rows, key=lambda row: (row["shape"], row["time_us"])):
        largest = sorted(row["terms"].items(), key=lambda term: -term[1])[:2]
        told = ", ".join(f"{name} {value:.2f}" for name, value in largest)
        lines.append((row["name"], f"{row['time_us']:.2f}", f"{row['predicted_us']:.2f}", told))
    return "\n".join(table(("kernel", "measured", "predicted", "largest alone"), lines))


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("rows", type=Path, nargs="?")
    parser.add_argument("--store", type=Path, help="a store with steps of the shapes of store_shapes.json, instead of rows")
    parser.add_argument("--drawn", type=Path, default=DRAWN, help="the drawn schedules that the rows are of")
    parser.add_argument("--free", action="store_true", help="the rows are of free sources")
    parser.add_argument("--extra", type=Path, help="folder of the sources that lie outside the repository")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        help="traces of each kernel, the fastest of which counts; 3 where the machine is shared",
    )
    cache_argument(parser, "timing-model")
    options = parser.parse_args()
    if (options.rows is None) == (options.store is None):
        parser.error("give either ROWS.jsonl or --store")
    if options.repeats < 1:
        parser.error("--repeats: at least 1")
    if options.store:
        with open_store(f"sqlite:///{options.store.absolute()}") as store:
            pairs = list(stored(store))
        judged, measured = [kernel for kernel, _ in pairs], {kernel.name: row for kernel, row in pairs}
    else:
        measured = rows_by_name(options.rows)
        judged = list(free(options.extra) if options.free else scheduled(options.drawn))
    rows = list(judged_rows(judged, measured, options.cache, options.jobs, options.repeats))
    print(by_shape(rows))
    if options.free:
        print(f"\n{kernels(rows)}")
    if options.out:
        lines = ",\n".join(json.dumps(row) for row in sorted(rows, key=lambda row: (row["shape"], row["time_us"])))
        options.out.write_text(f'{{"benchmark": "timing_model", "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    execute(main)
