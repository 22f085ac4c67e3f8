"""Findings from the terms of a predicted time: which resource alone would take most of it.

Covered: kernels without a measured time whose prediction has terms. A term close to the prediction is what bounds the kernel;
where none is, the time goes into latencies and waits that nothing overlaps.
"""

from collections.abc import Iterator

from cudal2_agent.contract.records.diagnosis import Bottleneck, Finding
from cudal2_agent.contract.records.evaluation import Prediction

_BOUND = 0.6  # share of the prediction from which a term is reported
_RULES: dict[str, tuple[Bottleneck, str]] = {
    "tensor cores": ("tensor-bound", "the tensor cores are the limit; only fewer waves or a smaller tail make it faster"),
    "shared memory": ("smem-bound", "use larger tiles per warpgroup, keep A in registers, or share B between warpgroups"),
    "loads from L2": ("l2-bound", "load less per product: larger tiles, multicast in clusters, a raster that shares operands"),
    "DRAM": ("dram-bound", "move every operand once: a raster that reuses L2, streaming stores"),
    "stores": ("epilogue-bound", "store whole lines through shared memory, and overlap them with the next tile"),
    "issue": ("instruction-bound", "fewer instructions per product: unroll, hoist addresses, use bulk copies"),
    "launch": ("launch-bound", "use programmatic launch, one launch, a shorter prologue"),
    "bulk copies": ("redundant-traffic", "copy wider rows: each row of a box costs the copy engine the same"),
}


def predicted_findings(prediction: Prediction) -> Iterator[Finding]:
    """Weight: what would be saved if the largest term shrank to the second largest; a lower bound of 5 % where it bounds."""
    named = sorted(((name, time_us) for name, time_us in prediction.terms.items() if name in _RULES), key=lambda term: -term[1])
    if not named or prediction.predicted_us <= 0:
        return
    second = named[1][1] if len(named) > 1 else 0.0
    for place, (name, time_us) in enumerate(named):
        share = time_us / prediction.predicted_us
        if share < _BOUND:
            continue
        bottleneck, remedy = _RULES[name]
        saved = (time_us - second) / prediction.predicted_us if place == 0 else 0.0
        yield Finding(
            bottleneck=bottleneck,
            evidence=f"{name} alone: {time_us:.2f} us of {prediction.predicted_us:.2f} us predicted (not measured)",
            remedy=remedy,
            weight=min(max(saved, 0.05), 1.0),
        )
    if named[0][1] < _BOUND * prediction.predicted_us:
        idle_us = prediction.predicted_us - named[0][1]
        yield Finding(
            bottleneck="dependency-waits",
            evidence=f"{idle_us:.2f} us of {prediction.predicted_us:.2f} us predicted are latencies that nothing overlaps; "
            f"the busiest resource, {named[0][0]}, needs {named[0][1]:.2f} us",
            remedy="keep more copies in flight, split K over more warps or CTAs, shorten prologue and epilogue",
            weight=min(idle_us / prediction.predicted_us, 1.0),
        )
