"""Traces for tests: real ones of the CPU, and events of a GPU by hand.

No GPU writes traces here. The events by hand have the fields that PyTorch's profiler documents for kernels: category, duration,
and the `External id` of the operator that launched them.
"""

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def traced(file: Path, run: Callable[[], object], steps: int | None = None, **options: Any) -> Path:
    """A trace that PyTorch writes of one call, or of `steps` steps of a schedule behind one that is left out."""
    from torch.profiler import ProfilerActivity, profile, schedule

    given: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "record_shapes": True, **options}
    if steps is None:
        with profile(**given) as profiler:
            run()
        profiler.export_chrome_trace(str(file))
        return file
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    with profile(**given, schedule=plan, on_trace_ready=lambda one: one.export_chrome_trace(str(file))) as profiler:
        for _ in range(steps + 1):
            run()
            profiler.step()
    return file


def write_trace(file: Path, events: list[Event], **fields: Any) -> Path:
    content = json.dumps({"schemaVersion": 1, **fields, "traceEvents": events}).encode()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file


def operator(name: str, id_: int, ts: float, dur: float, shapes: list[list[int]], **arguments: Any) -> Event:
    """A CPU operator on contiguous half-precision operands."""
    strides = [[math.prod(shape[place + 1 :]) for place in range(len(shape))] for shape in shapes]
    args = {
        "External id": id_,
        "Input Dims": shapes,
        "Input Strides": strides,
        "Input type": ["c10::Half"] * len(shapes),
        **arguments,
    }
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def kernel(id_: int | None, dur: float, category: str = "kernel") -> Event:
    args: dict[str, Any] = {"device": 0, "stream": 7, "correlation": 100} | ({} if id_ is None else {"External id": id_})
    return {"ph": "X", "cat": category, "name": "gemm", "pid": 0, "tid": 7, "ts": 50.0, "dur": dur, "args": args}


H200 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}]}
