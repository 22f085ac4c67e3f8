"""Draws what other algorithms of cuBLASLt gain over torch.mm, one dot per product, by the pass of a linear layer.

Run from the repository's root:
python -m benchmarks.pictures.tuned benchmarks/h200/rows/tuned-2026-11-23.jsonl docs/pictures/h200_tuned.svg
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.pictures.svg import FAINT, OTHERS, OURS, LogAxis, document, dot, line, main, text
from cudal2_agent.contract.errors import UsageError

PASSES = (("tn", "forward"), ("nn", "dX"), ("nt", "dW"))
WIDTH, LEFT, PANEL, GAP, TOP, PLOT = 860, 62, 240, 28, 92, 210
TICKS = (1.0, 1.1, 1.2, 1.3)
LOW, HIGH = 0.93, 1.38  # of the speedup


def draw(result: str) -> str:
    """A plot per layout. Raises: UsageError where a layout has no product."""
    rows = [row for row in map(json.loads, result.splitlines()) if row["speedup"]]
    times = [row["torch_us"] for row in rows]
    body = [text(LEFT, 22, "What cuBLASLt suggests, over torch.mm, for products of transformer blocks", 14)]
    body += [dot(LEFT + 5, 44, 4, OURS), text(LEFT + 16, 48, "kept: its whole interval beats torch.mm")]
    body += [dot(LEFT + 275, 44, 4, OTHERS), text(LEFT + 286, 48, "left to PyTorch")]
    for number, (layout, of_pass) in enumerate(PASSES):
        own = [row for row in rows if row["task"]["layout"] == layout]
        if not own:
            raise UsageError(f"there is no product of layout {layout} to draw; run `cudal2-agent library tune`")
        left = LEFT + number * (PANEL + GAP)
        body += _panel(own, f"{of_pass} ({layout})", LogAxis(min(times) * 0.8, max(times) * 1.25, left, left + PANEL))
    body.append(text(LEFT + 1.5 * PANEL + GAP, TOP + PLOT + 36, "time of torch.mm", 11, "middle"))
    return document(WIDTH, TOP + PLOT + 48, body)


def _panel(rows: Sequence[dict[str, Any]], title: str, axis: LogAxis) -> Iterator[str]:
    kept = [row for row in rows if row["faster"]]
    yield text(axis.left, TOP - 14, f"{title}: {len(kept)} of {len(rows)} kept", 12, bold=True)
    for tick in TICKS:
        yield line(axis.left, _y(tick), axis.right, _y(tick), dash=tick > 1)
        yield text(axis.left - 6, _y(tick) + 4, f"{tick:g}x", 11, "end", FAINT)
    for tick in (10.0, 100.0, 1000.0):
        if axis.low <= tick <= axis.high:
            yield text(axis.x(tick), TOP + PLOT + 16, f"{tick:g} µs", 11, "middle", FAINT)
    for row in sorted(rows, key=lambda row: bool(row["faster"])):
        colour = OURS if row["faster"] else OTHERS
        yield dot(axis.x(row["torch_us"]), _y(row["speedup"]["ratio"]), 4, colour, "white")


def _y(speedup: float) -> float:
    return TOP + PLOT * (HIGH - speedup) / (HIGH - LOW)


if __name__ == "__main__":
    main(__doc__, draw)
