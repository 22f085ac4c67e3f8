"""Draws a result of `strong_author` as an SVG: the outcome of each reply, and the device time of the right kernels.

Run from the repository's root: python -m benchmarks.pictures.author benchmarks/results/NAME.json docs/pictures/NAME.svg
"""

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.pictures.svg import (
    BAD,
    BAND,
    FAINT,
    GOOD,
    INK,
    OTHERS,
    OURS,
    LogAxis,
    badge,
    bar,
    document,
    dot,
    line,
    main,
    text,
)
from cudal2_agent.contract.records.evaluation import AUTOTUNED

WIDTH, LEFT, RIGHT, NAMES, TOP = 900, 20, 880, 46, 84
FAILED_ROW, TIMED_ROW = 26, 64
PLOT = (330.0, 675.0)
COLUMNS = (("time, µs", 735.0), ("TFLOP/s", 795.0), ("× AutoTuning", RIGHT))
FAILURES = {
    "rejected": "rejected before compiling",
    "compile_failed": "did not compile",
    "crashed": "crashed",
    "timed_out": "did not end",
    "wrong": "compiled and ran, wrong result",
}
DESIGNS = {  # short descriptions of the replies
    "05_right": "mma.sync, nothing overlaps",
    "06_profile_guided": "+ swizzle, ring of cp.async",
    "07_better": "wgmma fed by TMA",
    "08_cluster": "+ multicast, stores by TMA, early launch",
}


def draw(result: dict[str, Any]) -> str:
    rows = list(enumerate([row for row in result["rows"] if not row["final"]], 1))
    failed, timed = ([(at, row) for at, row in rows if ("time_us" in row) is right] for right in (False, True))
    if not timed:
        raise ValueError("no reply of this result was measured; run the benchmark on a GPU")
    middle = TOP + FAILED_ROW * len(failed) + 62
    foot = middle + TIMED_ROW * len(timed) - 26
    body = [*_head(result, len(failed), len(timed))]
    body.append(text(LEFT, TOP - 8, "Mistakes, and the message that the author received", 13, bold=True))
    for place, (number, row) in enumerate(failed):
        body += _failure(number, row, TOP + FAILED_ROW * (place + 0.5))
    body += [*_plot(timed, middle, foot), *_final(result, timed, foot + 28)]
    return document(WIDTH, foot + 62, body)


def _head(result: dict[str, Any], wrong: int, right: int) -> Iterator[str]:
    task, gpu = result["task"], next(row["environment"]["gpu"] for row in result["rows"] if "environment" in row)
    shape = f"{task['m']}×{task['n']}×{task['k']}"
    title = f"A scripted author's {wrong + right} replies: {wrong} mistakes, {right} correct kernels"
    yield text(LEFT, 26, title, 16, bold=True)
    made = f"recorded replies; kernels proved and timed on one {gpu} ({result['date']})"
    yield text(LEFT, 46, f"{shape}, {task['element']} with {task['accumulate']} sums; {made}", colour=FAINT)


def _failure(number: int, row: dict[str, Any], y: float) -> Iterator[str]:
    yield badge(LEFT + 9, y, str(number), BAD)
    yield text(NAMES, y + 4, FAILURES[row["status"]])
    yield text(PLOT[0] - 50, y + 4, reason(row["message"]), colour=BAD)


def reason(message: str) -> str:
    """The core of a message, without its position in the file and its details."""
    short = re.split(r"; |, in ", re.split(r"error ?: ", message)[-1])[0]
    return re.sub(r"\d{5,}", lambda digits: f"{int(digits[0]):,}", short)


def evidence(finding: dict[str, Any]) -> str:
    """The finding's first statement, without the kernel's name."""
    return re.split(r" \(|, and ", finding["evidence"].split(": ", 1)[-1])[0]


def _plot(timed: Sequence[tuple[int, dict[str, Any]]], top: float, foot: float) -> Iterator[str]:
    """The distance of each kernel from AutoTuning, and between two kernels the finding about the first."""
    auto_us = statistics.median(row["baselines_us"][AUTOTUNED] for _, row in timed)
    times = [row["time_us"] for _, row in timed]
    axis = LogAxis(min(*times, auto_us) / 1.25, max(times) * 1.1, *PLOT)
    yield text(LEFT, top - 24, "Correct kernels: device time, log scale", 13, bold=True)
    yield from axis.grid(top, foot, " µs")
    yield from (text(x, top - 5, name, 11, "end", FAINT) for name, x in COLUMNS)
    yield line(axis.x(auto_us), top - 18, axis.x(auto_us), foot, INK, 1.5, dash=True)
    yield text(axis.x(auto_us) - 6, top - 24, f"cuBLASLt-AutoTuning, {auto_us:.1f} µs")
    for place, (number, row) in enumerate(timed):
        y = top + TIMED_ROW * place + 18
        yield from _kernel(number, row, axis, auto_us, y)
        if place + 1 < len(timed) and row["findings"]:
            yield from _finding(row["diagnosis"], row["findings"][0], y + TIMED_ROW / 2)


def _kernel(number: int, row: dict[str, Any], axis: LogAxis, auto_us: float, y: float) -> Iterator[str]:
    yield badge(LEFT + 9, y, str(number), GOOD)
    yield text(NAMES, y + 4, DESIGNS.get(row["reply"], row["reply"]))
    yield line(axis.x(auto_us), y, axis.x(row["time_us"]), y, OURS, 5)
    yield dot(axis.x(row["time_us"]), y, 6, OURS, "white")
    cells = (f"{row['time_us']:.1f}", f"{row['tflops']:.0f}", f"{row['speedup'][AUTOTUNED][0]:.2f}×")
    for words, (_, x) in zip(cells, COLUMNS, strict=True):
        yield text(x, y + 5, words, 14, "end", bold=True)


def _finding(basis: str, finding: dict[str, Any], y: float) -> Iterator[str]:
    yield bar(NAMES - 8, y - 12, RIGHT - NAMES + 8, 24, BAND)
    yield f'<path d="M{LEFT + 9} {y - 15:.1f}v29m-4 -6l4 6l4 -6" fill="none" stroke="{OTHERS}" stroke-width="1.5"/>'
    yield text(NAMES, y + 4, f"{basis}: {finding['bottleneck']}", bold=True)
    yield text(PLOT[0] - 95, y + 4, evidence(finding), colour=FAINT)


def _final(result: dict[str, Any], timed: Sequence[tuple[int, dict[str, Any]]], y: float) -> Iterator[str]:
    """The final measurement of the fastest reply."""
    words = "Grey: the top finding about the kernel above, and its basis. The next prompt contained it."
    yield text(LEFT, y, words, colour=FAINT)
    number, best = min(timed, key=lambda one: one[1]["time_us"])
    for row in result["rows"]:
        if row["final"] and row["reply"] == best["reply"]:
            ratio, low, high = row["speedup"][AUTOTUNED]
            times = f"reply {number} {row['time_us']:.1f} µs, AutoTuning {row['baselines_us'][AUTOTUNED]:.1f} µs"
            words = f"Measured again in full at the end: {times}, {ratio:.3f}× (95 %: {low:.3f} to {high:.3f})."
            yield text(LEFT, y + 18, words)


if __name__ == "__main__":
    main(__doc__, lambda stored: draw(json.loads(stored)))
