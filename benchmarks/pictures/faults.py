"""Draws the seeded faults that compute-sanitizer, the tests on the GPU and the emulator find, as an SVG.

Run from the repository's root: python -m benchmarks.pictures.faults benchmarks/results/NAME.json docs/pictures/h200_faults.svg
The findings of GPU and emulator come from the committed table of `emulator_agreement`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.pictures.svg import FAINT, GOOD, OURS, RULE, bar, document, line, main, text
from benchmarks.sanitizer_corpus.sanitizer_table import (
    AGREEMENT,
    TOOLS,
    Detection,
    FaultComparison,
    SanitizerResult,
    Verdicts,
    agreement,
    compare,
)
from cudal2_agent.sandbox.emulator.detector import Detector

WIDTH, LEFT, RIGHT, TOP, ROW = 900, 20, 880, 134, 26
COUNTS, GAP = 40.0, 1.5  # space after a row of squares, and between two; one square per fault
SANITIZER = "#3f6ea8"
ORDER: tuple[Detection, ...] = ("reported", "noticed", "nothing")
# Classes of faults, by the first detector that may name a fault.
CLASSES: dict[str, tuple[str, ...]] = {
    "out of bounds or misaligned": (
        Detector.GLOBAL_OUT_OF_BOUNDS,
        Detector.SHARED_OUT_OF_BOUNDS,
        Detector.INPUT_WRITTEN,
        Detector.MISALIGNED,
        Detector.TENSOR_MAP,
    ),
    "copy or wgmma not waited for": (Detector.ASYNC_RACE, Detector.WGMMA_IN_FLIGHT),
    "deadlock, endless loop, half a warp": (Detector.DEADLOCK, Detector.ENDLESS, Detector.DIVERGENT),
    "mbarrier misused or miscounted": (Detector.BARRIER_MISUSE, Detector.TRANSACTION_MISMATCH),
    "barrier missing": (Detector.SHARED_RACE,),
    "wrong layout or arithmetic": ("wrong-result",),
    "read before it is written": (Detector.UNINITIALISED_READ,),
    "split-K order in global memory": (Detector.GLOBAL_RACE,),
    "kernel starts or CTA ends too early": (Detector.DEPENDENCY, Detector.CLUSTER_EXIT),
    "proxy or wgmma fence missing": (Detector.MISSING_PROXY_FENCE, Detector.MISSING_WGMMA_FENCE),
}
# (title, left edge, colour, what it finds)
WAYS: tuple[tuple[str, float, str, Callable[[FaultComparison], Detection]], ...] = (
    ("compute-sanitizer, four tools", 262.0, SANITIZER, lambda one: one.sanitizer),
    ("tests on the GPU", 470.0, GOOD, lambda one: one.gpu),
    ("emulator", 678.0, OURS, lambda one: one.emulator),
)


def draw(result: SanitizerResult, verdicts: Mapping[str, Verdicts]) -> str:
    compared = compare(result, verdicts)
    foot = TOP + ROW * len(CLASSES)
    longest = max(sum(one.fault.detectors[0] in detectors for one in compared) for detectors in CLASSES.values())
    pitch = (WAYS[1][1] - WAYS[0][1] - COUNTS) / longest
    body = [*_head(result, compared, pitch - GAP)]
    for title, left, colour, finding in WAYS:
        body += _column_head(title, left, [finding(one) for one in compared])
        for place, detectors in enumerate(CLASSES.values()):
            found = [finding(one) for one in compared if one.fault.detectors[0] in detectors]
            body += _squares(left, TOP + ROW * (place + 0.5), sorted(found, key=ORDER.index), colour, pitch)
    for place, name in enumerate(CLASSES):
        body += [text(LEFT, TOP + ROW * (place + 0.5) + 4, name), line(LEFT, TOP + ROW * place, RIGHT, TOP + ROW * place)]
    return document(WIDTH, foot + 52, [*body, *_foot(result, foot)])


def _head(result: SanitizerResult, compared: Sequence[FaultComparison], side: float) -> Iterator[str]:
    yield text(LEFT, 26, f"{len(compared)} seeded faults: which of them are found?", 16, bold=True)
    yield text(RIGHT, 26, f"{result.environment.gpu}, {result.date}, compute-sanitizer {result.sanitizer}", 11, "end", FAINT)
    meanings = ("reported: what is wrong, or which test failed", "noticed: only a crash or a hang", "not found")
    for kind, words, x in zip(ORDER, meanings, (LEFT, 340, 590), strict=True):
        yield from _square(x, 54, side, kind, FAINT)
        yield text(x + 14, 58, words)


def _column_head(title: str, left: float, found: Sequence[Detection]) -> Iterator[str]:
    yield text(left, TOP - 34, title, 13, bold=True)
    reported, noticed = found.count("reported"), found.count("noticed")
    yield text(left, TOP - 16, f"{reported} reported, {noticed} noticed", 12, colour=FAINT)


def _squares(left: float, y: float, found: Sequence[Detection], colour: str, pitch: float) -> Iterator[str]:
    for place, kind in enumerate(found):
        yield from _square(left + pitch * place, y, pitch - GAP, kind, colour)
    reported, noticed = found.count("reported"), found.count("noticed")
    counts = f"{reported} + {noticed}" if noticed else f"{reported}"
    yield text(left + pitch * len(found) + 4, y + 4, counts, 11, colour=FAINT)


def _square(x: float, y: float, side: float, kind: Detection, colour: str) -> Iterator[str]:
    """One fault: a full square if reported, a small one if noticed, an empty one if not found."""
    yield bar(x, y - side / 2, side, side, colour if kind == "reported" else RULE)
    if kind == "noticed":
        yield bar(x + side / 4, y - side / 4, side / 2, side / 2, colour)


def _foot(result: SanitizerResult, y: float) -> Iterator[str]:
    """False positives, and launches that were not run."""
    right = {row.kernel for row in result.rows if row.kernel.startswith("right-")}
    alarms = [
        f"{tool} {sum(row.tool == tool and row.kernel in right and row.outcome == 'reported' for row in result.rows)}"
        for tool in TOOLS
    ]
    yield line(LEFT, y, RIGHT, y)
    words = f"Right kernels that a tool reports something of, out of {len(right)}: {', '.join(alarms)}."
    yield text(LEFT, y + 20, words, 11)
    missing = f" Not run, for want of time: {len(result.not_run)} launches." if result.not_run else ""
    yield text(LEFT, y + 38, f"What the same tool says of their faults too counts for nothing.{missing}", 11)


if __name__ == "__main__":
    main(
        __doc__,
        lambda stored: draw(SanitizerResult.model_validate_json(stored), agreement(AGREEMENT.read_text(encoding="utf-8"))),
    )
