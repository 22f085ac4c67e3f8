"""Invented rows of a campaign, for tests only: plausible times over the grid, the same in every process."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.speed.grid import OFF_GRID, grid_shapes
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.evaluation import AUTOTUNED, CUBLAS, HEURISTIC, TORCH
from cudal2_agent.contract.records.task import Arch, GemmTask, Layout, TimingMode
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import Speedup

START = datetime(2026, 11, 23, 1, tzinfo=UTC)
ENVIRONMENT = "NVIDIA H200 driver-580.1 toolkit-13.0 cublas-13.1"
SCHEDULE: dict[str, Any] = {"family": "wgmma_tma", "block_m": 128, "block_n": 256, "block_k": 64, "stages": 4, "cluster_m": 2}


def shape_result(shape: str, ratio: float = 1.25, autotuned_us: float = 10.0, **changes: Any) -> ShapeResult:
    """A row of one shape. `ratio`: speedup over AutoTuning; `plain`: without programmatic launch (None for no kernel)."""
    mode, layout = changes.pop("mode", TimingMode.OFFLINE), changes.pop("layout", Layout.NN)
    plain = changes.pop("plain", ratio * 0.9)
    m, n, k = (int(size) for size in shape.split("x"))
    task = GemmTask(m=m, n=n, k=k, mode=mode, layout=layout)
    fields: dict[str, Any] = {
        "task": task,
        "run_id": f"{shape}-20261123-010000-ab12",
        "environment": ENVIRONMENT,
        "best": winner(ratio, autotuned_us, programmatic=True),
        "best_without": None if plain is None else winner(plain, autotuned_us, programmatic=False),
        "baselines_us": {
            AUTOTUNED: autotuned_us,
            HEURISTIC: 1.06 * autotuned_us,
            CUBLAS: 1.1 * autotuned_us,
            TORCH: 1.1 * autotuned_us,
        },
        "floor_us": roofline_us(task, REFERENCE_CHIPS[Arch.SM_90A]),
        "witness": "agreed",
        "candidates": 48,
        "gpu_seconds": 5.0,
        "seconds": 9.0,
        "reason": "budget",
        "commit": "abc1234",
        "finished_at": START,
    }
    return ShapeResult(**fields | changes)


def winner(ratio: float, autotuned_us: float, *, programmatic: bool, candidate_id: str = "0123456789abcdef") -> Winner:
    return Winner(
        candidate_id=candidate_id,
        step_index=7,
        schedule=SCHEDULE | {"programmatic": programmatic},
        programmatic=programmatic,
        time_us=autotuned_us / ratio,
        speedup=Speedup(baseline=AUTOTUNED, ratio=ratio, low=ratio * 0.995, high=ratio * 1.005),
        worst_error=0.31,
        library_error=0.3,
    )


def campaign_rows(shapes: Sequence[str] | None = None) -> list[ShapeResult]:
    """Both modes of all shapes of the grid, and of those off it (or of the shapes given); one has no kernel."""
    chosen = [*grid_shapes(), *OFF_GRID] if shapes is None else shapes
    rows = []
    for number, (mode, shape) in enumerate((mode, shape) for mode in TimingMode for shape in chosen):
        draw = random.Random(f"{shape} {mode}")
        m, n, k = (int(size) for size in shape.split("x"))
        floor_us = roofline_us(GemmTask(m=m, n=n, k=k), REFERENCE_CHIPS[Arch.SM_90A])
        autotuned_us = floor_us * (1.05 + 2 / (1 + floor_us / 4)) + 0.9
        ratio = (1.02 + 0.6 / (1 + autotuned_us / 6)) * draw.uniform(0.93, 1.12)
        finished = START + timedelta(seconds=number)
        rows.append(shape_result(shape, ratio, autotuned_us, mode=mode, finished_at=finished, gpu_seconds=draw.uniform(2, 9)))
    rows[-1] = rows[-1].model_copy(
        update={"best": None, "best_without": None, "baselines_us": {}, "reason": "no kernel was right"}
    )
    return rows
