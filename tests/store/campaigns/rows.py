"""Sample results of campaigns."""

from datetime import timedelta

from cudal2_agent.contract.records.baseline import TunedBaseline
from cudal2_agent.contract.records.campaign import ShapeResult, Winner
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.speedup import Speedup
from tests.doubles import ENVIRONMENT, NOW


def winner(ratio: float = 1.2, **changes: object) -> Winner:
    speedup = Speedup(baseline=AUTOTUNED, ratio=ratio, low=ratio - 0.01, high=ratio + 0.01)
    fields = {"candidate_id": "0123", "step_index": 3, "schedule": None, "programmatic": True, "time_us": 5.0}
    return Winner.model_validate({**fields, "speedup": speedup, **changes})


def result(task: GemmTask, ratio: float | None = 1.2, later_s: float = 0.0, **changes: object) -> ShapeResult:
    fields: dict[str, object] = {
        "task": task,
        "run_id": f"run-{task.shape}",
        "environment": ENVIRONMENT.key,
        "best": winner(ratio) if ratio is not None else None,
        "best_without": winner(ratio - 0.1, programmatic=False) if ratio is not None else None,
        "baselines_us": {AUTOTUNED: 6.0},
        "floor_us": 1.0,
        "candidates": 8,
        "gpu_seconds": 2.0,
        "seconds": 4.0,
        "finished_at": NOW + timedelta(seconds=later_s),
    }
    return ShapeResult.model_validate({**fields, **changes})


def tuned(task: GemmTask, **changes: object) -> TunedBaseline:
    fields = {"environment": ENVIRONMENT.key, "layout": "nn", "algorithm": "00ff", "detail": "tile 128x128", "suggestions": 8}
    return TunedBaseline.model_validate({"task": task, "time_us": 6.0, **fields, **changes})


def tasks(count: int) -> dict[GemmTask, float]:
    return {GemmTask(m=16 * (number + 1), n=64, k=32): 1.0 for number in range(count)}
