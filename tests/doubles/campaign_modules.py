"""Invented modules of a campaign and their rows, for tests only."""

from datetime import timedelta
from typing import Any

from cudal2_agent.contract.records.evaluation import COMPILED, EAGER
from cudal2_agent.contract.records.module_campaign import AskedModule, ModuleResult, ModuleWinner
from cudal2_agent.contract.reward.speedup import Speedup
from tests.doubles import NOW
from tests.doubles.modules import PROBLEM


def asked(name: str = "level1/1_relu", rows: int = 32, **changes: Any) -> AskedModule:
    level = int(name[5]) if name.startswith("level") else 0
    return AskedModule(**{"name": name, "level": level, "problem": PROBLEM.format(rows=rows), **changes})


def module_row(
    task: AskedModule | None = None, ratio: float | None = 1.5, later_s: float = 0.0, **changes: Any
) -> ModuleResult:
    """`ratio`: over the compiled baseline, which is the fastest; twice as much over eager. None for a plan without a time."""
    speedups = [] if ratio is None else [(EAGER, 2 * ratio), (COMPILED, ratio)]
    winner = ModuleWinner(
        candidate_id="0123",
        step_index=3,
        schedule=None,
        kernels=2,
        library_calls=1,
        time_us=None if ratio is None else 5.0,
        speedups=tuple(Speedup(baseline=name, ratio=each, low=each - 0.01, high=each + 0.01) for name, each in speedups),
        found_right="verified by the emulator",
        worst_error=0.25,
    )
    status = "proved" if ratio is None else "faster" if ratio > 1 else "keep-pytorch"
    fields: dict[str, Any] = {
        "task": task or asked(),
        "status": status,
        "run_id": "run-1",
        "best": winner,
        "baselines_us": {name: 5.0 * each for name, each in speedups},
        "fastest": COMPILED if speedups else "",
        "soundness": "sound",
        "dims": {"rows": 32, "columns": 64},
        "operations": 2,
        "candidates": 4,
        "seconds": 9.0,
        "finished_at": NOW + timedelta(seconds=later_s),
    }
    return ModuleResult(**fields | changes)
