"""Rows of results: what a measurement of a module leaves, one JSON line a task."""

import json
import os
import re
import statistics
from pathlib import Path
from typing import Any

from cudal2_agent.contract.foreign import read_lines
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import Evaluation, Measured, Timing, Wrong
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.reward.speedup import median_us, paired_speedup, yardstick_of

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, packed or not; none where there is no file. A line that a killed run left in part is no row."""
    found = []
    for line in read_lines(path) if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def add_row(path: Path, row: Row) -> None:
    """As a line of its own, whatever a killed run left."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        torn = end > 0 and file.read(1) != b"\n"
        file.write((b"\n" if torn else b"") + json.dumps(row).encode() + b"\n")


def place_of(name: str) -> tuple[int, int]:
    """(level, number) of `1/19_ReLU`, `level1/19_ReLU` or `kernelbench:1/19`; zeros where a name has none."""
    found = re.search(r"(\d+)/(\d+)", name)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def head_of(task: ModuleTask) -> Row:
    """What a row says of its task."""
    return {
        "task": task.name,
        "level": place_of(task.name)[0],
        "arithmetic": task.arithmetic.value,
        "class": class_of(task),
        "bytes": task.operand_bytes,
        "flops": task.flops,
    }


# A class is that of the first of its operations that a task has.
_CLASSES = {
    "attention": ("scaled_dot_product", "_scaled_dot"),
    "convolution": ("convolution",),
    "product": ("mm", "bmm", "addmm", "baddbmm", "mv", "dot"),
    "scan": ("cumsum", "cumprod"),
    "pool": ("max_pool", "avg_pool", "_adaptive"),
    "norm": ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm", "batch_norm"),
    "softmax": ("_softmax", "_log_softmax", "logsumexp"),
    "reduction": ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "linalg_vector_norm", "norm", "var"),
}
_PREFIXES = ("attention", "pool", "norm")


def class_of(task: ModuleTask) -> str:
    """`convolution`, `transposed convolution`, `product`, `pointwise`, …; `… and more` where other operations do work too."""
    names = {node.op.split(".")[1] for node in task.graph.nodes if node.op != "getitem"}
    for kind, own in _CLASSES.items():
        found = {name for name in names if (name.startswith(own) if kind in _PREFIXES else name in own)}
        if not found:
            continue
        if kind == "convolution" and any(node.op.startswith("aten.convolution") and node.args[6] for node in task.graph.nodes):
            kind = "transposed convolution"
        more = kind in ("convolution", "transposed convolution", "product") and bool(names - found - _SILENT)
        return f"{kind} and more" if more else kind
    return "pointwise"


_SILENT = frozenset(("view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "clone", "_unsafe_view"))


def nodes_of(candidate: AnyCandidate) -> tuple[int, int]:
    """(kernels of its own, library calls) of a candidate's plan."""
    if not isinstance(candidate, Candidate):
        return 0, 0
    return len(candidate.plan.kernels), len(candidate.plan.library_calls)


def attempt_of(candidate: AnyCandidate, evaluation: Evaluation) -> Row:
    """What a row says of one candidate."""
    kernels, calls = nodes_of(candidate)
    row: Row = {
        "candidate": candidate.id,
        "schedule": candidate.origin.schedule,
        "kernels": kernels,
        "calls": calls,
        "status": evaluation.status,
    }
    if isinstance(evaluation, Measured):
        return row | {"effort": evaluation.effort, "us": round(median_us(evaluation.timing), 3)}
    failing = (
        [f"{test.tier}/{test.name}" for test in evaluation.tests if not test.passed] if isinstance(evaluation, Wrong) else []
    )
    return row | {"message": evaluation.headline[:600], "fails": failing[:1]}


def figures_of(found: Measured) -> Row:
    """Times of a candidate and of every baseline, with the speedup's interval over each, and how they were measured."""
    yardstick = yardstick_of(found)
    speedup = None if yardstick is None else paired_speedup(found.timing, yardstick)
    return {
        "us": round(median_us(found.timing), 3),
        "samples": _samples(found.timing),
        "baselines": {each.name: _baseline(found, each) for each in found.baselines},
        "fastest": None if yardstick is None else yardstick.name,
        "speedup": None if speedup is None else [round(each, 4) for each in (speedup.ratio, speedup.low, speedup.high)],
        "answer": "unknown" if speedup is None else "kernel" if speedup.ratio > 1 else "keep PyTorch's",
        "worst": max((test.worst for test in found.tests), default=0.0),
        "tests": len(found.tests),
        "ruler": found.ruler and {"sets": found.ruler.sets, "launches": found.ruler.launches, "weakened": found.ruler.weakened},
        "notes": found.notes,
        "telemetry": {"sm_mhz": found.telemetry.sm_clock_mhz[-1:], "reasons": found.telemetry.throttle_reasons},
        "gpu": found.environment.gpu,
        "torch": found.environment.torch,
    }


def _baseline(found: Measured, each: Timing) -> Row:
    ratio = paired_speedup(found.timing, each)
    return {
        "us": round(median_us(each), 3),
        "samples": _samples(each),
        "speedup": [round(value, 4) for value in (ratio.ratio, ratio.low, ratio.high)],
        "detail": each.detail,
    }


def _samples(timing: Timing) -> list[float]:
    return [float(f"{each:.5g}") for each in timing.samples_us]


def geometric_mean(values: list[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None
