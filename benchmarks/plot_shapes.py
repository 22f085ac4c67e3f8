"""Draws a result of `optimize_shapes` as an SVG: speedup over each baseline, a group of bars a shape.

Run from the repository's root: python -m benchmarks.plot_shapes benchmarks/results/NAME.json docs/NAME.svg
"""

import argparse
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from contract.evaluation import BASELINES

COLOURS = ("#9aa5b1", "#6b8fb5", "#3d6fa5", "#d1662b")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 380, 56, 56, 54
TEXT = 'font-family="sans-serif" fill="#222"'


def draw(result: dict[str, Any]) -> str:
    rows = [row for row in result["rows"] if row["status"] == "measured"]
    most = max(value[0] for row in rows for value in row["speedup"].values()) * 1.08
    plot_height = HEIGHT - TOP - BOTTOM

    def y(speedup: float) -> float:
        return TOP + plot_height * float(1 - speedup / most)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">']
    parts += [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *_legend(rows, result), *_grid(most, y)]
    group = (WIDTH - LEFT - 20) / len(rows)
    for number, row in enumerate(rows):
        parts += _bars(row, LEFT + number * group, group, y)
    return "\n".join([*parts, "</svg>\n"])


def _legend(rows: list[dict[str, Any]], result: dict[str, Any]) -> Iterator[str]:
    gpu = escape(rows[0]["environment"]["gpu"])
    title = f"Speedup of the best kernel found, {gpu}, offline device time, F32 accumulation ({result['date']})"
    yield f'<text x="{LEFT}" y="20" font-size="14" {TEXT}>{title}</text>'
    for number, (name, colour) in enumerate(zip(BASELINES, COLOURS, strict=True)):
        x = LEFT + number * 190
        yield f'<rect x="{x}" y="30" width="11" height="11" fill="{colour}"/>'
        yield f'<text x="{x + 16}" y="40" font-size="12" {TEXT}>over {name}</text>'


def _grid(most: float, y: Any) -> Iterator[str]:
    for quarter in range(int(most * 4) + 1):
        speedup = quarter / 4
        strong = speedup == 1
        yield (
            f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(speedup):.1f}" y2="{y(speedup):.1f}" '
            f'stroke="{"#222" if strong else "#ddd"}" stroke-width="{1.5 if strong else 1}"/>'
        )
        yield f'<text x="{LEFT - 8}" y="{y(speedup) + 4:.1f}" font-size="11" text-anchor="end" {TEXT}>{speedup:g}x</text>'


def _bars(row: dict[str, Any], left: float, group: float, y: Any) -> Iterator[str]:
    width = group * 0.8 / len(BASELINES)
    for number, (name, colour) in enumerate(zip(BASELINES, COLOURS, strict=True)):
        if name not in row["speedup"]:
            continue
        ratio, low, high = row["speedup"][name]
        x = left + group * 0.1 + number * width
        yield f'<rect x="{x:.1f}" y="{y(ratio):.1f}" width="{width - 2:.1f}" height="{y(0) - y(ratio):.1f}" fill="{colour}"/>'
        middle = x + width / 2 - 1
        yield f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}" stroke="#222"/>'
        if number == len(BASELINES) - 1:
            yield f'<text x="{middle:.1f}" y="{y(ratio) - 5:.1f}" font-size="11" text-anchor="middle" {TEXT}>{ratio:.2f}</text>'
    task = row["task"]
    centre = left + group / 2
    shape = f"{task['m']}×{task['n']}×{task['k']}"
    yield f'<text x="{centre:.1f}" y="{y(0) + 17:.1f}" font-size="12" text-anchor="middle" {TEXT}>{shape}</text>'
    yield f'<text x="{centre:.1f}" y="{y(0) + 33:.1f}" font-size="11" text-anchor="middle" {TEXT}>{row["time_us"]:g} µs</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    arguments.picture.write_text(draw(json.loads(arguments.result.read_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
