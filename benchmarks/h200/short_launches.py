"""How often a search met the shorter of the two times that a launch behind another has, by the committed steps.

Run from the repository's root: python -m benchmarks.h200.short_launches [STEPS ...]

A launch that waits for the end of the one before it takes about 0.34 µs less while another process works on the GPU
(`contract.reward.speedup.steady_speedups`). Searches share a GPU by turns. Counted are samples of AutoTuning in offline runs, where
it takes less than 12 µs, and as short those that are more than 0.22 µs below the longer time. The longer time is the median of the
upper quarter of a run's screens. The table has a line for each class of the longer time. `drop`: of the median short sample.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

from benchmarks.h200.marked_page import table_row
from benchmarks.h200.searches import SUFFIX, runs_in
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Measured
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.speedup import baseline_of

STEPS = Path(__file__).parent / "steps"
CLASSES_US = ((0.0, 4.0), (4.0, 8.0), (8.0, 12.0))
SHORTER_US = 0.22
MIN_SAMPLES = 8  # of the screens of a run that counts


def samples_of(steps: Iterable[Step], *, raced: bool) -> list[float]:
    """Samples of AutoTuning in microseconds: of screens, or of races."""
    measured = [step.evaluation for step in steps if isinstance(step.evaluation, Measured)]
    kinds = ("race", "full") if raced else ("screen",)
    timings = [baseline_of(one, AUTOTUNED) for one in measured if one.effort in kinds]
    return [sample for timing in timings if timing is not None for sample in timing.samples_us]


def longer_us(screens: list[float]) -> float:
    return median(sorted(screens)[-max(len(screens) // 4, 1) :])


def table(files: Iterable[Path]) -> Iterator[str]:
    """Markdown. Raises: UsageError."""
    screened, raced, runs = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list), defaultdict[int, int](int)
    for file in files:
        for run, steps in runs_in(file):
            screens = samples_of(steps, raced=False)
            if run.task.mode is not TimingMode.OFFLINE or len(screens) < MIN_SAMPLES:
                continue
            usual = longer_us(screens)
            place = next((place for place, (low, high) in enumerate(CLASSES_US) if low <= usual < high), None)
            if place is not None:
                runs[place] += 1
                screened[place] += [sample / usual if usual - sample > SHORTER_US else 1.0 for sample in screens]
                raced[place] += [float(usual - sample > SHORTER_US) for sample in samples_of(steps, raced=True)]
    yield table_row("AutoTuning takes", "runs", "short in screens", "drop", "short in races")
    yield "|---" * 5 + "|"
    for place, (low, high) in enumerate(CLASSES_US):
        if runs[place]:
            short = [one for one in screened[place] if one < 1]
            shares = [
                f"{100 * sum(found) / max(len(found), 1):.0f}%"
                for found in ([one < 1 for one in screened[place]], raced[place])
            ]
            drop = f"{100 * (1 - median(short)):.0f}%" if short else "-"
            yield table_row(f"{low:.0f}–{high:.0f} µs", str(runs[place]), shares[0], drop, shares[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.h200.short_launches",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("steps", type=Path, nargs="*", help=f"files *{SUFFIX}; default: all that are committed")
    options = parser.parse_args()
    print("\n".join(table(options.steps or sorted(STEPS.glob(f"*{SUFFIX}")))))


if __name__ == "__main__":
    main()
