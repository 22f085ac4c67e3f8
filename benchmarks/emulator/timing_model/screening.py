"""What a search loses where candidates that are predicted far behind the best measured time are not timed. Needs no GPU.

Rows of `judge` are proposed in random orders, in rounds. As in `agent/run/source_screen.py`, a candidate is left out
if its prediction exceeds a factor times the best measured time so far; the best-predicted one of a round is always timed.
Run from the repository's root: python -m benchmarks.emulator.timing_model.screening RESULTS.json ...
"""

import json
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import execute, script, table

FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0)
MIN_ROWS = 3

Kernel = tuple[float, float]  # predicted, measured


def searched(kernels: Sequence[Kernel], factor: float, round_size: int) -> tuple[float, int]:
    """The best measured time of a search over kernels in this order, and how many it left out."""
    best_us, left_out = math.inf, 0
    for begin in range(0, len(kernels), round_size):
        batch = kernels[begin : begin + round_size]
        kept_us, limit_us = min(predicted for predicted, _ in batch), factor * best_us
        timed = [measured for predicted, measured in batch if predicted <= max(limit_us, kept_us)]
        left_out += len(batch) - len(timed)
        best_us = min(best_us, *timed)
    return best_us, left_out


def simulated(shapes: Sequence[Sequence[Kernel]], factor: float, round_size: int, orders: int) -> tuple[float, float, float]:
    """The share left out, by how much the best time worsens in geometric mean over shapes, and in the worst order of any."""
    source, left_out, logarithms, worst = random.Random(1), 0, [], 0.0
    for kernels in shapes:
        losses = []
        for _ in range(orders):
            found_us, count = searched(source.sample(kernels, len(kernels)), factor, round_size)
            left_out += count
            losses.append(math.log(found_us / min(measured for _, measured in kernels)))
        logarithms.append(statistics.mean(losses))
        worst = max(worst, *losses)
    share = left_out / orders / sum(map(len, shapes))
    return share, math.exp(statistics.mean(logarithms)) - 1, math.exp(worst) - 1


def shapes_of(files: Sequence[Path]) -> list[list[Kernel]]:
    found: dict[tuple[Path, str], list[Kernel]] = {}
    for file in files:
        for row in json.loads(file.read_text())["rows"]:
            found.setdefault((file, row["shape"]), []).append((row["predicted_us"], row["time_us"]))
    return [kernels for kernels in found.values() if len(kernels) >= MIN_ROWS]


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("results", type=Path, nargs="+", help="files that `judge --out` wrote")
    parser.add_argument("--round-size", type=int, default=4)
    parser.add_argument("--orders", type=int, default=200, help="of each shape")
    options = parser.parse_args()
    shapes = shapes_of(options.results)
    print(f"{len(shapes)} shapes, {sum(map(len, shapes))} kernels\n")
    rows = []
    for factor in FACTORS:
        share, mean, worst = simulated(shapes, factor, options.round_size, options.orders)
        rows.append((factor, f"{share:.0%}", f"{mean:.3%}", f"{worst:.1%}"))
    print("\n".join(table(("factor", "not timed", "best worsens, geometric mean", "in the worst order"), rows)))
    ratios = sorted(predicted / measured for kernels in shapes for predicted, measured in kernels)
    print(f"\npredicted over measured: 95 % under {ratios[int(0.95 * len(ratios))]:.2f}, maximum {ratios[-1]:.2f}")


if __name__ == "__main__":
    execute(main)
