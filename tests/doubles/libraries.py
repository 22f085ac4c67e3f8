"""Small kernel libraries for tests: entries that today's families write, with invented measurements."""

import hashlib
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from cudal2.dispatch.padded_m_rule import PaddedMRule
from cudal2_agent.agent.library.entry_source import candidate_of, from_text, source_sha256
from cudal2_agent.agent.library.library_writing import manifest_of, write_library
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate, ScheduleValue
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.library import (
    EntryEvaluation,
    LibraryEntry,
    MRange,
    PreparedKernel,
    RangePoint,
    StoredAlgorithm,
)
from cudal2_agent.contract.records.task import ElementType, GemmTask, Layout
from cudal2_agent.contract.reward.speedup import Speedup
from cudal2_agent.policies.schedule.families.registry import written

CHIP = "H200"
ENVIRONMENT = "H200 driver-580.1 toolkit-13.0 cublas-13.1"
# Takes the emulator a second, and the compiler half of one.
LATENCY: dict[str, ScheduleValue] = {
    "family": "latency",
    "block_m": 16,
    "block_n": 16,
    "block_k": 32,
    "groups": 1,
    "passes": 1,
    "warps_m": 1,
    "warps_n": 1,
    "warps_k": 4,
    "cluster_k": 1,
    "loads": "cp_async",
    "exclusive": True,
    "constant_shape": True,
    "programmatic": True,
}

# Of the family that has gated kernels.
GATED: dict[str, ScheduleValue] = {
    "family": "wgmma_tma",
    "consumers": 2,
    "atoms": 1,
    "block_n": 64,
    "block_k": 64,
    "stages": 3,
    "constant_shape": True,
}

CONFIGURATION = (
    "algorithm 66, tile tile_128x128, stages stages_64xauto, split-K 1, reduction none, cluster shape_2x1x1"  # of cuBLASLt
)

# Of the environment that entries are of.
PADDED_M_RULE = PaddedMRule(
    measured=ENVIRONMENT,
    layouts=(Layout.NN,),
    elements=(ElementType.F16,),
    least=1.0,
    smallest=0.5,
)


def speedup(ratio: float, half: float = 0.01) -> Speedup:
    return Speedup(baseline=AUTOTUNED, ratio=ratio, low=ratio - half, high=ratio + half)


def library_entry(task: GemmTask, ratio: float = 1.3, source: str | None = None, **changes: Any) -> LibraryEntry:
    """An entry of a schedule above, or of a source."""
    schedule = GATED if task.gated else LATENCY
    candidate: Candidate = written(schedule, task) if source is None else from_text(source)
    fields: dict[str, Any] = {
        "task": task,
        "chip": CHIP,
        "schedule": schedule if source is None else None,
        "source": source,
        "source_sha256": source_sha256(candidate),
        "evaluation": EntryEvaluation(
            time_us=2.6 / ratio,
            speedup=speedup(ratio),
            baselines_us={AUTOTUNED: 2.6},
            worst_error=0.5,
            environment=ENVIRONMENT,
            run_id=f"{task.shape}-run",
            measured=date(2026, 11, 23),
        ),
    }
    return LibraryEntry(**fields | changes)


def stored_algorithm(task: GemmTask, **changes: Any) -> StoredAlgorithm:
    """An algorithm of the task's own layout, of 6 us where PyTorch takes 7.5."""
    fields: dict[str, Any] = {
        "task": task,
        "chip": CHIP,
        "words": f"layout {task.layout}, {CONFIGURATION}",
        "time_us": 6.0,
        "torch_us": 7.5,
        "heuristic_us": 7.25,
        "environment": "H200 driver-580.1 toolkit-13.0 cublas-13.1.0",
        "run_id": f"{task.shape}-run",
        "measured": date(2026, 11, 23),
    }
    return StoredAlgorithm(**fields | changes)


def prepared(entry: LibraryEntry, cubin: bytes, sms: int) -> PreparedKernel:
    """What lies beside a kernel of an entry."""
    return PreparedKernel(
        task=entry.task,
        source_sha256=entry.source_sha256,
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        compiler="nvrtc 13.0",
        plan=resolve(candidate_of(entry).plan, entry.task, LIMITS[entry.task.arch], sms),
    )


def m_range(entry: LibraryEntry, smallest: int, **changes: Any) -> MRange:
    """A range of M that was measured at its ends, 1.2 times as fast as PyTorch's product."""
    ms = sorted({smallest, entry.task.m - 1}, reverse=True)
    fields: dict[str, Any] = {
        "entry": entry.id,
        "smallest": smallest,
        "source_sha256": "1" * 64,
        "points": tuple(range_point(m, 1.2) for m in ms),
        "environment": ENVIRONMENT,
        "measured": date(2026, 11, 29),
    }
    return MRange(**fields | changes)


def range_point(m: int, ratio: float, time_us: float = 2.0) -> RangePoint:
    return RangePoint(m=m, time_us=time_us, torch_us=ratio * time_us, speedup=speedup(ratio))


def write_entries(
    out: Path, entries: Sequence[LibraryEntry], algorithms: Sequence[StoredAlgorithm] = (), ranges: Sequence[MRange] = ()
) -> Path:
    """A library of these entries, algorithms and ranges of M, as a folder or packed."""
    ordered = tuple(sorted(entries, key=lambda entry: entry.id))
    stored = tuple(sorted(algorithms, key=lambda one: one.id))
    manifest = manifest_of(ordered, stored, ranges=tuple(ranges), name="small", chip=CHIP)
    write_library(out, manifest, (*ordered, *stored))
    return out


def small_tasks(count: int = 3) -> list[GemmTask]:
    return [GemmTask(m=16, n=16 * (number + 1), k=64) for number in range(count)]
