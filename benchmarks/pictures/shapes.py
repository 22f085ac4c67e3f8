"""Draws a result of `optimize_shapes` as an SVG: speedup over each baseline, one group of bars per shape.

Run from the repository's root: python -m benchmarks.pictures.shapes benchmarks/results/NAME.json docs/pictures/NAME.svg
"""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.pictures.svg import INK, RULE, bar, document, line, main, text
from cudal2_agent.contract.records.evaluation import BASELINES

COLOURS = ("#9aa5b1", "#6b8fb5", "#3d6fa5", "#d1662b")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 380, 56, 56, 54


def draw(result: dict[str, Any]) -> str:
    rows = [row for row in result["rows"] if row["status"] == "measured"]
    maximum = max(value[0] for row in rows for value in row["speedup"].values()) * 1.08
    plot_height = HEIGHT - TOP - BOTTOM

    def y(speedup: float) -> float:
        return TOP + plot_height * float(1 - speedup / maximum)

    parts = [*_legend(rows, result), *_grid(maximum, y)]
    group = (WIDTH - LEFT - 20) / len(rows)
    for number, row in enumerate(rows):
        parts += _bars(row, LEFT + number * group, group, y)
    return document(WIDTH, HEIGHT, parts)


def _legend(rows: list[dict[str, Any]], result: dict[str, Any]) -> Iterator[str]:
    gpu = rows[0]["environment"]["gpu"]
    title = f"Speedup of the best kernel found, {gpu}, offline device time, F32 accumulation ({result['date']})"
    yield text(LEFT, 20, title, 14)
    for number, (name, colour) in enumerate(zip(BASELINES, COLOURS, strict=True)):
        x = LEFT + number * 190
        yield bar(x, 30, 11, 11, colour)
        yield text(x + 16, 40, f"over {name}")


def _grid(maximum: float, y: Any) -> Iterator[str]:
    for quarter in range(int(maximum * 4) + 1):
        speedup = quarter / 4
        strong = speedup == 1
        yield line(LEFT, y(speedup), WIDTH - 20, y(speedup), INK if strong else RULE, 1.5 if strong else 1)
        yield text(LEFT - 8, y(speedup) + 4, f"{speedup:g}x", 11, "end")


def _bars(row: dict[str, Any], left: float, group: float, y: Any) -> Iterator[str]:
    width = group * 0.8 / len(BASELINES)
    for number, (name, colour) in enumerate(zip(BASELINES, COLOURS, strict=True)):
        if name not in row["speedup"]:
            continue
        ratio, low, high = row["speedup"][name]
        x = left + group * 0.1 + number * width
        yield bar(x, y(ratio), width - 2, y(0) - y(ratio), colour)
        middle = x + width / 2 - 1
        yield line(middle, y(low), middle, y(high), INK)
        if number == len(BASELINES) - 1:
            yield text(middle, y(ratio) - 5, f"{ratio:.2f}", 11, "middle")
    task = row["task"]
    centre = left + group / 2
    shape = f"{task['m']}×{task['n']}×{task['k']}"
    yield text(centre, y(0) + 17, shape, 12, "middle")
    yield text(centre, y(0) + 33, f"{row['time_us']:g} µs", 11, "middle")


if __name__ == "__main__":
    main(__doc__, lambda stored: draw(json.loads(stored)))
